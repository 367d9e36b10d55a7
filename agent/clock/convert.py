"""Converts times through the segments of an offset history, both ways. Pure and vectorised; history.py explains the
results.

A wall time has several answers where segments overlap on the wall clock (a step back), and none in a gap (a step
forward). So the wall clock is cut into pieces at all ends of segments. Each piece keeps the first and the last segment
that cover it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from agent.clock.lookup import Pieces, covering, put
from agent.clock.segments import Segments
from agent.columns import NULL_I64

EXACT, AMBIGUOUS, SKIPPED, EXTRAPOLATED = range(4)  # order of the derived column wall_state
_CHUNK = 1 << 14  # times whose intermediate arrays stay in the processor's cache
#: Later than any BOOTTIME (18 years). Adding it to the latest wall time that a kernel accepts does not overflow
#: (settimeofday(2): 2^63 ns less 30 years).
_FIRST, _LAST = -(2**59), 2**59
#: Error growth of an undisciplined clock per ns: the kernel's own bound (MAXFREQ, as for adjtimex's maxerror).
_DRIFT = 500e-6
#: The rate of steps is computed over at least this time: one step in the first minute is no trend.
_LEAST_NS = 60_000_000_000
_MOST, _NEVER = 2.0**62, 2**63 - 1


class Converted(NamedTuple):
    """Converted times, each an array of the input's shape.

    ns: the result. err_ns: its error bound, NULL_I64 for a time before the boot. state: i1 codes of ``wall_state``.
    alt_ns: the other result if ambiguous, else NULL_I64.
    """

    ns: np.ndarray
    err_ns: np.ndarray
    state: np.ndarray
    alt_ns: np.ndarray


class WatchedTimes(NamedTuple):
    """The interval in which the clock was watched (CLOCK_BOOTTIME), and the growth of an error bound per ns outside of
    it.
    """

    from_ns: int
    to_ns: int
    rate: float

    @classmethod
    def of(cls, from_ns: int, to_ns: int, moved_ns: float) -> WatchedTimes:
        """moved_ns: sum of the absolute sizes of all steps in that interval."""
        return cls(from_ns, to_ns, _DRIFT + moved_ns / max(to_ns - from_ns, _LEAST_NS))

    def widen(self, first: np.ndarray, last: np.ndarray, err: np.ndarray, state: np.ndarray) -> None:
        """Grows the error bounds of results outside of the interval, in place. Bounds before the boot are unknown.
        first, last: CLOCK_BOOTTIME of each result.
        """
        if self.from_ns <= first.min() and last.max() <= self.to_ns:
            return
        away = np.maximum(float(self.from_ns) - first, last - float(self.to_ns))
        out = (away > 0) & (state != SKIPPED)
        err[out] = np.minimum(err[out] + np.ceil(away[out] * self.rate), _MOST).astype(np.int64)
        err[out & (first < 0)] = NULL_I64
        state[out & (state == EXACT)] = EXTRAPOLATED


class WallLine:
    """The wall clock, cut at all ends of segments. The first segment starts at the boot."""

    def __init__(self, s: Segments) -> None:
        offset = s.real_boot_ns
        begin = np.append(0, s.start_ns[1:]) + offset
        earliest = np.append(0, s.known_ns[:-1]) + offset
        end = s.start_ns[1:] + offset[:-1]
        seen = np.append(s.start_ns[:1] + offset[:1], s.known_ns[:-1] + offset[:-1])  # where error bounds change
        edges = np.sort(np.concatenate([[_FIRST + offset[0]], begin, earliest, end, seen]))
        self.edges = edges[np.append(True, np.diff(edges) != 0)]  # np.unique takes ten times as long
        self.index, pieces = Pieces(self.edges), len(self.edges)
        self.begin, self.end = np.searchsorted(self.edges, begin), np.append(np.searchsorted(self.edges, end), pieces)
        earliest = np.searchsorted(self.edges, earliest)
        #: The first and last segment that held at each piece, and the first and last that may have held.
        self.held = covering(self.begin, self.end, pieces)
        self.may_have = self.held if (self.begin == earliest).all() else covering(earliest, self.end, pieces)
        #: The first segment that ended before each piece, if the next one cannot have begun before that end.
        self.left_out = covering(self.end[:-1], earliest[1:], pieces)[0]
        self.first_may = int(self.edges[earliest[1:].min()]) if len(end) else _NEVER


class ToWall:
    """CLOCK_BOOTTIME to wall time."""

    def __init__(self, s: Segments, wall: WallLine) -> None:
        n = len(s.start_ns)
        unsure = np.flatnonzero(
            s.known_ns[:-1] < s.start_ns[1:]
        )  # a step that was not observed: either offset may have held from then on
        edges = np.concatenate([[_FIRST], s.start_ns[1:], s.known_ns[unsure]])
        segment = np.concatenate([np.arange(n), unsure])
        order = np.lexsort((np.arange(len(edges)), edges))
        self._index, self._segment = Pieces(edges[order]), segment[order].astype(np.int32)
        self._shift, self._offset = s.real_boot_ns[self._segment], s.real_boot_ns
        self._err = s.error(self._segment, np.maximum(edges[order], s.start_ns[self._segment]))
        self._wall = wall
        first, last = self._wall.held
        twice = np.append(0, np.cumsum(first != last))
        self._twice: np.ndarray = (twice[self._wall.end] > twice[self._wall.begin])[self._segment]

    def convert(self, times: np.ndarray, watched: WatchedTimes) -> Converted:
        return _in_chunks(times, watched, self._convert)

    def _convert(
        self, watched: WatchedTimes, t: np.ndarray, ns: np.ndarray, err: np.ndarray, state: np.ndarray, alt: np.ndarray
    ) -> None:
        at = self._index.find(t)
        put(self._shift, at, ns)
        ns += t
        put(self._err, at, err)
        state.fill(EXACT)
        alt.fill(NULL_I64)
        twice = self._twice[at]
        if isinstance(at, int):
            if twice:
                self._others(slice(None), np.full(len(t), self._segment[at]), ns, state, alt)
        elif twice.any():
            some = np.flatnonzero(twice)
            self._others(some, self._segment[at[some]], ns, state, alt)
        watched.widen(t, t, err, state)

    def _others(
        self, some: slice | np.ndarray, segment: np.ndarray, ns: np.ndarray, state: np.ndarray, alt: np.ndarray
    ) -> None:
        """Finds which of ``some`` also occurred in another segment, and fills in that result."""
        wall = ns[some]
        piece = self._wall.index.find(wall)
        first, last = (held[piece] for held in self._wall.held)
        several = first != last
        other = np.where(segment == first, last, first)
        state[some] = np.where(several, AMBIGUOUS, EXACT)
        alt[some] = np.where(several, wall - self._offset[segment] + self._offset[other], NULL_I64)


class ToBoot:
    """Wall time to CLOCK_BOOTTIME. From edges[i] on, the result is time + shift[i]; in a skipped piece it
    is shift[i].
    """

    def __init__(self, s: Segments, wall: WallLine) -> None:
        offset = s.real_boot_ns
        edges, (first, last) = wall.edges, wall.may_have
        before = (first < 0) & (edges < min(wall.first_may, int(offset[0])))  # before the boot, by the first offset
        first, last = np.where(before, 0, first), np.where(before, 0, last)
        step = np.where((first < 0) & (wall.left_out >= 0), wall.left_out, 0)
        i, j = np.maximum(first, 0), np.maximum(last, 0)
        self._state = np.where(first < 0, SKIPPED, np.where(first != last, AMBIGUOUS, EXACT)).astype(np.int8)
        after = np.minimum(step + 1, len(offset) - 1)
        self._shift = np.where(first < 0, s.start_ns[after], -offset[i])
        unsure = s.start_ns[after] - s.known_ns[step] + np.maximum(s.err_ns[step], s.err_ns[after])
        self._err = np.where(
            first < 0, unsure, np.maximum(s.error(i, edges - offset[i]), s.error(j, edges - offset[j]))
        )
        self._alt = np.where(self._state == AMBIGUOUS, -offset[j], NULL_I64)
        self._skips = bool((self._state == SKIPPED).any())
        self._index = wall.index

    def convert(self, times: np.ndarray, watched: WatchedTimes) -> Converted:
        return _in_chunks(times, watched, self._convert)

    def _convert(
        self, watched: WatchedTimes, t: np.ndarray, ns: np.ndarray, err: np.ndarray, state: np.ndarray, alt: np.ndarray
    ) -> None:
        at = self._index.find(t)
        for column, part in ((self._shift, ns), (self._err, err), (self._state, state), (self._alt, alt)):
            put(column, at, part)
        ns += t * (state != SKIPPED) if self._skips else t
        several = state == AMBIGUOUS
        if several.any():
            np.add(alt, t, out=alt, where=several)
        watched.widen(ns, np.where(several, alt, ns), err, state)


def _in_chunks(times: np.ndarray, watched: WatchedTimes, convert: Callable[..., None]) -> Converted:
    """Calls ``convert(watched, times, ns, err, state, alt)`` for each chunk; it fills in the last four arrays, shape
    (n,).
    """
    times = np.asarray(times, np.int64)
    out = Converted(
        np.empty(times.shape, np.int64),
        np.empty(times.shape, np.int64),
        np.empty(times.shape, np.int8),
        np.empty(times.shape, np.int64),
    )
    flat = [array.reshape(-1) for array in (times, *out)]
    for start in range(0, times.size, _CHUNK):
        convert(watched, *(array[start : start + _CHUNK] for array in flat))
    return out
