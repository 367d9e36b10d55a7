"""One clock change, from all records and readings about it, and its kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.clock import timex
from agent.clock.calls import Call
from agent.clock.sample import Reading
from agent.clock.timex import Timex

if TYPE_CHECKING:
    import numpy as np

#: A pending slew only shrinks by itself. If it grows by more than this, it is a new slew.
_SLEW_NS = 2_000
#: Largest frequency correction (MAXFREQ). A clock that is set to run faster or slower than this is being slewed.
_MAX_FREQUENCY_PPB = 500_000


@dataclass
class Change:
    """A future row of ``clock_change``; None is unknown. record: the wire record with the actor. cut_err_ns: error
    bound of the new REALTIME - BOOTTIME.
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
    """False for a call that writes the status without changing it. All other calls get a row."""
    return change.flags != 0 or (call.ret is not None and call.ret < 0)


def flag_kind(flags: int) -> str:
    return "leap" if flags & timex.LEAP_FLAGS else "unsync"


def tai_real_ns(reading: Reading) -> int:
    """TAI - REALTIME, whole seconds."""
    return round((reading.tai_mono_ns - reading.real_mono_ns) / 1e9) * 1_000_000_000


def new_slew(state: Timex, was_left: tuple[int, int]) -> int:
    """The pending slew (ADJ_OFFSET's and adjtime's) if it is more than before, else 0."""
    for left, was in zip((state.offset_ns, state.adjust_ns), was_left, strict=True):
        if abs(left) > abs(was) + _SLEW_NS or left * was < 0:
            return left
    return 0
