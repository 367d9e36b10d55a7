"""Buffers of rows: what waits for the watermark, and what is kept as evidence. Only the columns that are used are kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from agent.correlate.catalogue import dtypes, kept

_NOT_NULL = -(2**62)


def known(values: np.ndarray) -> np.ndarray:
    """Which integers are not the "unknown" sentinel."""
    return np.asarray(values > _NOT_NULL)


def start_ticks(rows: np.ndarray) -> np.ndarray:
    """Process starts in units of 10 ms.

    The kernel's probes give nanoseconds, /proc/PID/stat gives whole ticks of them, rounded down: equal only in ticks.
    """
    return np.asarray(rows["proc_start_ns"] // 10_000_000)


def compact(table: str, rows: np.ndarray) -> np.ndarray:
    """The columns of ``rows`` that are kept, dtype ``dtypes()[table]``."""
    out = np.empty(len(rows), dtypes()[table])
    for name in kept()[table]:
        out[name] = rows[name]
    return out


def as_bytes(rows: np.ndarray) -> np.ndarray:
    """One comparable byte string a row."""
    rows = np.ascontiguousarray(rows)
    return rows.view(f"S{rows.dtype.itemsize}").reshape(len(rows))


def in_order(rows: np.ndarray) -> np.ndarray:
    """Sorted by ``t_ns``; equal times by content, so that the order of arrival leaves no trace."""
    order = np.argsort(rows["t_ns"], kind="stable")
    t = rows["t_ns"][order]
    same = t[1:] == t[:-1]
    if same.any():
        tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
        sub = order[tied]
        order[tied] = sub[np.lexsort((as_bytes(rows[sub]), t[tied]))]
    return rows[order]


class Inbox:
    """Rows that wait for the watermark; the oldest arrivals beyond ``limit`` rows of a table are dropped and counted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[str, list[np.ndarray]] = {table: [] for table in kept()}
        self._rows = dict.fromkeys(kept(), 0)
        self.dropped = 0

    def add(self, table: str, rows: np.ndarray) -> None:
        waiting = self._waiting[table]
        waiting.append(rows)
        self._rows[table] += len(rows)
        while self._rows[table] > self._limit:
            over = self._rows[table] - self._limit
            gone = min(over, len(waiting[0]))
            waiting[0] = waiting[0][gone:]
            if not len(waiting[0]):
                waiting.pop(0)
            self._rows[table] -= gone
            self.dropped += gone

    def take(self, until_ns: int) -> dict[str, np.ndarray]:
        """Rows with ``t_ns <= until_ns``, in order; the rest stays."""
        taken: dict[str, np.ndarray] = {}
        for table, waiting in self._waiting.items():
            if not waiting:
                continue
            rows = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
            due = rows["t_ns"] <= until_ns
            if not due.any():
                continue
            late = rows[~due]
            waiting[:] = [late] if len(late) else []
            self._rows[table] = len(late)
            taken[table] = in_order(rows[due])
        return taken


_CHANGES = 512


class Ring:
    """The last rows of a table: about ``capacity`` of them at most, none older than ``keep_ns``; dropped ones are counted.

    Rows are kept in the pieces they came in, so that adding copies nothing.
    """

    def __init__(self, dtype: np.dtype[np.void], capacity: int, keep_ns: int) -> None:
        self._empty = np.empty(0, dtype)
        self._pieces: deque[np.ndarray] = deque()
        self._rows = 0
        self._capacity, self._keep_ns = capacity, keep_ns
        self._changes: deque[tuple[int, int]] = deque(maxlen=_CHANGES)
        self.version = 0
        self.looked: set[tuple[int, int]] | None = None
        self.dropped = 0

    def add(self, rows: np.ndarray) -> None:
        """Rows in time order."""
        if not len(rows):
            return
        over = max(0, len(rows) - self._capacity)
        self.dropped += over
        self._pieces.append(rows[over:])
        self._rows += len(rows) - over
        self._changed(rows)
        oldest = int(rows["t_ns"][-1]) - self._keep_ns
        while self._rows > self._capacity or self._pieces[0]["t_ns"][-1] < oldest:
            gone = self._pieces.popleft()
            self._rows -= len(gone)
            self.dropped += int(np.count_nonzero(gone["t_ns"] >= oldest))
            self._changed(gone)

    def _changed(self, rows: np.ndarray) -> None:
        self.version += 1
        self._changes.append((int(rows["t_ns"][0]), int(rows["t_ns"][-1])))

    def unchanged(self, version: int, spans: Iterable[tuple[int, int]]) -> bool:
        """Whether rows of no such time came or went since that version."""
        since = self.version - version
        if since > len(self._changes):
            return False
        late = [self._changes[-1 - i] for i in range(since)]
        return not any(first <= to_ns and last >= from_ns for from_ns, to_ns in spans for first, last in late)

    def between(self, from_ns: int, to_ns: int) -> np.ndarray:
        """Rows with ``from_ns <= t_ns <= to_ns``. Noted in ``looked``, where that is set."""
        if self.looked is not None:
            self.looked.add((from_ns, to_ns))
        pieces = [p for p in self._pieces if p["t_ns"][-1] >= from_ns and p["t_ns"][0] <= to_ns]
        rows = np.concatenate(pieces) if pieces else self._empty
        t = rows["t_ns"]
        return rows[(t >= from_ns) & (t <= to_ns)]

    @property
    def from_ns(self) -> int | None:
        """Time of the oldest row that is kept, None where it is empty."""
        return int(self._pieces[0]["t_ns"][0]) if self._pieces else None


def groups(keys: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(index of each group's first row, group number of every row) for rows that are equal in all keys; numbered in key order."""
    columns = list(keys)
    packed = np.empty(len(columns[0]), np.dtype([(str(i), c.dtype) for i, c in enumerate(columns)]))
    for i, c in enumerate(columns):
        packed[str(i)] = c
    _, first, inverse = np.unique(as_bytes(packed), return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)
