"""One change of a clock, as the join of all views finds it, and of which kind it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.clock import timex
from agent.clock.calls import Call
from agent.clock.sample import Reading
from agent.clock.timex import Timex

if TYPE_CHECKING:
    import numpy as np

#: What is left of a slew shrinks by itself; more than this above what was left is a new one.
_SLEW_NS = 2_000
#: The most that a frequency correction may be (MAXFREQ); a clock set to run faster or slower than that is being slewed.
_MAX_FREQUENCY_PPB = 500_000


@dataclass
class Change:
    """A row of ``clock_change`` to be; None is unknown. record: the wire record with the actor. cut_err_ns: of the new
    REALTIME - BOOTTIME.
    """

    t_ns: int
    kind: str
    record: np.void | None = None
    via: str = "none"
    modes: str = ""
    requested_ns: int | None = None
    size_ns: int | None = None
    err_ns: int | None = None
    real_mono_before_ns: int | None = None
    real_mono_after_ns: int | None = None
    freq_before_ppb: int | None = None
    freq_after_ppb: int | None = None
    ret: int | None = None
    unwatched_ns: int | None = None
    cut_err_ns: int = 0
    flags: int = -1


def kind_of(call: Call, moved: bool) -> str:
    if moved or call.steps:
        return "step"
    if call.modes & timex.ADJTIME or (call.asked_ns is not None and call.modes & timex.OFFSET):
        return "slew"
    if call.modes & timex.TAI:
        return "tai"
    if call.modes & (timex.FREQUENCY | timex.TICK):
        return "frequency"
    return "unsync"


def rate_kind(*ppb: int | None) -> str:
    return "slew" if max(abs(p or 0) for p in ppb) > _MAX_FREQUENCY_PPB else "frequency"


def is_worth(call: Call, change: Change) -> bool:
    """A status that is written as it was moves nothing; everything else did, or tried to."""
    return change.flags != 0 or (call.ret is not None and call.ret < 0)


def flag_kind(flags: int) -> str:
    return "leap" if flags & timex.LEAP_FLAGS else "unsync"


def tai_real_ns(reading: Reading) -> int:
    """TAI - REALTIME, whole seconds."""
    return round((reading.tai_mono_ns - reading.real_mono_ns) / 1e9) * 1_000_000_000


def new_slew(state: Timex, was_left: tuple[int, int]) -> int:
    """What is left to slew, where that is more than was left (ADJ_OFFSET's and adjtime's), else 0."""
    for left, was in zip((state.offset_ns, state.adjust_ns), was_left, strict=True):
        if abs(left) > abs(was) + _SLEW_NS or left * was < 0:
            return left
    return 0
