"""adjtimex(2): reading the kernel's clock discipline without changing it, and decoding what others asked for.

Layout of struct timex and the constants: include/uapi/linux/timex.h, 64-bit. Standard library only.
"""

from __future__ import annotations

import ctypes as ct
import os
import struct
from functools import cache
from typing import NamedTuple

_TIMEX = struct.Struct("<I4xqqqqi4xqqqqqqqqi4xqqqqqi44x")
MODES = {
    0x0001: "OFFSET", 0x0002: "FREQUENCY", 0x0004: "MAXERROR", 0x0008: "ESTERROR", 0x0010: "STATUS", 0x0020: "TIMECONST",
    0x0080: "TAI", 0x0100: "SETOFFSET", 0x1000: "MICRO", 0x2000: "NANO", 0x4000: "TICK",
}  # fmt: skip
OFFSET, FREQUENCY, STATUS, TAI, SETOFFSET, NANO, TICK = 0x1, 0x2, 0x10, 0x80, 0x100, 0x2000, 0x4000
ADJTIME, SINGLESHOT = 0x8000, 0x8001
STA_INS, STA_DEL, STA_UNSYNC, STA_NANO = 0x10, 0x20, 0x40, 0x2000
NOMINAL_TICK_US = 10_000


class Timex(NamedTuple):
    """What adjtimex(modes=0) says. freq_scaled: ppm times 2^16, before tick; state: TIME_OK 0 ... TIME_ERROR 5."""

    freq_scaled: int
    tick_us: int
    status: int
    maxerror_us: int
    offset_ns: int
    tai_s: int
    state: int

    @property
    def freq_ppb(self) -> int:
        return freq_ppb(self.freq_scaled, self.tick_us)


def freq_ppb(scaled: int, tick_us: int) -> int:
    """Frequency correction of freq and tick together: a tick of 1 us in 10,000 is 100 ppm."""
    return round(scaled * 1000 / 65536) + (tick_us - NOMINAL_TICK_US) * 100_000


def read() -> Timex:
    """The discipline's state now. Raises OSError."""
    buffer = ct.create_string_buffer(_TIMEX.size)
    state = _libc().adjtimex(buffer)
    if state < 0:
        raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))
    fields = _TIMEX.unpack(buffer.raw)
    offset, freq, maxerror, _, status = fields[1:6]
    tick, tai = fields[11], fields[20]
    return Timex(freq, tick, status, maxerror, offset if status & STA_NANO else offset * 1000, tai, state)


@cache
def _libc() -> ct.CDLL:
    return ct.CDLL(None, use_errno=True)


def mode_names(modes: int) -> str:
    """For example ``FREQUENCY|STATUS``; adjtime(3)'s mode is ``SINGLESHOT``."""
    if modes & ADJTIME:
        return "SINGLESHOT"
    return "|".join(name for bit, name in MODES.items() if modes & bit)
