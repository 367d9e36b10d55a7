"""Buffers of rows: what waits for the watermark, and what is kept as evidence. Only the columns that are used are kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from agent.tables import TABLES

_PROC = ("pid", "proc_start_ns", "comm")

#: Per table, in processing order, the columns that the correlator reads.
KEPT: dict[str, tuple[str, ...]] = {
    "clock_change": ("t_ns", *_PROC, "kind", "via", "modes", "size_ns", "err_ns", "real_mono_before_ns", "real_mono_after_ns", "ret"),
    "clock_daemon": ("t_ns", "daemon", "kind", "state", "source", "offset_ns", "distance_ns", "reason"),
    "tcp_connect": ("t_ns", *_PROC, "peer", "result", "errno", "duration_ns"),
    "tcp_retransmit": ("t_ns", *_PROC, "peer", "kind", "count"),
    "tcp_reset": ("t_ns", *_PROC, "peer", "direction"),
    "tcp_rtt": ("t_ns", *_PROC, "role", "sport", "peer", "samples", "rtt_min_us", "rtt_max_us", "rtt_sum_us", "srtt_us"),
    "tls_handshake": ("t_ns", "tid", *_PROC, "peer", "library", "duration_ns", "result"),
    "syscall_latency": ("t_ns", *_PROC, "basis", "kind", "peer", "interval_ns", "max_ns", "run_queue_ns"),
    "slow_syscall": ("t_ns", "tid", *_PROC, "kind", "peer", "syscall", "fd_type", "duration_ns", "blocked_ns", "run_queue_ns",
                     "goroutine", "sock_id"),
    "socket_queue": ("t_ns", *_PROC, "kind", "saddr", "sport", "queue", "limit", "drops"),
    "queue_lag": ("t_ns", "system", "destination", "partition", "consumer_group", "lag_messages", "lag_s", "oldest_undelivered_s",
                  "oldest_pending_s", "pending", "consumers", "in_per_s", "out_per_s", "status", "reason", "poll_ns", "peer"),
    "limiter_decision": ("t_ns", "tid", *_PROC, "limiter_id", "library", "result", "cost", "limit_per_s", "burst", "window_ns",
                         "wait_ns", "duration_ns", "step_immune", "goroutine"),
}

DTYPES = {table: np.dtype([(c, TABLES[table].by_name[c].dtype) for c in names]) for table, names in KEPT.items()}

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
    """The columns of ``rows`` that are kept, dtype ``DTYPES[table]``."""
    out = np.empty(len(rows), DTYPES[table])
    for name in KEPT[table]:
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
        self._waiting: dict[str, list[np.ndarray]] = {table: [] for table in KEPT}
        self._rows = dict.fromkeys(KEPT, 0)
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


class Ring:
    """The last rows of a table: about ``capacity`` of them at most, none older than ``keep_ns``; dropped ones are counted.

    Rows are kept in the pieces they came in, so that adding copies nothing.
    """

    def __init__(self, dtype: np.dtype[np.void], capacity: int, keep_ns: int) -> None:
        self._empty = np.empty(0, dtype)
        self._pieces: deque[np.ndarray] = deque()
        self._rows = 0
        self._capacity, self._keep_ns = capacity, keep_ns
        self.dropped = 0

    def add(self, rows: np.ndarray) -> None:
        """Rows in time order."""
        if not len(rows):
            return
        over = max(0, len(rows) - self._capacity)
        self.dropped += over
        self._pieces.append(rows[over:])
        self._rows += len(rows) - over
        oldest = int(rows["t_ns"][-1]) - self._keep_ns
        while self._rows > self._capacity or self._pieces[0]["t_ns"][-1] < oldest:
            gone = self._pieces.popleft()
            self._rows -= len(gone)
            self.dropped += int(np.count_nonzero(gone["t_ns"] >= oldest))

    def between(self, from_ns: int, to_ns: int) -> np.ndarray:
        """Rows with ``from_ns <= t_ns <= to_ns``."""
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
