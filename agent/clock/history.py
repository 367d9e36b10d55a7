"""The offset history of one boot: converts kernel time to wall time and back, vectorised, also across steps.

Only steps and leap seconds move CLOCK_REALTIME - CLOCK_BOOTTIME: slews and frequency changes move MONOTONIC and
BOOTTIME as well, and a suspend moves both. So the history is a list of segments, each with one offset. All samples of a
segment bound the same number, so their intervals are intersected, which narrows its error.

A segment starts at a ``clock_offset`` row with ``cut`` (the instant is known), or where a sample contradicts the
earlier ones (an unobserved step: the instant lies between two samples, and times between them have the step in their
error). An unobserved step that is smaller than the bounds of the samples around it may stay hidden; results are then
off by at most its size.
"""

from __future__ import annotations

import threading
from functools import cached_property

import numpy as np

from agent.clock.convert import (
    AMBIGUOUS,
    EXACT,
    EXTRAPOLATED,
    SKIPPED,
    Converted,
    ToBoot,
    ToWall,
    WallLine,
    WatchedTimes,
)
from agent.clock.segments import Segments, segments
from agent.columns import NULL_I64
from agent.tables import TABLES

__all__ = ["AMBIGUOUS", "EXACT", "EXTRAPOLATED", "SKIPPED", "Converted", "History", "Segments"]

_LAST = 2**59
_COLUMNS = ("t_ns", "real_mono_ns", "boot_mono_ns", "err_ns", "cut")
_ROW = np.dtype([(name, TABLES["clock_offset"].by_name[name].dtype) for name in _COLUMNS])


class _Made:
    """What is derived from the rows of one moment, each computed on first use."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows

    @cached_property
    def segments(self) -> Segments:
        return segments(self.rows)

    @cached_property
    def _moved_ns(self) -> float:
        return float(self.segments.moved_ns.astype(np.float64).sum())

    def watched(self, until_ns: int) -> WatchedTimes:
        s = self.segments
        return WatchedTimes.of(int(s.start_ns[0]), max(int(s.known_ns[-1]), until_ns), self._moved_ns)

    @cached_property
    def _wall(self) -> WallLine:
        return WallLine(self.segments)

    @cached_property
    def to_wall(self) -> ToWall:
        return ToWall(self.segments, self._wall)

    @cached_property
    def to_boot(self) -> ToBoot:
        return ToBoot(self.segments, self._wall)


class History:
    """Offsets of one boot. Rows may come in any order, also late.

    Watched is the time from the first sample to the last (or to ``watched``). Results outside of it are
    ``extrapolated``: their bounds grow with the distance, by the possible drift of an oscillator (a time daemon may
    undo it by a step) and by the observed rate of steps. Steps by hand may exceed any bound.
    """

    def __init__(self) -> None:
        self._rows = np.empty(0, _ROW)
        self._more: list[np.ndarray] = []
        self._watched_ns = NULL_I64
        self._made: _Made | None = None
        self._lock = threading.Lock()  # another thread may convert while this one appends
        self.forgotten = 0

    @classmethod
    def from_rows(cls, clock_offset_rows: np.ndarray) -> History:
        """The history in rows of table ``clock_offset``, all of one boot. An empty history raises ValueError on use."""
        history = cls()
        history.append(clock_offset_rows)
        return history

    def append(self, clock_offset_rows: np.ndarray) -> None:
        """Adds samples and cuts. Rows without t_ns, real_mono_ns or boot_mono_ns are left out."""
        r = clock_offset_rows
        usable = np.flatnonzero(
            (r["t_ns"] != NULL_I64) & (r["real_mono_ns"] != NULL_I64) & (r["boot_mono_ns"] != NULL_I64)
        )
        rows = np.empty(len(usable), _ROW)
        for name in _COLUMNS:
            rows[name] = r[name][usable]
        with self._lock:
            self._more.append(rows)

    def watched(self, until_ns: int) -> None:
        """Notes that the clock was watched until then (CLOCK_BOOTTIME): a step would have made a row."""
        self._watched_ns = max(self._watched_ns, until_ns)

    @property
    def watched_ns(self) -> int:
        """The end of the watched time, CLOCK_BOOTTIME. Raises ValueError without a sample."""
        made = self._now()
        return made.watched(self._watched_ns).to_ns

    def _taken(self) -> np.ndarray:
        """All rows in order of time. Rows added since the last call are sorted in here, all at once."""
        with self._lock:
            if self._more:
                rows = np.concatenate([self._rows, *self._more])
                if (rows["t_ns"][1:] < rows["t_ns"][:-1]).any():
                    rows = rows[np.argsort(rows["t_ns"], kind="stable")]
                self._rows, self._more = rows, []
            return self._rows

    def _now(self) -> _Made:
        rows, found = self._taken(), self._made
        if found is None or found.rows is not rows:
            found = self._made = _Made(rows)
        return found

    def __len__(self) -> int:
        return len(self._rows) + sum(map(len, self._more))

    @property
    def segments(self) -> Segments:
        """The segments. Raises ValueError without a sample."""
        return self._now().segments

    def compact(self, most: int | None = None) -> None:
        """Keeps only the first and last row of each segment and the tightest bounds, for an agent that samples for
        months.

        most: the number of segments to keep, the last ones; ``forgotten`` counts the others. Times before them are
        extrapolated.
        """
        made = self._now()
        s, taken = made.segments, made.rows
        kept = 0 if most is None else max(0, len(s.start_ns) - most)
        first = np.searchsorted(taken["t_ns"], s.start_ns[kept:])
        last = np.searchsorted(taken["t_ns"], s.known_ns[kept:], "right") - 1
        rows = taken[np.unique(np.concatenate([first, last]))]
        at = np.searchsorted(s.start_ns, rows["t_ns"], "right") - 1
        rows["real_mono_ns"] = s.real_boot_ns[at] + rows["boot_mono_ns"]
        rows["err_ns"] = s.err_ns[at]
        with self._lock:
            self._rows = rows
        self.forgotten += kept

    def to_wall(self, t_ns: np.ndarray) -> Converted:
        """CLOCK_BOOTTIME to Unix time. If that wall time occurred twice, the state is ``ambiguous`` and ``alt_ns`` is
        this instant's wall time by the offset on the step's other side. Raises ValueError without a sample.
        """
        made = self._now()
        return made.to_wall.convert(t_ns, made.watched(self._watched_ns))

    def wall(self, t_ns: np.ndarray) -> np.ndarray:
        """CLOCK_BOOTTIME to Unix ns, shape (n,); NULL_I64 without a sample."""
        return self.to_wall(t_ns).ns if len(self) else np.full(len(t_ns), NULL_I64)

    def to_boot(self, wall_ns: np.ndarray) -> Converted:
        """Unix time to CLOCK_BOOTTIME: the first instant with that wall time; ``alt_ns`` is the last one if there are
        several.

        A wall time that a forward step left out is ``skipped``, and the result is the step's instant. Raises ValueError
        without a sample.
        """
        made = self._now()
        return made.to_boot.convert(wall_ns, made.watched(self._watched_ns))

    def mono_to_boot(self, mono_ns: np.ndarray) -> np.ndarray:
        """CLOCK_MONOTONIC to CLOCK_BOOTTIME, which differ by the time spent suspended. Raises ValueError without a
        sample.
        """
        rows, boot_mono = self._suspended()
        at = np.searchsorted(rows["t_ns"] - boot_mono, mono_ns, "right") - 1
        shift: np.ndarray = boot_mono[np.maximum(at, 0)]
        boot: np.ndarray = np.asarray(mono_ns, np.int64) + shift
        return boot

    def boot_to_mono(self, boot_ns: np.ndarray) -> np.ndarray:
        """CLOCK_BOOTTIME to CLOCK_MONOTONIC; for a time during a suspend, the value at which MONOTONIC had stopped.
        Raises ValueError without a sample.
        """
        rows, boot_mono = self._suspended()
        at = np.maximum(np.searchsorted(rows["t_ns"], boot_ns, "right") - 1, 0)
        stopped = np.append((rows["t_ns"] - boot_mono)[1:], _LAST)
        mono: np.ndarray = np.minimum(np.asarray(boot_ns, np.int64) - boot_mono[at], stopped[at])
        return mono

    def _suspended(self) -> tuple[np.ndarray, np.ndarray]:
        rows = self._taken()
        if not len(rows):
            raise ValueError("the offset history is empty")
        return rows, np.maximum.accumulate(rows["boot_mono_ns"])
