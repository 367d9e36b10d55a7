"""Segments of the offset history, from samples and cuts: the times at which each REALTIME - BOOTTIME held. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.columns import NULL_I64

_MOST = 2**62  # the sum of two such values fits an int64


@dataclass(frozen=True)
class Segments:
    """start_ns (BOOTTIME), real_boot_ns (REALTIME - BOOTTIME), err_ns, each shape (k,). known_ns: the last time that
    the offset was seen.
    """

    start_ns: np.ndarray
    real_boot_ns: np.ndarray
    err_ns: np.ndarray
    known_ns: np.ndarray

    @property
    def moved_ns(self) -> np.ndarray:
        """Absolute size of the step at the end of each segment, 0 for the last, shape (k,)."""
        return np.append(np.minimum(np.abs(np.diff(self.real_boot_ns)), _MOST), 0)

    def error(self, i: np.ndarray, t_ns: np.ndarray) -> np.ndarray:
        """Error bound in segments i at times t. Includes the step where either offset may have held."""
        err, moved, last = np.minimum(self.err_ns, _MOST), self.moved_ns, len(self.err_ns) - 1
        after, before = np.minimum(i + 1, last), np.maximum(i - 1, 0)
        late = np.where((i < last) & (t_ns >= self.known_ns[i]), moved[i] + err[after], 0)
        early = np.where((i > 0) & (t_ns < self.start_ns[i]), moved[before] + err[before], 0)
        return np.asarray(np.maximum(err[i], np.maximum(late, early)))


def segments(rows: np.ndarray) -> Segments:
    """The segments of ``clock_offset`` rows in order of time. Raises ValueError if there is none."""
    if not len(rows):
        raise ValueError("the offset history is empty")
    t = rows["t_ns"]
    offset = rows["real_mono_ns"] - rows["boot_mono_ns"]
    err = np.where(rows["err_ns"] == NULL_I64, 0, rows["err_ns"])
    low, high = offset - err, offset + err
    new = rows["cut"] == 1
    new[0] = True
    starts = np.flatnonzero(new)
    contradicted = np.maximum.reduceat(low, starts) > np.minimum.reduceat(high, starts)
    ends = np.append(starts[1:], len(rows))
    for start, end in zip(starts[contradicted], ends[contradicted], strict=True):
        _split(new, low, high, int(start), int(end))
    starts = np.flatnonzero(new)
    lowest, highest = np.maximum.reduceat(low, starts), np.minimum.reduceat(high, starts)
    last = np.append(starts[1:], len(rows)) - 1
    # A cut's instant is known, and the offset before it held until then. Before a contradiction the offset was last
    # seen at its last sample.
    following_cut = np.append(rows["cut"][starts[1:]] == 1, False)
    known = np.where(following_cut, np.append(t[starts[1:]], 0), t[last])
    return Segments(t[starts], lowest + (highest - lowest) // 2, (highest - lowest + 1) // 2, known)


def _split(new: np.ndarray, low: np.ndarray, high: np.ndarray, start: int, end: int) -> None:
    """Marks where samples contradict the ones before them."""
    lows, highs = low[start:end].tolist(), high[start:end].tolist()
    lowest, highest = lows[0], highs[0]
    for i, (a, b) in enumerate(zip(lows, highs, strict=True)):
        lowest, highest = max(lowest, a), min(highest, b)
        if lowest > highest:
            new[start + i] = True
            lowest, highest = a, b
