"""The offset history of one boot: kernel time to wall time and back, vectorised, also across steps.

CLOCK_REALTIME - CLOCK_BOOTTIME moves only where a clock is stepped or a leap second passes: slews and frequency changes move
MONOTONIC and BOOTTIME as well, and a suspend moves both. So the history is a list of segments, each with one offset, and the
samples inside a segment only narrow its error: all of them bound the same number, so their intervals are intersected.

A segment starts where a ``clock_offset`` row says ``cut`` (the instant is known), or where a sample contradicts the ones before
it (a step that nobody saw: the instant lies between two samples, and times between them carry the step in their error). One that
nobody saw and that is smaller than the bounds of the samples around it together may stay hidden; answers are then off by at most its size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from agent.columns import NULL_I64
from agent.tables import TABLES

EXACT, AMBIGUOUS, SKIPPED = range(3)  # order of the derived column wall_state
_CHUNK = 1 << 14  # times whose intermediate arrays stay in the processor's cache
#: Beyond any BOOTTIME (18 years), and no overflow when added to the latest wall time that a kernel accepts (settimeofday(2): 2^63 ns less 30 years).
_FIRST, _LAST = -(2**59), 2**59
_CELLS = 1 << 16


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

    @cached_property
    def _grid(self) -> tuple[int, np.ndarray, np.ndarray]:
        """Equal cells from edges[1] on: their width as a shift, the piece at each one's start, and whether an edge lies inside it.

        A look-up instead of a binary search, which times in no order make slow. The first of the cells stands for all before edges[1].
        """
        first, last = int(self.edges[1]), int(self.edges[-1])
        shift = max((last - first).bit_length() - min(_CELLS, 16 * len(self.edges)).bit_length() + 1, 0)
        starts = first + (np.arange((last - first >> shift) + 2) << shift)
        at = np.searchsorted(self.edges, starts[:-1], "right") - 1
        inside = at != np.searchsorted(self.edges, starts[1:] - 1, "right") - 1
        return shift, np.append(0, at).astype(np.int32), np.append(False, inside)

    def _find(self, t: np.ndarray) -> np.ndarray:
        shift, at, inside = self._grid
        cell = np.clip(t, self.edges[1] - 1, self.edges[-1])
        cell -= self.edges[1]
        cell >>= shift
        cell += 1
        found: np.ndarray = at[cell]
        unsure = np.flatnonzero(inside[cell])
        if len(unsure):
            found[unsure] = np.searchsorted(self.edges, t[unsure], "right") - 1
        return found

    def convert(self, times: np.ndarray) -> Converted:
        times = np.asarray(times, np.int64)
        out = Converted(np.empty(times.shape, np.int64), np.empty(times.shape, np.int64), np.empty(times.shape, np.int8),
                        np.empty(times.shape, np.int64))  # fmt: skip
        flat = [array.reshape(-1) for array in (times, *out)]
        skips = bool((self.state == SKIPPED).any())
        for start in range(0, times.size, _CHUNK):
            t, ns, err, state, alt = (array[start : start + _CHUNK] for array in flat)
            low, high = np.searchsorted(self.edges[1:], (t.min(), t.max()), "right")
            if low == high:
                self._convert_one(int(low), t, ns, err, state, alt)
                continue
            at = self._find(t)
            for column, part in ((self.shift, ns), (self.err, err), (self.state, state), (self.alt, alt)):
                np.take(column, at, out=part, mode="clip")  # which cannot occur, and is faster than raising
            ns += t * (state != SKIPPED) if skips else t
            several = state == AMBIGUOUS
            if several.any():
                np.add(alt, t, out=alt, where=several)
        return out

    def _convert_one(self, i: int, t: np.ndarray, ns: np.ndarray, err: np.ndarray, state: np.ndarray, alt: np.ndarray) -> None:
        """All in piece i, as most times that come together are."""
        err.fill(self.err[i])
        state.fill(self.state[i])
        alt.fill(self.alt[i])
        if self.state[i] == SKIPPED:
            ns.fill(self.shift[i])
        else:
            np.add(t, self.shift[i], out=ns)
        if self.state[i] == AMBIGUOUS:
            np.add(alt, t, out=alt)


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

    def boot_to_mono(self, boot_ns: np.ndarray) -> np.ndarray:
        """CLOCK_BOOTTIME to CLOCK_MONOTONIC; of a time asleep, what MONOTONIC had then stopped at. Raises ValueError without a sample."""
        if not len(self._rows):
            raise ValueError("the offset history is empty")
        boot_mono = np.maximum.accumulate(self._rows["boot_mono_ns"])
        at = np.maximum(np.searchsorted(self._rows["t_ns"], boot_ns, "right") - 1, 0)
        stopped = np.append((self._rows["t_ns"] - boot_mono)[1:], _LAST)
        mono: np.ndarray = np.minimum(np.asarray(boot_ns, np.int64) - boot_mono[at], stopped[at])
        return mono

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
    return Segments(t[starts], lowest + (highest - lowest) // 2, (highest - lowest + 1) // 2, known)


def _split(new: np.ndarray, low: np.ndarray, high: np.ndarray, start: int, end: int) -> None:
    """Marks where samples stop agreeing with the ones before them."""
    lowest, highest = low[start], high[start]
    for i in range(start + 1, end):
        lowest, highest = max(lowest, low[i]), min(highest, high[i])
        if lowest > highest:
            new[i] = True
            lowest, highest = low[i], high[i]


def _tables(s: Segments) -> tuple[_Pieces, _Pieces]:
    """Forward and backward. Between two samples that disagree either offset may have held: backward, both answers are given there.

    Before the boot there was nothing: a wall time that the first offset gives to a time before 0 counts only where no other offset could.
    """
    t_from = s.start_ns.copy()
    t_from[0] = _FIRST
    may_from = np.append(_FIRST, s.known_ns[:-1])
    t_to = np.append(s.start_ns[1:], _LAST)
    wall_from, wall_may, wall_to = t_from + s.real_boot_ns, may_from + s.real_boot_ns, t_to + s.real_boot_ns
    known = s.start_ns[:1] + s.real_boot_ns[:1], s.known_ns[:-1] + s.real_boot_ns[:-1]
    born = int(s.real_boot_ns[0])
    edges = np.unique(np.concatenate([wall_from, wall_may, wall_to, *known, [born]]))
    jump = np.append(np.abs(np.diff(s.real_boot_ns)), 0)
    forward: list[tuple[int, int, int, int, int]] = []
    backward: list[tuple[int, int, int, int, int]] = []
    for wall, holders in zip(edges.tolist(), _holders(edges, wall_from, wall_to), strict=True):
        held = _since(born, wall, holders) or holders
        for n, i in enumerate(held):
            t = int(wall - s.real_boot_ns[i])
            other = held[0] if n else held[-1]
            alt = int(s.real_boot_ns[other]) if len(held) > 1 else NULL_I64
            forward.append((t, int(s.real_boot_ns[i]), _error(s, jump, i, t), AMBIGUOUS if len(held) > 1 else EXACT, alt))
    for wall, holders in zip(edges[:-1].tolist(), _holders(edges, wall_may, wall_to)[:-1], strict=True):
        held = _since(born, wall, holders)
        if not held and not (wall_may[1:] <= wall).any():
            held = holders
        if held:
            first, last = held[0], held[-1]
            errors = [_error(s, jump, i, int(wall - s.real_boot_ns[i])) for i in (first, last)]
            several = first != last
            alt = -int(s.real_boot_ns[last]) if several else NULL_I64
            err = NULL_I64 if NULL_I64 in errors else max(errors)
            backward.append((wall, -int(s.real_boot_ns[first]), err, AMBIGUOUS if several else EXACT, alt))
        else:
            i = int(np.argmax((wall_to[:-1] <= wall) & (wall_may[1:] > wall)))
            unsure = int(s.start_ns[i + 1] - s.known_ns[i])
            backward.append((wall, int(s.start_ns[i + 1]), unsure + int(max(s.err_ns[i : i + 2])), SKIPPED, NULL_I64))
    return _as_pieces(forward), _as_pieces(backward)


def _since(born: int, wall: int, holders: list[int]) -> list[int]:
    """Without the first segment where that would be before the boot."""
    return holders if wall >= born else [i for i in holders if i]


def _holders(edges: np.ndarray, wall_from: np.ndarray, wall_to: np.ndarray) -> list[list[int]]:
    """For each edge the segments whose wall times [from, to) it lies in, in order of time."""
    holders: list[list[int]] = [[] for _ in edges]
    for i, (begin, end) in enumerate(zip(np.searchsorted(edges, wall_from), np.searchsorted(edges, wall_to), strict=True)):
        for held in holders[begin:end]:
            held.append(i)
    return holders


#: A bound that does not fit stays the largest that does: rows may hold anything.
_MOST = 2**63 - 1


def _error(s: Segments, jump: np.ndarray, i: int, t: int) -> int:
    """Error bound in segment i from t on: unknown before the first sample, with the step in it where the other offset may have held."""
    if i == 0 and t < s.start_ns[0]:
        return NULL_I64
    bounds = [int(s.err_ns[i])]
    if i + 1 < len(jump) and t >= s.known_ns[i]:
        bounds.append(int(jump[i]) + int(s.err_ns[i + 1]))
    if i > 0 and t < s.start_ns[i]:
        bounds.append(int(jump[i - 1]) + int(s.err_ns[i - 1]))
    return min(max(bounds), _MOST)


def _as_pieces(rows: list[tuple[int, int, int, int, int]]) -> _Pieces:
    rows.sort()
    table = np.array(rows, np.int64)
    return _Pieces(table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy(), table[:, 3].astype(np.int8), table[:, 4].copy())
