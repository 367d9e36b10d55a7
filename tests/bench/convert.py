"""Converting times across steps: ``python -m tests.bench.convert [--times N] [--steps N]``. On one core.

The agent's offset history, with error bounds and states, against numpy.interp on the same corners, which gives one
number, no bound, and in doubles (256 ns apart for Unix times). Times all over the history in no order, and in order, as
rows of a table come; both ways. Before that, what a history of 5,000 steps and one of a year with a step each minute
cost to make and to keep.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from agent.clock.clock_source import _COMPACT_ROWS, MOST_SEGMENTS
from agent.clock.history import AMBIGUOUS, SKIPPED, Converted, History
from agent.tables import TABLES
from tests.bench.common import Figure, arguments, interleaved, ratio, report

_S = 1_000_000_000
_WALL = 1_800_000_000 * _S
_LENGTH_NS = 86_400 * _S
#: What it took when a loop of Python went over all segments.
_LOOP = {5_000: "0.09 s, 8 MB", 525_600: "280 s, 634 MB"}


def history(steps: int, rng: np.random.Generator) -> tuple[History, np.ndarray, np.ndarray]:
    """A day with steps of up to a second, half of them back; (it, starts, offsets of its segments)."""
    starts = np.append(0, np.sort(rng.choice(_LENGTH_NS // _S - 1, steps, replace=False) + 1)) * _S
    offsets = _WALL + np.cumsum(np.append(0, rng.integers(-_S, _S, steps)))
    rows = TABLES["clock_offset"].empty(len(starts))
    rows["t_ns"], rows["real_mono_ns"], rows["boot_mono_ns"], rows["err_ns"], rows["cut"] = starts, offsets, 0, 100, 1
    return History.from_rows(rows), starts, offsets


def took_s(convert: Callable[[np.ndarray], object], times: np.ndarray) -> float:
    start = time.perf_counter()
    convert(times)
    return time.perf_counter() - start


def check(got: Converted, times: np.ndarray, starts: np.ndarray, offsets: np.ndarray) -> None:
    """Every wall time, the plain way."""
    if not (got.ns == times + offsets[np.searchsorted(starts, times, "right") - 1]).all():
        raise SystemExit("wrong wall times: the figure does not count")


def building(steps: int) -> None:
    """A history of so many steps, one a minute: what it takes to make it convert both ways, and the memory that it
    grows by.
    """
    t = np.arange(steps + 1) * 60 * _S
    rows = TABLES["clock_offset"].empty(steps + 1)
    rows["t_ns"], rows["boot_mono_ns"], rows["err_ns"], rows["cut"] = t, 0, 100, 1
    rows["real_mono_ns"] = _WALL + np.cumsum(np.append(0, np.random.default_rng(1).integers(-_S, _S, steps)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    one = History.from_rows(rows)
    one.to_wall(t[:1])
    one.to_boot(t[:1] + _WALL)
    took = time.perf_counter() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    report(
        f"all rows of {steps:,} steps, ready for both ways",
        f"{took:.2f} s, {grown:.0f} MB",
        f"a loop over segments: {_LOOP.get(steps, '')}",
        "a year in seconds",
    )
    live, start = History(), time.perf_counter()
    for i in range(steps):
        live.append(rows[i : i + 1])
        if len(live) > _COMPACT_ROWS:
            live.compact(MOST_SEGMENTS)
    added = (time.perf_counter() - start) / steps
    start = time.perf_counter()
    live.to_wall(t[-1:])
    report(
        f"{steps:,} steps one by one, as the agent keeps them",
        f"{added * 1e6:.1f} us a step, then {(time.perf_counter() - start) * 1e3:.1f} ms to convert",
        "all kept, from 4,096 steps on: 83 ms a step",
        "bounded",
    )


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] == "--build":
        building(int(sys.argv[2]))
        return
    for steps in (5_000, 525_600):
        subprocess.run([sys.executable, "-m", "tests.bench.convert", "--build", str(steps)], check=True)
    given = arguments(__doc__, times=(10_000_000, "to convert"), steps=(100, "in the history"))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rng = np.random.default_rng(1)
    one, starts, offsets = history(given.steps, rng)
    shuffled = rng.integers(0, _LENGTH_NS, given.times)
    corners = np.repeat(starts, 2)[1:].astype(float), np.repeat(starts + offsets, 2)[1:]
    corners[1][1::2] = starts[1:] + offsets[:-1]  # just before each step
    corners = np.append(corners[0], _LENGTH_NS), np.append(corners[1], _LENGTH_NS + offsets[-1]).astype(float)
    check(one.to_wall(shuffled), shuffled, starts, offsets)
    for order, times in (("in no order", shuffled), ("in order", np.sort(shuffled))):
        walls = one.to_wall(times).ns
        states = one.to_boot(walls).state
        if (states == SKIPPED).any() or not (states == AMBIGUOUS).any():
            raise SystemExit(
                "a time that there was is told as skipped, or none as having occurred twice: the figure does not count"
            )
        took = interleaved(
            {
                "wall": lambda t=times: took_s(one.to_wall, t),
                "boot": lambda t=walls: took_s(one.to_boot, t),
                "interp": lambda t=times: took_s(lambda x: np.interp(x, *corners), t),
            },
            given.pairs,
        )
        for side, name in (("wall", "CLOCK_BOOTTIME to wall time"), ("boot", "wall time to CLOCK_BOOTTIME")):
            peer = f"numpy.interp, {ratio(took['interp'], took[side]).text('.2f')} x our time, no bounds, no states"
            report(
                f"{given.times:,} times {order}, {name}",
                f"{Figure(took[side]).text('.2f')} s",
                peer,
                "< 1 s on one core",
            )


if __name__ == "__main__":
    main()
