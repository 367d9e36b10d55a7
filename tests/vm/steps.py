"""python -m tests.vm.steps [KERNEL]: what real steps of the clock did to real limiters, counted by ``tickscope limiters replay`` and by their own logs.

In the VM (guest_steps.py) the clock is stepped by -500 ms, 2 s and an hour under x/time/rate on ``.UTC()``, a hand-written ring of slots, a Lua window in a
Redis and uber's ratelimit. Here the same arrivals are decided once more by the same code on a clock without that step. See tests/vm/README.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from agent.cli.output import emit_rows
from agent.common.resp import RedisUrl, RespClient
from tests.servers.test_limiter_models import asked, go_program
from tests.servers.test_redis_streams import Redis
from tests.vm import kernels, machine
from tests.vm.guest_steps import LIMIT, LUA, MS, STEPS_NS, WINDOW_MS
from tests.vm.suite import CHECKOUT

COLUMNS = ("limiter", "jump_ns", "decisions", "over", "over_true", "wrong", "wrong_true", "quality", "verdict")


def by_go(model: str) -> Callable[[np.ndarray], np.ndarray]:
    def decide(times: np.ndarray) -> np.ndarray:
        case = {
            "model": model,
            "per_s": LIMIT,
            "burst": LIMIT,
            "count": LIMIT,
            "window_ns": 10**9,
            "times": times.tolist(),
        }
        done = subprocess.run(
            [go_program("go.mod")], input=json.dumps([case]), capture_output=True, text=True, check=True, cwd="/"
        )
        return np.array([c == "1" for c in done.stdout.split()[-1]])

    return decide


def by_redis(folder: Path) -> Callable[[np.ndarray], np.ndarray]:
    def decide(times: np.ndarray) -> np.ndarray:
        with tempfile.TemporaryDirectory(dir=folder) as here:
            server = Redis(Path(here))
            client = RespClient(RedisUrl.parse(f"redis://127.0.0.1:{server.port}/0"), timeout_s=30)
            replies = asked(
                client, [("EVAL", LUA, 1, "k", t // MS, WINDOW_MS, LIMIT, i) for i, t in enumerate(times.tolist())]
            )
            server.process.terminate()
            server.process.wait()
        return np.array(replies) >= 0

    return decide


def compared(seen: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """A row a limiter and step: over-admitted and wrongly refused as tickscope counts them, and as its own code does."""
    deciders = {"bucket": by_go("token bucket"), "ring": by_go("sliding window of slots"), "lua": by_redis(folder)}
    logs = {"ring" if name == "window" else name: np.array(log) for name, log in seen["decisions"].items()}
    found = []
    for row in seen["replay"]:
        at = int(np.argmin([abs(row["jump_t_ns"] - before) for before, _ in seen["steps"]]))
        name = next(
            (n for n in ("lua", "ring") if row["limiter_id"].endswith(n)),
            "uber" if "uber" in (row["library"] or "") else "bucket",
        )
        boot, wall, said = logs[name].T
        size, after = STEPS_NS[at], boot >= seen["steps"][at][1]
        meant = after & (boot <= row["until_ns"])
        one = {"limiter": name, "jump_ns": size, "decisions": row["decisions"], "over": row["over_admitted"], "wrong": row["wrongly_refused"],
               "quality": row["quality"] + (f": {row['reason']}" if row["reason"] else "")}  # fmt: skip
        if name in deciders:
            quiet = deciders[name](wall - size * after)
            one |= {
                "over_true": int((said.astype(bool) & ~quiet)[meant].sum()),
                "wrong_true": int((~said.astype(bool) & quiet)[meant].sum()),
            }
            same = (one["over"], one["wrong"], one["decisions"]) == (
                one["over_true"],
                one["wrong_true"],
                int(meant.sum()),
            )
            one["verdict"] = "same" if same else "DIFFERS"
        else:
            one |= {
                "over_true": None,
                "wrong_true": None,
                "verdict": "not counted: who waits would have come at other times",
            }
        found.append(one)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.vm.steps", description=__doc__)
    parser.add_argument("kernel", nargs="?", choices=kernels.SUITES, default="6.1", help="%(default)s")
    asked_for = parser.parse_args()
    program = go_program("go.mod")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        command = [sys.executable, "-m", "tests.vm.guest_steps", "/run/out/seen.json", str(program)]
        done = machine.run(asked_for.kernel, command, limit_s=900, cwd=CHECKOUT, out=folder, echo=True)
        if done.status:
            print(done.output[-4000:], done.console, file=sys.stderr)
            return done.status or 4
        seen = json.loads((folder / "seen.json").read_text())
        rows = compared(seen, folder)
    emit_rows(rows, "table", COLUMNS, units={"jump_ns": "ns"})
    return int(any(row["verdict"] == "DIFFERS" for row in rows) or len({row["limiter"] for row in rows}) < 4)


if __name__ == "__main__":
    sys.exit(main())
