"""python -m tests.vm.steps [KERNEL]: what real steps of the clock did to real limiters, counted by ``tickscope limiters
replay`` and by their own logs.

In the VM (guest_steps.py) the clock is stepped by -500 ms, 2 s and an hour, and each time back, under x/time/rate on
``.UTC()``, a hand-written ring of slots, a Lua window in a Redis and uber's ratelimit. Here the same arrivals are
decided once more by the same code on a clock without that step. See tests/vm/README.md.
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
from tests.vm.guest_steps import LIMIT, LIMITERS, LUA, LUA_LIMIT, MS, STEPS_NS, WINDOW_MS, S, which
from tests.vm.suite import CHECKOUT

COLUMNS = ("limiter", "jump", "decisions", "over", "over_true", "wrong", "wrong_true", "verdict", "quality")
#: Of tests/servers/models/live.go.
UBER_PER_S = 40

Decide = Callable[[np.ndarray], np.ndarray]


def by_go(model: str, per_s: int, burst: int) -> Decide:
    def decide(times: np.ndarray) -> np.ndarray:
        case = {"model": model, "per_s": per_s, "burst": burst, "count": LIMIT, "window_ns": S, "times": times.tolist()}
        done = subprocess.run(
            [go_program("go.mod")], input=json.dumps([case]), capture_output=True, text=True, check=True, cwd="/"
        )
        return np.array([c == "1" for c in done.stdout.split()[-1]])

    return decide


def by_redis(times: np.ndarray) -> np.ndarray:
    with tempfile.TemporaryDirectory() as here:
        server = Redis(Path(here))
        client = RespClient(RedisUrl.parse(server.url), timeout_s=30)
        replies = asked(
            client, [("EVAL", LUA, 1, "k", t // MS, WINDOW_MS, LUA_LIMIT, i) for i, t in enumerate(times.tolist())]
        )
        server.end()
    return np.array(replies) >= 0


DECIDE: dict[str, Decide] = {
    "bucket": by_go("token bucket", LIMIT, LIMIT),
    "ring": by_go("sliding window of slots", LIMIT, LIMIT),
    "lua": by_redis,
    "uber": by_go("leaky bucket, waits", UBER_PER_S, 1),
}


def logged(name: str, log: list[list[int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(CLOCK_BOOTTIME at the call, when let go, what the limiter read of the wall clock, who was let go at once), in
    the order in which it decided.

    uber's log has when each was let go. Without slack who waits is let go one interval after the one before, to the
    nanosecond, and who does not when it came.
    """
    asked_at, wall, output, *ended = np.array(log).T
    if name != "uber":
        return asked_at, ended[0] if ended else asked_at, wall, output.astype(bool)
    order = np.argsort(output, kind="stable")
    asked_at, wall, output = asked_at[order], wall[order], output[order]
    at_once = np.append(True, np.diff(output) != S // UBER_PER_S)
    return asked_at, asked_at + np.where(at_once, 0, output - wall), np.where(at_once, output, wall), at_once


def stepped(boot: np.ndarray, wall: np.ndarray, step: tuple[int, int], size: int) -> np.ndarray:
    """Which decisions read the clock after the step that was made between ``step``: of those that began within it by
    what they read.
    """
    before, after = step
    offset = wall - boot
    usual = np.median(offset[(boot < before) & (boot > before - 5 * S)])
    near = (boot > before - S) & (boot <= after)
    return (boot > after) | (near & (np.abs(offset - usual - size) < abs(size) / 2))


def compared(seen: dict[str, Any]) -> list[dict[str, Any]]:
    """A row a limiter and step: over-admitted and wrongly refused as tickscope counts them, and as its own code
    does.
    """
    found = []
    for name in LIMITERS:
        boot, ended, wall, admitted = logged(name, seen["decisions"][name])
        for step, size in zip(seen["steps"], STEPS_NS, strict=True):
            after = stepped(boot, wall, step, size)
            reported = [
                row for row in seen["replay"] if which(row) == name and step[0] <= row["jump_t_ns"] <= step[1] + S
            ]
            one: dict[str, Any] = {"limiter": name, "jump": f"{size / S:+g} s"}
            if len(reported) != 1:
                none = not reported and not after.any()
                found.append(one | {"verdict": "nobody was let go" if none else f"DIFFERS: {len(reported)} rows"})
                continue
            row = reported[0]
            quiet = DECIDE[name](wall - size * after)
            meant = after & (ended <= row["until_ns"])
            one |= {
                "decisions": row["decisions"],
                "over": row["over_admitted"],
                "wrong": row["wrongly_refused"],
                "over_true": int((admitted & ~quiet)[meant].sum()),
                "wrong_true": int((~admitted & quiet)[meant].sum()),
                "quality": row["quality"] + (f": {row['reason']}" if row["reason"] else ""),
            }
            same = (one["over"], one["wrong"]) == (one["over_true"], one["wrong_true"])
            whole = one["decisions"] == meant.sum()
            one["verdict"] = "same" if same and whole else f"DIFFERS: of {meant.sum()}"
            found.append(one)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.vm.steps", description=__doc__)
    parser.add_argument("kernel", nargs="?", choices=kernels.SUITES, default="6.1", help="%(default)s")
    parser.add_argument("--seen", type=Path, help="compare what an earlier run has left here; else leave it here")
    given = parser.parse_args()
    program = go_program("go.mod")
    if given.seen and given.seen.exists():
        seen = json.loads(given.seen.read_text())
    else:
        with tempfile.TemporaryDirectory() as scratch:
            command = [sys.executable, "-m", "tests.vm.guest_steps", "/run/out/seen.json", str(program)]
            done = machine.run(given.kernel, command, limit_s=1200, cwd=CHECKOUT, out=Path(scratch), echo=True)
            if done.status:
                print(done.output[-4000:], done.console[-4000:], file=sys.stderr)
            if done.status != 0:
                return done.status or 4
            text = (Path(scratch) / "seen.json").read_text()
        if given.seen:
            given.seen.write_text(text)
        seen = json.loads(text)
    rows = compared(seen)
    emit_rows(rows, "table", COLUMNS)
    if seen["lost"]:
        print(f"lost meanwhile: {seen['lost']}", file=sys.stderr)
    return int(any(row["verdict"].startswith("DIFFERS") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
