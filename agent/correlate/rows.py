"""Rows kept as evidence, and what is done with rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from agent.common.alike import alike, begins, by_bytes
from agent.common.copies import in_bytes, pick, together
from agent.common.fairness import earlier

_NOT_NULL = -(2**62)
_MANY = 1024  # values, most of which occur several times
_FEW = 2000  # rows, up to which it is quicker to sort them as Python bytes


def known(values: np.ndarray) -> np.ndarray:
    """Which integers are not the "unknown" sentinel."""
    return np.asarray(values > _NOT_NULL)


def start_ticks(rows: np.ndarray) -> np.ndarray:
    """Process starts in units of 10 ms.

    The kernel's probes give nanoseconds, /proc/PID/stat gives whole ticks, rounded down: they are equal only in ticks.
    """
    return np.asarray(rows["proc_start_ns"] // 10_000_000)


def as_bytes(rows: np.ndarray) -> np.ndarray:
    """One comparable byte string a row."""
    rows = np.ascontiguousarray(rows)
    return rows.view(f"S{rows.dtype.itemsize}").reshape(len(rows))


def among(values: np.ndarray, some: Iterable[object]) -> np.ndarray:
    """Which values are among ``some`` (an address, a pid: values as ``tolist`` gives them)."""
    there = set(some)
    if len(values) > _MANY and there:
        first, group = alike([values])
        return np.asarray(_each(values[first], there)[group])
    return _each(values, there)


def _each(values: np.ndarray, there: set[object]) -> np.ndarray:
    return np.fromiter(map(there.__contains__, values.tolist()), np.bool_, len(values))


def in_order(rows: np.ndarray) -> np.ndarray:
    """Sorted by ``t_ns``, and equal times by content, so that the order of arrival does not matter."""
    t_ns = rows["t_ns"]
    if (t_ns[1:] > t_ns[:-1]).all():
        return rows
    if len(rows) <= _FEW and (t_ns == t_ns[0]).all():
        return in_bytes(rows)
    order = np.argsort(t_ns, kind="stable")
    t_ns = t_ns[order]
    same = t_ns[1:] == t_ns[:-1]
    if same.any():
        tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
        sub = order[tied]
        order[tied] = sub[by_bytes(pick(rows, sub), begins(t_ns[tied]))]
    return pick(rows, order)


#: Rows -> a mask of them, or their indices.
Which = Callable[[np.ndarray], np.ndarray]
_CHANGES = 512
_AGAIN = 8  # results that are cached while tracking


class LastRows:
    """The last rows of a table: about ``capacity`` of them at most, none older than ``keep_ns``; dropped ones are
    counted. If rows have an owner (``uid``), the user with most rows makes room, so that no user's rows displace those
    of others.

    Rows are kept in the pieces they came in, so that adding copies nothing.
    """

    def __init__(self, dtype: np.dtype[np.void], capacity: int, keep_ns: int) -> None:
        self._empty = np.empty(0, dtype)
        self._pieces: deque[tuple[np.ndarray, int, int]] = deque()  # with the times of its first and last row
        self._rows = 0
        self._capacity, self._keep_ns = capacity, keep_ns
        self._shared = "uid" in (dtype.names or ())
        self._changes: deque[tuple[int, int]] = deque(maxlen=_CHANGES)
        self.version = 0
        self._tracked: set[tuple[int, int]] | None = None
        self._found: dict[tuple[int, int], np.ndarray] = {}
        self.dropped = 0

    def add(self, rows: np.ndarray) -> None:
        """Takes rows in time order."""
        if not len(rows):
            return
        over = 0 if self._shared else max(0, len(rows) - self._capacity)
        self.dropped += over
        self._changed(rows)
        self._keep(rows[over:])
        oldest = self._pieces[-1][2] - self._keep_ns
        while self._rows > self._capacity and self._shared:
            self._make_room(oldest)
        while self._rows > self._capacity or self._pieces[0][2] < oldest:
            gone, first_ns, last_ns = self._pieces.popleft()
            self._rows -= len(gone)
            aged = first_ns < oldest or self._shared
            self.dropped += int(np.count_nonzero(gone["t_ns"] >= oldest)) if aged else len(gone)
            self.version += 1
            self._changes.append((first_ns, last_ns))

    def _keep(self, rows: np.ndarray) -> None:
        t = rows["t_ns"]
        self._pieces.append((rows, int(t[0]), int(t[-1])))
        self._rows += len(rows)

    def _instead(self, rows: np.ndarray) -> None:
        self._pieces.clear()
        self._rows = 0
        self._keep(rows)

    def _make_room(self, oldest: int) -> None:
        """Drops the oldest rows of the users with most rows."""
        rows = together([piece for piece, _, _ in self._pieces])
        aged = rows["t_ns"] < oldest
        if aged.any():
            self._instead(pick(rows, ~aged))
            self._changed(pick(rows, aged))
            return
        newer = earlier(rows["uid"][::-1])[::-1]  # of the same user
        stays = np.zeros(len(rows), np.bool_)
        stays[np.argsort(newer, kind="stable")[: self._capacity]] = True
        gone, stay = pick(rows, ~stays), pick(rows, stays)
        self._instead(stay)
        self.dropped += len(gone)
        self._changed(gone)

    def _changed(self, rows: np.ndarray) -> None:
        self.version += 1
        t = rows["t_ns"]
        self._changes.append((int(t[0]), int(t[-1])))

    def unchanged(self, version: int, spans: Iterable[tuple[int, int]]) -> bool:
        """Whether no rows of these times came or went since that version."""
        since = self.version - version
        if since > len(self._changes):
            return False
        late = [self._changes[-1 - i] for i in range(since)]
        return not any(first <= to_ns and last >= from_ns for from_ns, to_ns in spans for first, last in late)

    def track(self, tracked: set[tuple[int, int]] | None) -> None:
        """From here on, the times that are read are recorded in ``tracked``, and the first results are cached. Add no
        rows meanwhile.
        """
        self._tracked, self._found = tracked, {}

    def between(self, from_ns: int, to_ns: int, which: Which | None = None) -> np.ndarray:
        """Rows with ``from_ns <= t_ns <= to_ns``; only those that ``which`` selects of the rows that came together, so
        that the others are not copied.
        """
        at = from_ns, to_ns
        if self._tracked is not None:
            self._tracked.add(at)
        if which is not None or self._tracked is None:
            return self._between(from_ns, to_ns, which)
        if at in self._found:
            return self._found[at]
        rows = self._between(from_ns, to_ns)
        if len(self._found) < _AGAIN:
            self._found[at] = rows
        return rows

    def _between(self, from_ns: int, to_ns: int, which: Which | None = None) -> np.ndarray:
        parts = []
        for rows, first_ns, last_ns in self._pieces:
            if last_ns >= from_ns and first_ns <= to_ns:
                inside = first_ns >= from_ns and last_ns <= to_ns and not self._shared
                its = rows if inside else _between(rows, from_ns, to_ns)
                parts.append(its if which is None else pick(its, which(its)))
        return together(parts) if parts else self._empty

    @property
    def from_ns(self) -> int | None:
        """Time of the oldest row that is kept, None if there is none."""
        return self._pieces[0][1] if self._pieces else None


def _between(rows: np.ndarray, from_ns: int, to_ns: int) -> np.ndarray:
    """Each piece is in order, though pieces overlap if rows came late."""
    t = rows["t_ns"]
    return rows[np.searchsorted(t, from_ns) : np.searchsorted(t, to_ns, "right")]


class OfSecond(dict[str, np.ndarray]):
    """One second's rows by table, with a cache of their groups."""

    def __init__(self, rows: Mapping[str, np.ndarray]) -> None:
        super().__init__(rows)
        self.groups: dict[tuple[str, ...], tuple[np.ndarray, np.ndarray]] = {}


def shared(rows: Mapping[str, np.ndarray], table: str, *columns: str) -> tuple[np.ndarray, np.ndarray]:
    """``groups`` of a table's rows, computed once a second; process starts in ticks."""
    found = rows.groups if isinstance(rows, OfSecond) else {}
    key = table, *columns
    if key not in found:
        its = rows[table]
        found[key] = groups([start_ticks(its) if name == "proc_start_ns" else its[name] for name in columns])
    return found[key]


def of_codes(codes: Iterable[int]) -> np.ndarray:
    """A lookup table: by code, whether it is among these."""
    out = np.zeros(256, np.bool_)
    out[[*codes]] = True
    return out


def union(*parts: np.ndarray) -> np.ndarray:
    """All slots of these arrays, in order."""
    return np.array(sorted({slot for part in parts for slot in part.tolist()}), np.int64)


def columns_of(rows: np.ndarray, which: np.ndarray, *names: str) -> Iterator[tuple[Any, ...]]:
    """The values of some rows in these columns, row by row, as Python values."""
    some = pick(rows, which)
    return zip(*(some[name].tolist() for name in names), strict=True)


def groups(keys: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(index of each group's first row, group number of every row) for rows that are equal in all keys; numbered in key
    order.
    """
    return alike(list(keys))
