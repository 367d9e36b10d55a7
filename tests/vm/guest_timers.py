"""In the VM: a Celery application on a Redis, keys with an expiry, an agent that polls both, and steps of 2 h forward
and back. tests/vm/test_timers.py starts it.

Leaves a JSON document in the file that it is given: for each step what ``timer_effect`` says, and what was delivered
again or expired by the servers themselves.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from agent import probes
from agent.common.clocks import boot_ns
from agent.lab.stage.wallclock import require_throwaway, step
from tests.servers.celery_pieces import Worker, application, wait
from tests.servers.test_redis_streams import Redis
from tests.system.agent import Agent

STEP_S, S = 7200, 10**9
#: Visibility timeouts: the steps forward are beyond the long one; the short one ends while somebody waits for it.
LONG_S, SHORT_S = 3600, 120
#: Beyond the short one, and the worker's next round.
WAIT_S = SHORT_S + 40
RUNNING, HELD = 2, 11  # tasks that run, and that wait for a set time
LOCKS, SEEN, LASTING = 7, 5, 3  # keys; the last do not expire at any step
#: Workers put back what is due each second.
OPTIONS = {"unacked_restore_interval": 1, "unacked_restore_throttle": 1}
CONFIG = "prometheus: ''\nwithout: [{without}]\ncelery: [{celery}]\nredis: [{redis}]\n"


class Broker:
    """A Celery application with a broker of its own, whose tasks stay unacknowledged."""

    def __init__(self, root: Path, visibility_s: int, ends: ExitStack) -> None:
        self.visibility_s, self.root, self.ends = visibility_s, root, ends
        self.server = Redis(root)
        ends.callback(self.server.stop)
        self.options = {"visibility_timeout": visibility_s, **OPTIONS}
        self.worker = Worker(self.server.url, root, processes=RUNNING, options=self.options)
        ends.callback(self.worker.end)

    def begin(self, suffix: str, expiry_s: int) -> None:
        """Sends the tasks, waits until the worker has all of them, and sets the keys."""
        app = application(self.server.url, **self.options)
        for _ in range(HELD):  # the worker has room for them until it runs something
            app.send_task("early", (0,), countdown=10 * STEP_S)
        wait(lambda: self.server.do("ZCARD", "unacked_index") == HELD)
        for _ in range(RUNNING):
            app.send_task("late", (100_000,))
        wait(lambda: self.server.do("ZCARD", "unacked_index") == RUNNING + HELD)
        self.server.do("SET", "lock:for ever", "1")
        for name, count in (("lock", LOCKS), ("seen", SEEN)):
            for i in range(count):
                self.server.do("SET", f"{name}:{suffix}{i}", "1", "PX", (expiry_s + i) * 1000)
        for i in range(LASTING):
            self.server.do("SET", f"lock:lasting {suffix}{i}", "1", "PX", 100 * STEP_S * 1000)

    def state(self) -> tuple[dict[str, float], set[str]]:
        """Times of delivery of the unacknowledged messages by their tag, and the keys with an expiry."""
        flat: Any = self.server.do("ZRANGE", "unacked_index", 0, -1, "WITHSCORES")
        keys: Any = self.server.do("KEYS", "*:*")
        return (
            {tag.decode(): float(score) for tag, score in zip(flat[::2], flat[1::2], strict=True)},
            {key.decode() for key in keys},
        )

    def fired(self, before: tuple[dict[str, float], set[str]]) -> list[str]:
        """Messages that were delivered again or wait for it, and keys that are gone."""
        scores, keys = self.state()
        again = [tag for tag, score in before[0].items() if scores.get(tag) != score]
        return sorted([*again, *(before[1] - keys)])


def settled(broker: Broker, before: tuple[dict[str, float], set[str]], seconds: float) -> list[str]:
    """What has fired after that time; earlier once nothing more fires for 15 s, if something did."""
    end, last, since = time.monotonic() + seconds, list[str](), time.monotonic()
    while time.monotonic() < end:
        found = broker.fired(before)
        if found != last:
            last, since = found, time.monotonic()
        if found and time.monotonic() - since > 15:
            return found
        time.sleep(1)
    return broker.fired(before)


def polled(agent: Agent) -> None:
    """Waits until both sources were polled anew."""
    now = boot_ns()
    where = f"system IN ('celery', 'redis') AND t_ns > {now}"
    wait(lambda: len({row["system"] for row in agent.json("query", "queue_lag", "--where", where)["rows"]}) == 2)


def stepped(agent: Agent, broker: Broker, seconds: int, wait_s: float) -> dict[str, Any]:
    """A step: what fired after it, and when it was made."""
    before, at = broker.state(), boot_ns()
    step(seconds)
    return {"size_s": seconds, "from_ns": at, "to_ns": boot_ns(), "fired": settled(broker, before, wait_s)}


def main() -> None:
    require_throwaway()
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    with ExitStack() as ends:
        homes = [root / name for name in ("home", "long", "short")]
        for home in homes:
            home.mkdir()
        long, short = Broker(homes[1], LONG_S, ends), Broker(homes[2], SHORT_S, ends)
        families = {file.stem for file in Path(probes.__file__).parent.glob("[a-z]*.py")}
        both = (long, short)
        config = CONFIG.format(
            without=", ".join(sorted(families - {"clock", "exec"})),
            celery=", ".join(f"'{b.server.url}?visibility_timeout={b.visibility_s}'" for b in both),
            redis=", ".join(f"'{b.server.url}?locks=lock:*&dedup=seen:*'" for b in both),
        )
        agent = Agent(homes[0], "--syscalls", "off", "--investigate", "off", config=config)
        ends.callback(agent.end)
        agent.ready(limit_s=90)
        print("ready", flush=True)
        long.begin("a", LONG_S)
        polled(agent)
        what_if = agent.json("clock", "what-if", f"{STEP_S}s")["rows"]
        print("asked", flush=True)
        polled(agent)
        steps = [stepped(agent, long, STEP_S, 60), stepped(agent, long, -STEP_S, 20)]
        long.worker.end()  # what it delivers again would be told from the other's by tags only
        print("there and back", flush=True)
        short.begin("b", SHORT_S)
        time.sleep(5)
        steps += [stepped(agent, short, -STEP_S, WAIT_S), stepped(agent, short, STEP_S, 60)]
        polled(agent)
        document = {
            "what_if": what_if,
            "steps": steps,
            "effects": agent.json("query", "timer_effect", "--limit", "100000")["rows"],
            "findings": agent.json("findings")["rows"],
            "changes": agent.json("query", "clock_change")["rows"],
            "short": f"127.0.0.1:{short.server.port}",
            "ran": [*long.worker.did("end"), *short.worker.did("end")],
            "log": agent.log(),
        }
        agent.stop()
    Path(sys.argv[1]).write_text(json.dumps(document))


if __name__ == "__main__":
    main()
