"""Rows that wait to become spans: bounded, oldest dropped first, decisions held until their children have come."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from agent.batch import Batch
from agent.tables import TABLES
from exporters.config import OtlpConfig

if TYPE_CHECKING:
    from exporters.spans import SpanEncoder

#: Tables whose rows become spans; RTT rows only as children of decisions.
SPAN_TABLES = frozenset({"finding", "limiter_decision", "slow_syscall", "tls_handshake", "tcp_connect", "clock_change", "tcp_rtt"})
_CHILDREN = ("slow_syscall", "tls_handshake")
#: How long after its arrival a decision waits for children that drained later, and a possible child for its decision.
HOLD_S = 0.5
CHILD_HOLD_S = 2.0
#: RTT rows describe an interval, so the one that covers a decision may be some seconds older.
RTT_HOLD_S = 10.0
#: Spans of one table that may come at once, in seconds of max_spans_per_s.
BURST_S = 10
#: Rows turned into one request: about 1 MB, below the 4 MiB that a gRPC receiver takes by default.
MAX_ROWS = 1024


#: When rows came, and the rows.
_Piece = tuple[float, np.ndarray]


class Backlog:
    """``put`` belongs to the agent's thread, ``take`` to the worker's. Times are CLOCK_MONOTONIC seconds."""

    def __init__(self, config: OtlpConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._held: dict[str, deque[_Piece]] = {t: deque() for t in SPAN_TABLES}
        self._known: set[bytes] = set()
        self._tokens: dict[str, tuple[float, float]] = {}
        self._queue_full = self._shutdown = 0
        self.bytes = 0
        self.unsampled = 0

    def put(self, batch: Batch, now: float) -> None:
        """Keeps the rows that become spans, or may be needed beside one."""
        rows = self._within_rate(batch.table, self._wanted(batch), now)
        if not len(rows):
            return
        with self._lock:
            self._held[batch.table].append((now, rows))
            self.bytes += rows.nbytes
            while self.bytes > self._config.max_queue_bytes:
                self._drop_oldest()

    def take(self, encoder: SpanEncoder, now: float, *, everything: bool) -> list[bytes]:
        """Spans of what is due, at most about MAX_ROWS; of all there is with ``everything``. Empty when nothing is."""
        with self._lock:
            decisions = self._pop("limiter_decision", now if everything else now - HOLD_S, MAX_ROWS)
            held = {t: list(self._held[t]) for t in (*_CHILDREN, "tcp_rtt") if len(decisions) and self._held[t]}
            for table in _CHILDREN:
                if table in held:
                    self._held[table].clear()
        spans: list[bytes] = []
        if len(decisions):
            from agent.correlate.join import children

            beside = {t: _joined(pieces) for t, pieces in held.items()}
            pairs = children(decisions, beside)
            spans += encoder.decisions(decisions, pairs, beside)
            with self._lock:
                for table in _CHILDREN:
                    self._put_back(table, held.get(table, []), [row for _, t, row in pairs if t == table])
        with self._lock:
            waiting = self._held["limiter_decision"]
            # A child is nobody's once no decision that waits could have been running when it came.
            oldest = min(now, waiting[0][0]) if waiting else now
            self._pop("tcp_rtt", oldest - RTT_HOLD_S, 1 << 30)
            alone = [(t, self._pop(t, now if everything and not waiting else oldest - CHILD_HOLD_S, MAX_ROWS)) for t in _CHILDREN]
            alone += [(t, self._pop(t, now, MAX_ROWS)) for t in ("tcp_connect", "clock_change")]
            findings = self._pop("finding", now, MAX_ROWS)
        for table, rows in alone:
            spans += encoder.roots(table, rows) if len(rows) else []
        return spans + (encoder.findings(findings, self._known) if len(findings) else [])

    def give_up(self, items: int) -> None:
        """Counts what is left, and the ``items`` of requests that were never accepted, as lost at shutdown."""
        with self._lock:
            self._shutdown += items + sum(len(rows) for t, held in self._held.items() if t != "tcp_rtt" for _, rows in held)
            for held in self._held.values():
                held.clear()
            self.bytes = 0

    def dropped(self) -> dict[str, int]:
        """Rows lost so far, and points at shutdown, by reason."""
        return {"queue_full": self._queue_full, "shutdown": self._shutdown}

    def _wanted(self, batch: Batch) -> np.ndarray:
        rows, how = batch.rows, self._config.decisions
        if how == "none" and batch.table in ("limiter_decision", "tcp_rtt"):
            rows = rows[:0]
        elif batch.table == "tcp_connect" or (batch.table == "limiter_decision" and how == "slow"):
            rows = rows[self._notable(batch.table, rows)]
        return _without_hist(rows) if batch.table == "tcp_rtt" else rows

    def _notable(self, table: str, rows: np.ndarray) -> np.ndarray:
        """Not plainly successful, or slow: shape (n,) bool."""
        names = rows.dtype.names or ()
        notable: np.ndarray = np.ones(len(rows), np.bool_)
        if "duration_ns" in names:
            notable = np.asarray(rows["duration_ns"] >= self._config.slow_s * 1e9)
        if "result" in names:
            notable |= rows["result"] != TABLES[table].code("result", "allowed" if table == "limiter_decision" else "ok")
        return notable

    def _within_rate(self, table: str, rows: np.ndarray, now: float) -> np.ndarray:
        """The rows that the rate allows, notable ones first; findings, clock changes and RTT rows are never many."""
        if table in ("finding", "clock_change", "tcp_rtt") or not len(rows):
            return rows
        rate = self._config.max_spans_per_s
        tokens, at = self._tokens.get(table, (float(rate * BURST_S), now))
        tokens = min(tokens + (now - at) * rate, float(rate * BURST_S))
        kept = min(len(rows), int(tokens))
        self._tokens[table] = (tokens - kept, now)
        if kept == len(rows):
            return rows
        self.unsampled += len(rows) - kept
        return rows[np.sort(np.argsort(~self._notable(table, rows), kind="stable")[:kept])]

    def _drop_oldest(self) -> None:
        table = min((t for t, held in self._held.items() if held), key=lambda t: self._held[t][0][0])
        _, rows = self._held[table].popleft()
        self.bytes -= rows.nbytes
        if table != "tcp_rtt":
            self._queue_full += len(rows)

    def _pop(self, table: str, until: float, most: int) -> np.ndarray:
        """The rows that came until then, oldest first, at most ``most``."""
        held, out, n = self._held[table], [], 0
        while held and held[0][0] <= until and n < most:
            at, rows = held.popleft()
            if n + len(rows) > most:
                held.appendleft((at, rows[most - n :]))
                rows = rows[: most - n]
            n += len(rows)
            self.bytes -= rows.nbytes
            out.append((at, rows))
        return _joined(out) if out else np.empty(0, TABLES[table].dtype)

    def _put_back(self, table: str, pieces: list[_Piece], used: list[int]) -> None:
        """Holds again what was looked at, without the rows that were used (indices into all pieces joined)."""
        free = np.ones(sum(len(rows) for _, rows in pieces), np.bool_)
        free[used] = False
        end = len(free)
        for at, rows in reversed(pieces):
            keep = free[end - len(rows) : end]
            end -= len(rows)
            self.bytes -= int((~keep).sum()) * rows.dtype.itemsize
            if keep.any():
                self._held[table].appendleft((at, rows[keep]))


def _joined(pieces: Iterable[_Piece]) -> np.ndarray:
    return np.concatenate([rows for _, rows in pieces])


def _without_hist(rows: np.ndarray) -> np.ndarray:
    """A copy without the histogram: a quarter of the bytes."""
    names = [n for n in rows.dtype.names or () if n != "hist"]
    out = np.empty(len(rows), [(n, rows.dtype[n]) for n in names])
    for n in names:
        out[n] = rows[n]
    return out
