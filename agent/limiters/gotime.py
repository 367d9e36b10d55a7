"""Go's time.Time as its two words. Pure.

time/time.go: bit 63 of wall is set if there is a monotonic reading. Then wall has seconds since 1885 in 33 bits and
nanoseconds in 30, and ext is the monotonic reading. Otherwise wall is the nanoseconds and ext the seconds since the
year 1.
"""

from __future__ import annotations

import numpy as np

from agent.columns import NULL_I64

_MONOTONIC, _SECONDS, _NANOSECONDS = np.uint64(1 << 63), np.uint64((1 << 33) - 1), np.uint64((1 << 30) - 1)
_FROM_1885_S, _FROM_YEAR_1_S = 2_682_288_000, 62_135_596_800
_MAX_S = 9_200_000_000


def is_monotonic(wall: np.ndarray) -> np.ndarray:
    """Whether time.Time values (their first words, shape (n,) u64) have a monotonic reading; bool (n,)."""
    found: np.ndarray = wall & _MONOTONIC != 0
    return found


def unix_ns(wall: np.ndarray, ext: np.ndarray) -> np.ndarray:
    """Wall time of time.Time values, Unix ns, i64 (n,); unknown if it does not fit (the zero time)."""
    since_1885 = ((wall >> np.uint64(30)) & _SECONDS).astype(np.int64) - _FROM_1885_S
    since_year_1 = np.clip(ext.astype(np.int64), -(2**62), 2**62) - _FROM_YEAR_1_S
    seconds = np.where(is_monotonic(wall), since_1885, since_year_1)
    known = np.abs(seconds) < _MAX_S
    whole = np.where(known, seconds, 0) * 1_000_000_000 + (wall & _NANOSECONDS).astype(np.int64)
    return np.where(known, whole, NULL_I64)


def elapsed_ns(to_wall: np.ndarray, to_ext: np.ndarray, wall: np.ndarray, ext: np.ndarray) -> np.ndarray:
    """to - from, as Go's Time.Sub: by the monotonic readings if both have one; i64 (n,) or unknown."""
    both = is_monotonic(to_wall) & is_monotonic(wall)
    if both.all():
        return to_ext.astype(np.int64) - ext.astype(np.int64)
    end, start = unix_ns(to_wall, to_ext), unix_ns(wall, ext)
    known = both | ((end != NULL_I64) & (start != NULL_I64))
    difference = np.where(both, to_ext.astype(np.int64) - ext.astype(np.int64), end - start)
    return np.where(known, difference, NULL_I64)
