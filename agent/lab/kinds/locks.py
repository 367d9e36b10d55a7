"""A lock that another process holds for long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agent.lab.kind import Fault, Kind, Offender, Right, Size
from agent.lab.stage.stage import Stage


@contextmanager
def held(stage: Stage, fault: Fault) -> Iterator[Offender]:
    """Holds the lock once, for the fault's size."""
    stage.processes.set_settings(fault.target, hold_s=fault.size, now=True)
    try:
        yield Offender(fault.target, str(stage.shared / f"state.{fault.target.removeprefix('hold-')}"))
    finally:
        stage.processes.set_settings(fault.target, hold_s=0.0005, now=False)


@contextmanager
def convoy(stage: Stage, fault: Fault) -> Iterator[Offender]:
    """Takes the lock again and again for the fault's size, with next to no time between: other users queue up."""
    stage.processes.set_settings(fault.target, hold_s=fault.size, every_s=0.001)
    try:
        yield Offender(fault.target, str(stage.shared / f"state.{fault.target.removeprefix('hold-')}"))
    finally:
        stage.processes.set_settings(fault.target, **stage.programs[fault.target].settings)


_TOUCHES = {"hold-flock": ("state.flock",), "hold-posix": ("state.posix",)}
CONVOY = Kind(
    "lock_convoy",
    "another process takes a lock again and again",
    Size("hold_s", 0.02, 0.4),
    ("hold-flock", "hold-posix"),
    (Right("process_wait", "clock_nanosleep", culprit=True), Right("syscall", culprit=True)),
    convoy,
    (3.0, 6.0),
    touches=_TOUCHES,
)
FLOCK = Kind(
    "flock_held",
    "another process holds a file lock (flock)",
    Size("duration_s", 0.35, 5.0),
    ("hold-flock",),
    (Right("process_wait", "clock_nanosleep", culprit=True), Right("syscall", "flock", culprit=True)),
    held,
    touches=_TOUCHES,
)
POSIX = Kind(
    "posix_lock_held",
    "another process holds a record lock (fcntl)",
    Size("duration_s", 0.35, 5.0),
    ("hold-posix",),
    (Right("process_wait", "clock_nanosleep", culprit=True), Right("syscall", "fcntl", culprit=True)),
    held,
    touches=_TOUCHES,
)
