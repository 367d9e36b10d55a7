"""In the VM: limiters that go by the wall clock, an agent that watches them, and steps of -500 ms, 2 s and an hour,
each taken back. tests/vm/steps.py starts it.

Leaves a JSON document in the file it is given: the steps, each decision by the programs' own logs, and what ``tickscope
limiters replay`` says.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from agent import probes
from agent.common.clocks import boot_ns
from agent.common.resp import RedisUrl, RespClient
from agent.demo.limiter_part import SCRIPT
from agent.lab.stage.wallclock import require_throwaway, step
from tests.servers.test_redis_streams import Redis
from tests.system.agent import Agent

MS, S = 10**6, 10**9
#: The last one stays: nobody is let go for an hour.
STEPS_NS = (-500 * MS, 500 * MS, 2 * S, -2 * S, 3600 * S, -3600 * S)
LIMITERS = ("bucket", "ring", "lua", "uber")
PER_S, EACH_S = 25.0, 16.0
#: Until all probes are in an emulated machine's programs; what replay goes back by, and a little.
SEEN_S, SETTLED_S = 240.0, 15.0
LIMIT, WINDOW_MS = 10, 1000
#: Its client asks as fast as an emulated machine lets it, 7 to 20 times a second.
LUA_LIMIT = 4
#: Without the key's expiry, which is Redis's own clock.
LUA = re.sub(r"redis\.call\('PEXPIRE'.*\n", "", SCRIPT)
#: Families that the limiters do not need are left out: compiling them takes an emulated machine a minute.
NEEDED = ("clock", "exec", "limiter")
CONFIG = """prometheus: ''
without: [{without}]
redis_limiters: off
limiter_functions:
  - name: ring
    program: {program}
    language: go
    symbol: main.(*slidingWindow).Inc
    arguments: {{limiter: ax, cost: si, window: ax+160, limit: ax+168}}
    results: {{result: bool ax}}
    algorithm: sliding window of slots
    clock: wall
    slots: 10
limiter_models:
  lua: {{model: sliding log, clock: wall}}
"""
#: Which of LIMITERS a row of limiter_decision, or of the replay, is about.
WHICH = {"golang.org/x/time/rate": "bucket", "go.uber.org/ratelimit": "uber"}


def which(row: dict[str, object]) -> str:
    name = str(row["limiter_id"])
    return WHICH.get(str(row["library"]), next((one for one in ("lua", "ring") if name.startswith(one)), name))


class RedisClient(threading.Thread):
    """A sliding log that a real Redis keeps, by this host's clock. log: CLOCK_BOOTTIME, the wall clock's reading, 0 or
    1, and CLOCK_BOOTTIME at its end, of each decision.
    """

    def __init__(self, server: Redis, intake: Path) -> None:
        super().__init__(daemon=True)
        self._client = RespClient(RedisUrl.parse(f"redis://127.0.0.1:{server.port}/0"), timeout_s=60)
        self._intake, self._end = intake, threading.Event()
        self.log: list[tuple[int, ...]] = []

    def run(self) -> None:
        reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        while not self._end.wait(1 / PER_S):
            boot, wall = boot_ns(), time.time_ns()
            (left,) = self._client.pipeline(
                [("EVAL", LUA, 1, "window", wall // MS, WINDOW_MS, LUA_LIMIT, len(self.log))]
            )
            ended = boot_ns()
            output = {
                "limiter": "lua",
                "result": "allowed" if left >= 0 else "refused",
                "cost": 1,
                "limit_per_s": LUA_LIMIT,
                "window_ns": WINDOW_MS * MS,
                "program_wall_ns": wall,
                "t_ns": ended,
                "duration_ns": ended - boot,
                "remaining": max(0, left),
            }
            reports.sendto(json.dumps(output).encode(), str(self._intake))
            self.log.append((boot, wall, int(left >= 0), ended))

    def finish(self) -> None:
        self._end.set()
        self.join()


def until_seen(agent: Agent) -> None:
    """Returns when there are rows of each limiter. Raises AssertionError, with what there is, after SEEN_S."""
    end = time.monotonic() + SEEN_S
    while True:
        rows = agent.json("sql", "select distinct limiter_id, library from limiter_decision")["rows"]
        missing = set(LIMITERS) - {which(row) for row in rows}
        if not missing:
            return
        assert time.monotonic() < end, f"not seen: {missing}; {rows}; {agent.status()['probes']}; {agent.log()}"
        time.sleep(3)


def stepped() -> list[tuple[int, int]]:
    """Makes the steps; CLOCK_BOOTTIME before and after each."""
    made = []
    for size in STEPS_NS:
        before = boot_ns()
        step(size / S)
        made.append((before, boot_ns()))
        time.sleep(EACH_S)
    return made


def main() -> None:
    require_throwaway()
    out, program = sys.argv[1:]
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    (root / "home").mkdir()
    server = Redis(root)
    families = {file.stem for file in Path(probes.__file__).parent.glob("[a-z]*.py")}
    without = ", ".join(sorted(families - set(NEEDED)))
    # Without --syscalls, whose windows switch tracepoints, at which emulated kernels die (README.md).
    agent = Agent(
        root / "home",
        "--syscalls",
        "off",
        "--investigate",
        "off",
        config=CONFIG.format(program=program, without=without),
    )
    with (root / "log").open("wb") as log:
        live = subprocess.Popen([program, str(PER_S)], stdin=subprocess.PIPE, stdout=log)
    agent.ready(limit_s=90)
    client = RedisClient(server, agent.run_dir / "intake.sock")
    client.start()
    print("attached", flush=True)
    until_seen(agent)
    print("all four are seen", flush=True)
    time.sleep(SETTLED_S)
    made = stepped()
    client.finish()
    live.communicate()
    decisions: dict[str, list[tuple[int, ...]]] = {"lua": client.log}
    for line in (root / "log").read_text().splitlines():
        name, *numbers = line.split()
        boot, wall, word = map(int, numbers)
        decisions.setdefault(name, []).append((boot, wall, word))
    time.sleep(3)
    seen = {
        "steps": made,
        "decisions": decisions,
        "replay": agent.json("limiters", "replay", "--jump", "all")["rows"],
        "lost": agent.json("query", "loss")["rows"],
        "probes": agent.status()["probes"],
        "seconds": agent.json(
            "sql",
            "select limiter_id, library, t_ns // 1000000000 as s, count(*) as n, min(sample_rate) as rate from"
            " limiter_decision group by all order by all",
        )["rows"],
        "status": agent.json("sql", "select * from probe_status order by t_ns")["rows"],
        "log": agent.log(),
    }
    agent.stop()
    server.process.terminate()
    Path(out).write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
