"""adjtimex(2): reads the kernel's clock discipline without changing it, and decodes requests of other programs.

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
    0x0001: "OFFSET",
    0x0002: "FREQUENCY",
    0x0004: "MAXERROR",
    0x0008: "ESTERROR",
    0x0010: "STATUS",
    0x0020: "TIMECONST",
    0x0080: "TAI",
    0x0100: "SETOFFSET",
    0x1000: "MICRO",
    0x2000: "NANO",
    0x4000: "TICK",
}
OFFSET, FREQUENCY, STATUS, TAI, SETOFFSET, NANO, TICK = 0x1, 0x2, 0x10, 0x80, 0x100, 0x2000, 0x4000
ADJTIME, SINGLESHOT = 0x8000, 0x8001
_SINGLESHOT_READ = 0xA001
STA_INS, STA_DEL, STA_UNSYNC, STA_NANO = 0x10, 0x20, 0x40, 0x2000
_FLAGS = {STA_INS: "INS", STA_DEL: "DEL", STA_UNSYNC: "UNSYNC"}
LEAP_FLAGS = STA_INS | STA_DEL
FLAGS = LEAP_FLAGS | STA_UNSYNC
NOMINAL_TICK_US = 10_000
#: The kernel refuses more: a tick 10 % off (USER_HZ is 100), a frequency that overflows in ns (PPM_SCALE).
_TICK_OFF_US, _FREQ_MOST = 1_000, (2**63 - 1) // 65_536_000


class Timex(NamedTuple):
    """adjtimex's result. freq_scaled: ppm times 2^16, without tick. state: TIME_OK 0 ... TIME_ERROR 5.

    offset_ns, adjust_ns: pending slew of ADJ_OFFSET and of adjtime(3).
    """

    freq_scaled: int
    tick_us: int
    status: int
    maxerror_us: int
    offset_ns: int
    tai_s: int
    state: int
    adjust_ns: int = 0
    esterror_us: int = 0

    @property
    def discipline(self) -> tuple[int, int, int, int]:
        """freq_scaled, tick_us, status, tai_s."""
        return self.freq_scaled, self.tick_us, self.status, self.tai_s

    @property
    def synchronised(self) -> bool:
        """Whether the kernel's flag says so. A daemon may keep the clock without setting it: chrony without rtcsync."""
        return not self.status & STA_UNSYNC

    def leap_indicator(self, synchronised: bool) -> int:
        """The leap indicator of NTP (RFC 5905, figure 9): 0 none, 1 insert a second, 2 delete one, 3 not
        synchronised.
        """
        return 3 if not synchronised else 1 if self.status & STA_INS else 2 if self.status & STA_DEL else 0

    @property
    def freq_ppb(self) -> int:
        return freq_ppb(self.freq_scaled, self.tick_us)


def freq_ppb(scaled: int, tick_us: int) -> int:
    """Frequency correction of freq and tick together: 1 us of tick in 10,000 is 100 ppm."""
    return round(scaled * 1000 / 65536) + (tick_us - NOMINAL_TICK_US) * 100_000


def read() -> Timex:
    """The discipline's state now. Raises OSError."""
    adjust = _call(_SINGLESHOT_READ)[1][1] * 1000
    state, fields = _call(0)
    offset, freq, maxerror, esterror, status = fields[1:6]
    tick, tai = fields[11], fields[20]
    return Timex(
        freq, tick, status, maxerror, offset if status & STA_NANO else offset * 1000, tai, state, adjust, esterror
    )


def _call(modes: int) -> tuple[int, tuple[int, ...]]:
    buffer = ct.create_string_buffer(struct.pack("<I", modes), _TIMEX.size)
    state = _libc().adjtimex(buffer)
    if state < 0:
        raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))
    return state, _TIMEX.unpack(buffer.raw)


@cache
def _libc() -> ct.CDLL:
    return ct.CDLL(None, use_errno=True)


def valid(modes: int, part: int, freq: int, tick: int) -> bool:
    """Whether the kernel accepts the request of a privileged caller: timekeeping_validate_timex(), which checks the
    privilege before the arguments. part: ADJ_SETOFFSET's part beyond whole seconds, in ns or us.
    """
    if modes & ADJTIME:
        return True
    if modes & TICK and abs(tick - NOMINAL_TICK_US) > _TICK_OFF_US:
        return False
    if modes & SETOFFSET and not 0 <= part < (1_000_000_000 if modes & NANO else 1_000_000):
        return False
    return not modes & FREQUENCY or abs(freq) <= _FREQ_MOST


def flag_names(before: int, after: int) -> str:
    """The leap and synchronisation flags of status that changed, for example ``-UNSYNC +INS``; empty if none."""
    return " ".join(("+" if after & bit else "-") + name for bit, name in _FLAGS.items() if (before ^ after) & bit)


def mode_names(modes: int) -> str:
    """For example ``FREQUENCY|STATUS``; adjtime(3)'s mode is ``SINGLESHOT``."""
    if modes & ADJTIME:
        return "SINGLESHOT"
    return "|".join(name for bit, name in MODES.items() if modes & bit)
