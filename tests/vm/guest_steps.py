"""In the VM: limiters that go by the wall clock, an agent that watches them, and steps of -500 ms, 2 s and an hour. tests/vm/steps.py starts it.

Leaves a JSON document in the file it is given: the steps, each decision by the programs' own logs, and what ``tickscope limiters replay`` says.
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

from agent.common.clocks import boot_ns
from agent.common.resp import RedisUrl, RespClient
from agent.demo.limiter_part import SCRIPT
from agent.lab.stage.wallclock import require_throwaway, step
from tests.servers.test_redis_streams import Redis
from tests.system.agent import Agent

MS, S = 10**6, 10**9
STEPS_NS = (-500 * MS, 2 * S, 3600 * S)
#: Until the first step an emulated machine has looked at the program and put its probes there.
FIRST_S, EACH_S, PER_S = 75.0, 12.0, 25.0
LIMIT, WINDOW_MS = 10, 1000
#: Without the key's expiry, which is Redis's own clock.
LUA = re.sub(r"redis\.call\('PEXPIRE'.*\n", "", SCRIPT)
CONFIG = """prometheus: ''
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


def redis_client(server: Redis, intake: Path, seconds: float) -> list[tuple[int, int, int]]:
    """A sliding log that a real Redis keeps, by this host's clock: CLOCK_BOOTTIME, the wall clock's reading, 0 or 1 of each decision."""
    client, log = RespClient(RedisUrl.parse(f"redis://127.0.0.1:{server.port}/0"), timeout_s=60), []
    reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        number += 1
        boot, wall = boot_ns(), time.time_ns()
        (left,) = client.pipeline([("EVAL", LUA, 1, "window", wall // MS, WINDOW_MS, LIMIT, number)])
        said = {
            "limiter": "lua", "result": "allowed" if left >= 0 else "refused", "cost": 1, "limit_per_s": LIMIT, "window_ns": WINDOW_MS * MS,
            "program_wall_ns": wall, "t_ns": boot_ns(), "remaining": max(0, left),
        }  # fmt: skip
        reports.sendto(json.dumps(said).encode(), str(intake))
        log.append((boot, wall, int(left >= 0)))
        time.sleep(1 / PER_S)
    return log


def main() -> None:
    require_throwaway()
    out, program = sys.argv[1:]
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    (root / "home").mkdir()
    server = Redis(root)
    seconds = FIRST_S + EACH_S * len(STEPS_NS)
    agent = Agent(root / "home", config=CONFIG.format(program=program)).ready(limit_s=90)
    live = subprocess.Popen([program, str(seconds), str(PER_S)], stdout=subprocess.PIPE, text=True)
    stepped: list[tuple[int, int]] = []
    stepper = threading.Thread(target=steps, args=(stepped,))
    stepper.start()
    decisions = {"lua": redis_client(server, agent.run_dir / "intake.sock", seconds)}
    for line in live.communicate()[0].splitlines():
        name, *numbers = line.split()
        boot, wall, yes = map(int, numbers)
        decisions.setdefault(name, []).append((boot, wall, yes))
    stepper.join()
    time.sleep(3)
    seen = agent.json("limiters", "replay", "--jump", "all")["rows"]
    rows = agent.json("sql", "select limiter_id, library, result, count(*) as n from limiter_decision group by all")[
        "rows"
    ]
    lost, status = agent.json("query", "loss")["rows"], agent.status()
    agent.stop()
    server.process.terminate()
    Path(out).write_text(
        json.dumps(
            {
                "steps": stepped,
                "decisions": decisions,
                "replay": seen,
                "rows": rows,
                "lost": lost,
                "probes": status["probes"],
            }
        )
    )


def steps(made: list[tuple[int, int]]) -> None:
    """Makes them; adds CLOCK_BOOTTIME before and after each."""
    time.sleep(FIRST_S)
    for size in STEPS_NS:
        before = boot_ns()
        step(size / S)
        made.append((before, boot_ns()))
        time.sleep(EACH_S)


if __name__ == "__main__":
    main()
