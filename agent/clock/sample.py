"""Offsets between the clocks, each read inside two readings of CLOCK_MONOTONIC: half the width bounds the error.

numpy is imported only for rows and slopes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from agent.clock.timex import Timex

if TYPE_CHECKING:
    import numpy as np

_ROUNDS = 5
_MONO, _REAL, _BOOT, _RAW = time.CLOCK_MONOTONIC, time.CLOCK_REALTIME, time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC_RAW
_TAI = time.CLOCK_TAI


class Reading(NamedTuple):
    """All offsets in ns at t_ns (CLOCK_BOOTTIME). err_ns bounds the error of each, and of REALTIME - BOOTTIME."""

    t_ns: int
    real_mono_ns: int
    boot_mono_ns: int
    mono_raw_ns: int
    tai_mono_ns: int
    err_ns: int

    @property
    def real_boot_ns(self) -> int:
        """REALTIME - BOOTTIME, which a suspend does not move."""
        return self.real_mono_ns - self.boot_mono_ns


def read() -> Reading:
    """Reads all clocks in about 6 us. Nothing else runs between two readings, since that would widen the bound."""
    now = time.clock_gettime_ns
    best = [(1 << 62, 0)] * 4
    for _ in range(_ROUNDS):
        m = [now(_MONO), now(_REAL), now(_MONO), now(_BOOT), now(_MONO), now(_RAW), now(_MONO), now(_TAI), now(_MONO)]
        for i in range(4):
            before, there, after = m[2 * i], m[2 * i + 1], m[2 * i + 2]
            width = after - before
            if width < best[i][0]:
                best[i] = (width, there - before - width // 2)
    (real_width, real), (boot_width, boot), (raw_width, raw), (tai_width, tai) = best
    return Reading(m[-1] + boot, real, boot, -raw, tai, (boot_width + max(real_width, raw_width, tai_width)) // 2 + 1)


def row(reading: Reading, timex: Timex, *, cut: bool, synchronised: bool) -> np.ndarray:
    """One row of table ``clock_offset``, shape (1,). synchronised: by the kernel's flag or a time daemon's report."""
    from agent.tables import TABLES

    out = TABLES["clock_offset"].empty(1)
    for name, value in reading._asdict().items():
        out[name] = value
    out["freq_ppb"], out["tick_us"], out["status"] = timex.freq_ppb, timex.tick_us, timex.status
    out["maxerror_us"], out["tai_s"], out["cut"] = timex.maxerror_us, timex.tai_s, cut
    out["ntp_offset_ns"], out["esterror_us"] = timex.offset_ns, timex.esterror_us
    out["leap_indicator"], out["synchronised"] = timex.leap_indicator(synchronised), synchronised
    return out


def drift_ppb(t_ns: np.ndarray, mono_raw_ns: np.ndarray) -> float:
    """Rate of REALTIME against MONOTONIC_RAW in ppb; NaN for fewer than two points. (Between steps REALTIME and
    MONOTONIC have the same rate.)

    Theil-Sen: the median slope over all pairs, robust to single bad readings. Uses the last 128 points at most.
    """
    import numpy as np

    t, y = np.asarray(t_ns[-128:], np.float64), np.asarray(mono_raw_ns[-128:] - mono_raw_ns[-1:], np.float64)
    i, j = np.triu_indices(len(t), 1)
    apart = t[j] - t[i]
    usable = apart > 0
    if not usable.any():
        return float("nan")
    return float(np.median((y[j] - y[i])[usable] / apart[usable]) * 1e9)
