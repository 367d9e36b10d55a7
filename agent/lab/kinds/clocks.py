"""The wall clock: moved by half a millisecond at most where the user allows it; by hours, or to another rate, on
throwaway machines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from agent.common.resp import RedisUrl, RespClient
from agent.demo import clock_part
from agent.lab.kind import Fault, Kind, Offender, Right, Size
from agent.lab.programs.limiter_redis import KEY
from agent.lab.programs.redis_server import PLACES, PORT
from agent.lab.stage import wallclock
from agent.lab.stage.stage import GUESTS, Stage

ACTOR, CLOCK = "lab-clock", "wall clock"  # as in findings
_STEP, _SLEW = (Right("clock_step", culprit=True),), (Right("clock_slew", culprit=True),)
#: Programs that depend on the clock declare ``uses=("clock",)``. A clock change makes no operation slow.
_CLOCK, _IMPACT_KINDS = ("clock",), ("failed", "refused")


def _by_another(stage: Stage, move: Callable[[], None]) -> int:
    """Forks a process for the change, and returns its pid. Raises OSError if it failed."""
    pid = stage.processes.fork(move, GUESTS, "node", ACTOR, root=True)
    _, status = os.waitpid(pid, 0)
    if status:
        raise OSError("the clock could not be moved (see logs/errors.txt)")
    return pid


@contextmanager
def stepped(stage: Stage, fault: Fault) -> Iterator[Offender]:
    """Steps the clock, and back at the end."""
    size_us = min(clock_part.LIMIT_US, int(fault.size)) * (1 if fault.target == "forward" else -1)
    pids = [_by_another(stage, lambda: clock_part.step(size_us))]
    try:
        yield Offender(ACTOR, CLOCK, tuple(pids))
    finally:
        _by_another(stage, lambda: clock_part.step(-size_us))


def stepped_for_good(sign: int) -> Callable[[Stage, Fault], AbstractContextManager[Offender]]:
    """Steps the clock without a way back, which would be another fault in the other direction. Limiters whose window
    now lies ahead would refuse until then, so their state is deleted.
    """

    @contextmanager
    def inject(stage: Stage, fault: Fault) -> Iterator[Offender]:
        pid = _by_another(stage, lambda: wallclock.step(sign * fault.size))
        try:
            yield Offender(ACTOR, CLOCK, (pid,))
        finally:
            for name in PLACES.keys() & stage.programs.keys():
                _forget(stage, name)

    return inject


def _forget(stage: Stage, redis: str) -> None:
    def report() -> None:
        RespClient(RedisUrl.parse(f"redis://{PLACES[redis]}:{PORT}/0"), timeout_s=10).pipeline([("DEL", KEY)])

    os.waitpid(stage.processes.fork(report, GUESTS, stage.programs[redis].space, "lab-operator", root=False), 0)


def slewed(sign: int) -> Callable[[Stage, Fault], AbstractContextManager[Offender]]:
    @contextmanager
    def inject(stage: Stage, fault: Fault) -> Iterator[Offender]:
        pid = _by_another(stage, lambda: wallclock.slew(sign * fault.size))
        try:
            yield Offender(ACTOR, CLOCK, (pid,))
        finally:
            _by_another(stage, lambda: wallclock.slew(0))

    return inject


_FAR, _RATE = Size("s", 2.0, 4 * 3600.0), Size("ppm", 50_000, wallclock.MOST_PPM)
KINDS = (
    Kind(
        "clock_step",
        "the wall clock is stepped, and back",
        Size("us", 100, clock_part.LIMIT_US),
        ("forward", "back"),
        _STEP,
        stepped,
        (1.0, 3.0),
        ("step_clock",),
        touches={"forward": _CLOCK, "back": _CLOCK},
        impacts=_IMPACT_KINDS,
    ),
    Kind(
        "clock_step_forward",
        "the wall clock is stepped forward, by up to hours",
        _FAR,
        _CLOCK,
        _STEP,
        stepped_for_good(1),
        (2.0, 3.0),
        ("throwaway_vm",),
        impacts=_IMPACT_KINDS,
    ),
    Kind(
        "clock_step_back",
        "the wall clock is stepped back, by up to hours",
        _FAR,
        _CLOCK,
        _STEP,
        stepped_for_good(-1),
        (2.0, 3.0),
        ("throwaway_vm",),
        impacts=_IMPACT_KINDS,
    ),
    Kind(
        "clock_slew_fast",
        "the clocks run too fast",
        _RATE,
        _CLOCK,
        _SLEW,
        slewed(1),
        (6.0, 10.0),
        ("throwaway_vm",),
        impacts=_IMPACT_KINDS,
    ),
    Kind(
        "clock_slew_slow",
        "the clocks run too slowly",
        _RATE,
        _CLOCK,
        _SLEW,
        slewed(-1),
        (6.0, 10.0),
        ("throwaway_vm",),
        impacts=_IMPACT_KINDS,
    ),
)
