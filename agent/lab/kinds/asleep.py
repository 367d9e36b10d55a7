"""A server with threads that have read requests and sleep: for a lock of its own, or in nanosleep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agent.lab.kind import Fault, Kind, Offender, Right, Size
from agent.lab.kinds.workers import setting_fault
from agent.lab.stage.stage import Stage


@contextmanager
def held(stage: Stage, fault: Fault) -> Iterator[Offender]:
    """Holds the lock once, for the fault's size."""
    stage.processes.set_settings(fault.target, hold_s=fault.size, now=True)
    try:
        yield Offender(fault.target)
    finally:
        stage.processes.set_settings(fault.target, hold_s=stage.programs[fault.target].settings["hold_s"], now=False)


KINDS = (
    Kind(
        "lock_inside",
        "a thread of a server sleeps with a lock that all of its answers need",
        Size("duration_s", 1.5, 6.0),
        ("till",),
        (Right("asleep", "futex", culprit=True), Right("process_wait", "clock_nanosleep", culprit=True)),
        held,
    ),
    Kind(
        "handler_sleeps",
        "a server sleeps before each of its answers",
        Size("sleep_s", 0.6, 4.0),
        ("desk",),
        (Right("process_wait", "clock_nanosleep", culprit=True), Right("asleep", "clock_nanosleep", culprit=True)),
        setting_fault("sleep_s", lambda f, _: f.size),
        (4.0, 8.0),
        settle_s=3.0,
    ),
)
