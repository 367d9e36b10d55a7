"""In the VM: a Celery application on a Redis, keys with an expiry, what the agent has to poll both and to watch the
clock, and steps of 2 h back and forward. tests/vm/test_timers.py starts it.

Leaves a JSON document in the file that it is given: for each step what ``timer_effect`` says, and what was delivered
again or expired by the servers themselves.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from agent.clock import first, sample, watch_process
from agent.clock.clock_source import ClockSource
from agent.clock.history import History
from agent.common.clocks import boot_ns
from agent.lab.stage.wallclock import require_throwaway, step
from agent.posix.child import fork
from agent.queues.poller_process import BrokerPoller
from agent.queues.timer_effect import Timers, effects, plain
from tests.lab import sockets
from tests.servers.celery_pieces import Worker, application
from tests.servers.test_redis_streams import Redis

STEP_S, S = 7200, 10**9
#: The visibility timeout, and the expiry of keys: it would end while the guest waits after the step back.
SHORT_S = 240
#: Beyond it, and the worker's next round.
WAIT_S = SHORT_S + 40
RUNNING, HELD = 1, 7  # tasks that run, and that wait for a set time
LOCKS, SEEN, LASTING = 7, 5, 3  # keys; the last do not expire at any step
LIMIT_S = 900.0
#: Workers put back what is due each second.
OPTIONS = {"unacked_restore_interval": 1, "unacked_restore_throttle": 1}
State = tuple[dict[str, float], set[str]]


class Agent:
    """The parts of an agent that make ``timer_effect``, on one thread; a whole one takes an emulated machine minutes
    longer. effects: its rows.
    """

    def __init__(self, root: Path, urls: dict[str, str], ends: ExitStack) -> None:
        watch = watch_process.start(fork("watch", first.serve), sockets.notices(root / "notices.sock"), 65534, 65534)
        ends.callback(watch.close)
        watch.begin(-1)
        self._clock = ClockSource(watch, History())
        self.timers = Timers(lambda: sample.read().boot_mono_ns)
        self.pollers = [BrokerPoller(kind, (url,), 1.0, self.timers) for kind, url in urls.items()]
        for one in self.pollers:
            ends.callback(one.close)
        self.effects: list[dict[str, Any]] = []

    def pump(self, seconds: float = 0.5) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for one in self.pollers:
                list(one.drain(boot_ns()))
            made = [made for batch in self._clock.drain(boot_ns()) for made in self.timers(batch, boot_ns())]
            self.effects += [plain(row) for one in made if one.table == "timer_effect" for row in one.rows]
            time.sleep(0.2)

    def until(self, what: Callable[[], bool], why: str) -> None:
        end = time.monotonic() + LIMIT_S
        while not what():
            assert time.monotonic() < end, why
            self.pump()
        print(why, flush=True)

    def would(self, size_s: int) -> list[dict[str, Any]]:
        """What a jump would do now."""
        now = sample.read()
        return [plain(row) for row in effects(self.latest(), now.t_ns, size_s * S, now.real_boot_ns)]

    def latest(self) -> np.ndarray:
        return self.timers.latest(boot_ns())


class Broker:
    """A Celery application with a broker of its own, whose tasks stay unacknowledged."""

    def __init__(self, root: Path, visibility_s: int, ends: ExitStack) -> None:
        self.server = ends.enter_context(Redis(root))
        self.options = {"visibility_timeout": visibility_s, **OPTIONS}
        self.worker = Worker(self.server.url, root, processes=RUNNING, options=self.options)
        ends.callback(self.worker.end)
        print("the worker is ready", flush=True)
        urls = {
            "celery": f"{self.server.url}?visibility_timeout={visibility_s}",
            "redis": f"{self.server.url}?locks=lock:*&dedup=seen:*",
        }
        self.agent = Agent(root, urls, ends)
        print("it is watched", flush=True)

    def begin(self, expiry_s: int) -> None:
        """Sends the tasks, waits until the worker has all of them, and the agent has seen all timers."""
        app = application(self.server.url, **self.options)
        for _ in range(HELD):  # the worker has room for them until it runs something
            app.send_task("early", (0,), countdown=10 * STEP_S)
        self.agent.until(lambda: self.server.do("ZCARD", "unacked_index") == HELD, "it holds tasks with a set time")
        for _ in range(RUNNING):
            app.send_task("late", (100_000,))
        everything = RUNNING + HELD
        self.agent.until(lambda: self.server.do("ZCARD", "unacked_index") == everything, "it runs another")
        self.server.do("SET", "lock:for ever", "1")
        for name, count in (("lock", LOCKS), ("seen", SEEN)):
            for i in range(count):
                self.server.do("SET", f"{name}:{i}", "1", "PX", (expiry_s + i) * 1000)
        for i in range(LASTING):
            self.server.do("SET", f"lock:lasting {i}", "1", "PX", 100 * STEP_S * 1000)
        timers = everything + HELD + LOCKS + SEEN + LASTING
        self.agent.until(lambda: (self.agent.latest()["timers"].sum()) == timers, "all timers are seen")

    def state(self) -> State:
        """Times of delivery of the unacknowledged messages by their tag, and the declared keys."""
        flat: Any = self.server.do("ZRANGE", "unacked_index", 0, -1, "WITHSCORES")
        keys: Any = self.server.do("KEYS", "*:*")
        return (
            {tag.decode(): float(score) for tag, score in zip(flat[::2], flat[1::2], strict=True)},
            {key.decode() for key in keys},
        )

    def fired(self, before: State) -> list[str]:
        """Messages that were delivered again or wait for it, and keys that are gone."""
        scores, keys = self.state()
        again = [tag for tag, score in before[0].items() if scores.get(tag) != score]
        return sorted([*again, *(before[1] - keys)])

    def settled(self, before: State, seconds: float) -> list[str]:
        """What has fired after that time; earlier once nothing more fires for 20 s, if something did."""
        end, last, since = time.monotonic() + seconds, list[str](), time.monotonic()
        while time.monotonic() < end:
            found = self.fired(before)
            if found != last:
                last, since = found, time.monotonic()
            if found and time.monotonic() - since > 20:
                return found
            self.agent.pump(2)
        return self.fired(before)

    def step(self, seconds: int, wait_s: float) -> dict[str, Any]:
        """A step: what it would do, what it does by the table, and what fired after it."""
        would, before, already = self.agent.would(seconds), self.state(), len(self.agent.effects)
        from_ns = boot_ns()
        step(seconds)
        to_ns = boot_ns()
        fired = self.settled(before, wait_s)
        print(f"a step of {seconds} s: {len(fired)} fired", flush=True)
        made = self.agent.effects[already:]
        return {
            "size_s": seconds,
            "from_ns": from_ns,
            "to_ns": to_ns,
            "would": would,
            "effects": made,
            "fired": fired,
            "ended": self.worker.did("end"),
        }


def main() -> None:
    require_throwaway()
    print("begins", flush=True)
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    with ExitStack() as ends:
        broker = Broker(root, SHORT_S, ends)
        broker.begin(SHORT_S)
        steps = [broker.step(-STEP_S, WAIT_S), broker.step(STEP_S, 90)]
    Path(sys.argv[1]).write_text(json.dumps(steps))


if __name__ == "__main__":
    main()
