"""The offset history of one boot: kernel time to wall time and back, vectorised, also across steps.

CLOCK_REALTIME - CLOCK_BOOTTIME moves only where a clock is stepped or a leap second passes: slews and frequency changes move
MONOTONIC and BOOTTIME as well, and a suspend moves both. So the history is a list of segments, each with one offset, and the
samples inside a segment only narrow its error: all of them bound the same number, so their intervals are intersected.

A segment starts where a ``clock_offset`` row says ``cut`` (the instant is known), or where a sample contradicts the ones before
it (a step that nobody saw: the instant lies between two samples, and times between them carry the step in their error).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from agent.columns import NULL_I64
from agent.tables import TABLES

EXACT, AMBIGUOUS, SKIPPED = range(3)  # order of the derived column wall_state
_CHUNK = 1 << 14  # times whose intermediate arrays stay in the processor's cache
_FIRST, _LAST = -(2**62), 2**62  # beyond any time that occurs


class Converted(NamedTuple):
    """Converted times, each an array of the input's shape.

    ns: the answer. err_ns: its error bound, NULL_I64 where the time lies before the first sample. state: i1 codes of
    ``wall_state``. alt_ns: the other answer where ambiguous, else NULL_I64.
    """

    ns: np.ndarray
    err_ns: np.ndarray
    state: np.ndarray
    alt_ns: np.ndarray


@dataclass(frozen=True)
class Segments:
    """start_ns (BOOTTIME), real_boot_ns (REALTIME - BOOTTIME), err_ns, shape (k,); known_ns: to when the offset was seen to hold."""

    start_ns: np.ndarray
    real_boot_ns: np.ndarray
    err_ns: np.ndarray
    known_ns: np.ndarray


@dataclass(frozen=True)
class _Pieces:
    """A look-up table: from edges[i] on, the answer is time + shift[i]. A shift of a skipped piece is the answer itself."""

    edges: np.ndarray
    shift: np.ndarray
    err: np.ndarray
    state: np.ndarray
    alt: np.ndarray

    def convert(self, times: np.ndarray) -> Converted:
        times = np.asarray(times, np.int64)
        out = Converted(np.empty(times.shape, np.int64), np.empty(times.shape, np.int64), np.empty(times.shape, np.int8),
                        np.empty(times.shape, np.int64))  # fmt: skip
        flat = [array.reshape(-1) for array in (times, *out)]
        for start in range(0, times.size, _CHUNK):
            t, ns, err, state, alt = (array[start : start + _CHUNK] for array in flat)
            at = np.searchsorted(self.edges, t, "right") - 1 if len(self.edges) > 1 else np.zeros(len(t), np.int64)
            np.take(self.state, at, out=state)
            np.take(self.err, at, out=err)
            np.take(self.shift, at, out=ns)
            np.take(self.alt, at, out=alt)
            ns += t * (state != SKIPPED)
            alt += t * (state == AMBIGUOUS)
        return out


class History:
    """Offsets of one boot. Times before the first sample use its offset with an unknown error.

    Rows may come in any order, and samples and cuts that arrive late fall into their place.
    """

    def __init__(self) -> None:
        self._rows = TABLES["clock_offset"].empty(0)
        self._segments: Segments | None = None
        self._tables: tuple[_Pieces, _Pieces] | None = None

    @classmethod
    def from_rows(cls, clock_offset_rows: np.ndarray) -> History:
        """The history in rows of table ``clock_offset``, all of one boot. Raises ValueError at use where there is none."""
        history = cls()
        history.append(clock_offset_rows)
        return history

    def append(self, clock_offset_rows: np.ndarray) -> None:
        """Adds samples and cuts; rows without t_ns, real_mono_ns or boot_mono_ns are left out."""
        r = clock_offset_rows
        usable = (r["t_ns"] != NULL_I64) & (r["real_mono_ns"] != NULL_I64) & (r["boot_mono_ns"] != NULL_I64)
        rows = np.concatenate([self._rows, r[usable]])
        self._rows = rows[np.argsort(rows["t_ns"], kind="stable")]
        self._segments = self._tables = None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def segments(self) -> Segments:
        """What is known. Raises ValueError without a sample."""
        found = self._segments  # another thread may convert while this one appends
        if found is None:
            found = self._segments = _segments(self._rows)
        return found

    def compact(self) -> None:
        """Keeps, of each segment, its first and last row and the tightest bounds: for an agent that samples for months."""
        s = self.segments
        first = np.searchsorted(self._rows["t_ns"], s.start_ns)
        last = np.searchsorted(self._rows["t_ns"], s.known_ns, "right") - 1
        rows = self._rows[np.unique(np.concatenate([first, last]))]
        at = np.searchsorted(s.start_ns, rows["t_ns"], "right") - 1
        rows["real_mono_ns"] = s.real_boot_ns[at] + rows["boot_mono_ns"]
        rows["err_ns"] = s.err_ns[at]
        self._rows = rows

    def to_wall(self, t_ns: np.ndarray) -> Converted:
        """CLOCK_BOOTTIME to Unix time. ``ambiguous`` where that wall time occurred twice; then ``alt_ns`` is this instant's wall
        time under the offset on the step's other side. Raises ValueError without a sample."""
        return self._pieces()[0].convert(t_ns)

    def to_boot(self, wall_ns: np.ndarray) -> Converted:
        """Unix time to CLOCK_BOOTTIME: the first time it was that late, and in ``alt_ns`` the last where there are several.

        ``skipped`` where a forward step left that wall time out; the answer is then the step. Raises ValueError without a sample.
        """
        return self._pieces()[1].convert(wall_ns)

    def mono_to_boot(self, mono_ns: np.ndarray) -> np.ndarray:
        """CLOCK_MONOTONIC to CLOCK_BOOTTIME, which differ by the time spent suspended. Raises ValueError without a sample."""
        if not len(self._rows):
            raise ValueError("the offset history is empty")
        boot_mono = np.maximum.accumulate(self._rows["boot_mono_ns"])
        at = np.searchsorted(self._rows["t_ns"] - boot_mono, mono_ns, "right") - 1
        shift: np.ndarray = boot_mono[np.maximum(at, 0)]
        boot: np.ndarray = np.asarray(mono_ns, np.int64) + shift
        return boot

    def _pieces(self) -> tuple[_Pieces, _Pieces]:
        found = self._tables
        if found is None:
            found = self._tables = _tables(self.segments)
        return found


def _segments(rows: np.ndarray) -> Segments:
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
    # A cut's instant is known: the offset before it held until then. After a contradiction it was last seen at its last sample.
    following_cut = np.append(rows["cut"][starts[1:]] == 1, False)
    known = np.where(following_cut, np.append(t[starts[1:]], 0), t[last])
    return Segments(t[starts], (lowest + highest) // 2, (highest - lowest + 1) // 2, known)


def _split(new: np.ndarray, low: np.ndarray, high: np.ndarray, start: int, end: int) -> None:
    """Marks where samples stop agreeing with the ones before them."""
    lowest, highest = low[start], high[start]
    for i in range(start + 1, end):
        lowest, highest = max(lowest, low[i]), min(highest, high[i])
        if lowest > highest:
            new[i] = True
            lowest, highest = low[i], high[i]


def _tables(s: Segments) -> tuple[_Pieces, _Pieces]:
    k = len(s.start_ns)
    t_from = s.start_ns.copy()
    t_from[0] = _FIRST
    t_to = np.append(s.start_ns[1:], _LAST)
    wall_from, wall_to = t_from + s.real_boot_ns, t_to + s.real_boot_ns
    edges = np.unique(np.concatenate([wall_from, wall_to, s.start_ns[:1] + s.real_boot_ns[:1], s.known_ns[:-1] + s.real_boot_ns[:-1]]))
    jump = np.append(np.abs(np.diff(s.real_boot_ns)), 0)
    forward: list[tuple[int, int, int, int, int]] = []
    holders: list[list[int]] = [[] for _ in edges]
    for i in range(k):
        here = np.arange(np.searchsorted(edges, wall_from[i]), np.searchsorted(edges, wall_to[i]))
        for e in here:
            holders[e].append(i)
    for e, held in enumerate(holders):
        for n, i in enumerate(held):
            t = int(edges[e] - s.real_boot_ns[i])
            other = held[0] if n else held[-1]
            alt = int(s.real_boot_ns[other]) if len(held) > 1 else NULL_I64
            forward.append((t, int(s.real_boot_ns[i]), _error(s, jump, i, t), AMBIGUOUS if len(held) > 1 else EXACT, alt))
    backward = []
    for e, held in enumerate(holders[:-1]):
        wall = int(edges[e])
        if held:
            i = held[0]
            several = len(held) > 1
            alt = -int(s.real_boot_ns[held[-1]]) if several else NULL_I64
            err = _error(s, jump, i, wall - int(s.real_boot_ns[i]))
            backward.append((wall, -int(s.real_boot_ns[i]), err, AMBIGUOUS if several else EXACT, alt))
        else:
            i = int(np.argmax((wall_to[:-1] <= wall) & (wall_from[1:] > wall)))
            unsure = int(s.start_ns[i + 1] - s.known_ns[i])
            backward.append((wall, int(s.start_ns[i + 1]), unsure + int(s.err_ns[i + 1]), SKIPPED, NULL_I64))
    return _as_pieces(forward), _as_pieces(backward)


def _error(s: Segments, jump: np.ndarray, i: int, t: int) -> int:
    """Error bound in segment i from t on: unknown before the first sample, with the step in it after the last that agreed."""
    if i == 0 and t < s.start_ns[0]:
        return NULL_I64
    unsure = i + 1 < len(jump) and t >= s.known_ns[i]
    return int(s.err_ns[i] + (jump[i] if unsure else 0))


def _as_pieces(rows: list[tuple[int, int, int, int, int]]) -> _Pieces:
    rows.sort()
    table = np.array(rows, np.int64)
    return _Pieces(table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy(), table[:, 3].astype(np.int8), table[:, 4].copy())
