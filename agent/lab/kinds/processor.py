"""The CPU: taken by others, by priority or from another cgroup, or withheld by a quota."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from agent.lab.kind import Fault, Kind, Offender, Right, Size
from agent.lab.stage.stage import GUESTS, Stage

PERIOD_US = 200_000
HIGHEST, STEP = -20, 1.25  # each step of nice changes the CPU share by this factor


def _burn(nice: int) -> None:
    os.nice(nice)
    while True:
        pass


@contextmanager
def _cpu_hogs(stage: Stage, per_processor: float, nice: int, group: str = GUESTS) -> Iterator[Offender]:
    """Processes that never wait."""
    count = max(1, round(per_processor * (os.cpu_count() or 1)))
    pids = [stage.processes.fork(lambda: _burn(nice), group, "node", "lab-hog", root=True) for _ in range(count)]
    try:
        yield Offender("lab-hog", pids=tuple(pids))
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@contextmanager
def cpu_hogged(stage: Stage, fault: Fault) -> Iterator[Offender]:
    """Starts hogs in the target's own cgroup, since priority counts only within a cgroup. Uses as few hogs as reach the
    fault's size together.
    """
    count = math.ceil(fault.size / STEP**-HIGHEST)
    nice = round(-math.log(fault.size / count, STEP))
    with _cpu_hogs(stage, count, nice, stage.programs[fault.target].group or fault.target) as culprit:
        yield culprit


@contextmanager
def outweighed(stage: Stage, fault: Fault) -> Iterator[Offender]:
    """Hogs at normal priority, in a cgroup with the fault's size times the weight of the others."""
    found = stage.groups.controller("cpu", GUESTS)
    assert found is not None
    place, modern = found
    weight, usual = (place / "cpu.weight", 100) if modern else (place / "cpu.shares", 1024)
    weight.write_text(str(int(usual * fault.size)))
    try:
        with _cpu_hogs(stage, 2.0, 0) as culprit:
            yield culprit
    finally:
        weight.write_text(str(usual))


@contextmanager
def throttled(stage: Stage, fault: Fault) -> Iterator[Offender]:
    """The target's cgroup may run for the fault's share of each period."""
    found = stage.groups.controller("cpu", fault.target)
    assert found is not None
    place, modern = found
    quota = max(1000, int(fault.size * PERIOD_US))
    if modern:
        (place / "cpu.max").write_text(f"{quota} {PERIOD_US}")
    else:
        (place / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (place / "cpu.cfs_quota_us").write_text(str(quota))
    try:
        yield Offender(fault.target, place.name)
    finally:
        (place / ("cpu.max" if modern else "cpu.cfs_quota_us")).write_text(f"max {PERIOD_US}" if modern else "-1")


HOG = Kind(
    "cpu_hog",
    "others take the processors, by priority",
    Size("times", 90.0, 340.0),
    ("api-tls", "api-tls12", "api-redis", "api-http", "goapi"),
    (Right("cpu", "preempted", culprit=True), Right("cpu")),
    cpu_hogged,
    (2.0, 5.0),
)
OUTWEIGHED = Kind(
    "cpu_outweighed",
    "another cgroup takes the processors, by its share",
    Size("times", 16, 90),
    ("hogs",),
    HOG.right,
    outweighed,
    (2.0, 5.0),
    ("cpu",),
    touches={"hogs": ()},
)
THROTTLED = Kind(
    "cpu_throttled",
    "a cgroup's quota withholds the processor",
    Size("share", 0.02, 0.005),
    ("api-tables", "goapi", "api-tls"),
    (Right("cpu", "throttled"),),
    throttled,
    (3.0, 6.0),
    ("cpu",),
)
