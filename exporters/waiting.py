"""Rows that wait to become spans: bounded, the oldest are dropped first, decisions wait for their children.

Slow and failed operations become spans, and those that a finding names as evidence. Of plain decisions a sample may,
chosen before any work per row; the others are held as long, in case a slow call, a handshake or a clock jump affects
them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from agent.batch import Batch
from agent.common.fairness import UpperBound
from agent.correlate.join import children
from agent.tables import TABLES
from exporters.finding_evidence import FindingEvidence
from exporters.otlp_settings import OtlpSettings
from exporters.sampling import randomness, threshold

if TYPE_CHECKING:
    from exporters.protobuf_pieces import EncodedSpan
    from exporters.spans import SpanEncoder

#: Tables whose rows become spans; RTT rows only as children of decisions.
SPAN_TABLES = frozenset(
    {"finding", "limiter_decision", "slow_syscall", "tls_handshake", "tcp_connect", "clock_change", "tcp_rtt"}
)
#: Details of a finding's span; the latest of each finding, the oldest are dropped first.
BESIDE_TABLES, _BESIDE_BYTES = frozenset({"verdict", "evidence"}), 2 << 20
_CHILDREN = ("slow_syscall", "tls_handshake")
#: Rows that are no children, or that are none of a decision.
_ALONE = (*_CHILDREN, "tcp_connect", "clock_change")
#: Decisions outside of the sample, and how many bytes of them are held.
_PLAIN, _PLAIN_BYTES = "plain decisions", 2 << 20
#: Decisions up to this long after a clock jump are affected by it, unless their limiter ignores steps.
_JUMP_NS, _JUMPS = 1_000_000_000, 64
_JUMP_KINDS = tuple(TABLES["clock_change"].code("kind", kind) for kind in ("step", "leap"))
#: What time daemons do all the time.
_ROUTINE_KINDS = tuple(TABLES["clock_change"].code("kind", kind) for kind in ("slew", "frequency"))
_WAITING = TABLES["slow_syscall"].code("kind", "waiting")
_ERROR = TABLES["limiter_decision"].code("result", "error")
#: How long after its arrival a decision waits for later children, and a possible child for its decision. Both wait for
#: a finding that names them, too: the correlator judges whole seconds, 0.3 s later.
HOLD_S = CHILD_HOLD_S = 2.0
#: RTT rows describe an interval, so the one for a decision may be some seconds older.
RTT_HOLD_S = 10.0
#: Burst of spans of one table, in seconds of max_spans_per_s.
BURST_S = 10
#: Rows per request: about 1 MB, below the 4 MiB that a gRPC receiver accepts by default.
MAX_ROWS = 1024
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "metrics",
        "rows that wait for a collector",
        "as set, in bytes",
        "the oldest are dropped",
        "`loss` (`otlp queue_full`), `status`",
        setting="`otlp: {max_queue_bytes: N}`",
    ),
    UpperBound(
        "metrics",
        "spans of one kind per second",
        f"as set; at once, those of {BURST_S} s",
        "further rows are only in metrics and store",
        "`unsampled` in `status`, `tickscope_otlp_unsampled_total`",
        setting="`otlp: {max_spans_per_s: N}`",
    ),
)


#: Arrival time, and the rows.
_Piece = tuple[float, np.ndarray]


class Waiting:
    """``put`` belongs to the agent's thread, ``take`` to the worker's. Times are CLOCK_MONOTONIC seconds."""

    def __init__(self, config: OtlpSettings) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._held: dict[str, deque[_Piece]] = {t: deque() for t in (*SPAN_TABLES, _PLAIN)}
        self._plain_bytes = 0
        self._jumps: deque[int] = deque(maxlen=_JUMPS)
        self._known: OrderedDict[bytes, bool] = OrderedDict()  # finding id -> whether it is open
        self._beside: OrderedDict[tuple[str, bytes], np.ndarray] = OrderedDict()
        self._evidence = FindingEvidence()
        self._opened: list[np.ndarray] = []
        self._closed: list[np.ndarray] = []
        self._tokens: dict[str, tuple[float, float]] = {}
        self._queue_full = self._shutdown = 0
        self.bytes = 0
        self.unsampled = 0

    def put(self, batch: Batch, now: float) -> None:
        """Keeps the rows that become spans, or that a span may need."""
        if batch.table in BESIDE_TABLES:
            self._put_beside(batch)
            return
        if batch.table == "clock_change":
            self._jumps.extend(batch.rows["t_ns"][np.isin(batch.rows["kind"], _JUMP_KINDS)].tolist())
        wanted = self._wanted(batch)
        if batch.table == "limiter_decision" and self._config.decisions == "affected":
            chosen = self._informative(wanted) | (randomness(wanted) >= threshold(self._config.sample))
            self._put_plain(wanted[~chosen], now)
            wanted = wanted[chosen]
        with self._lock:
            rows = self._within_rate(batch.table, wanted, now)
            if not len(rows):
                return
            self._held[batch.table].append((now, rows))
            self.bytes += rows.nbytes
            while self.bytes > self._config.max_queue_bytes:
                self._drop_oldest()

    def take(self, encoder: SpanEncoder, now: float, *, everything: bool) -> list[EncodedSpan]:
        """Spans that are due, at most about MAX_ROWS; with ``everything``, all spans. Empty if none is due."""
        until = now if everything else now - HOLD_S
        with self._lock:
            decisions = self._pop("limiter_decision", until, MAX_ROWS)
            plain = self._pop(_PLAIN, until, 1 << 30)
            held = (
                {t: list(self._held[t]) for t in (*_CHILDREN, "tcp_rtt") if self._held[t]}
                if len(decisions) or len(plain)
                else {}
            )
            for table in _CHILDREN:
                if table in held:
                    self._held[table].clear()
        spans: list[EncodedSpan] = []
        if len(decisions) or len(plain):
            beside = {t: _joined(pieces) for t, pieces in held.items()}
            decisions, certain = self._with_affected(decisions, plain, beside, now)
            pairs = children(decisions, beside)
            touched = (
                np.isin(np.arange(len(decisions)), [d for d, _, _ in pairs]) | certain | self._informative(decisions)
            )
            chance = np.where(touched | (self._config.decisions != "affected"), 1.0, self._config.sample)
            of = np.where(chance == 1, self._findings("limiter_decision", decisions), b"")
            spans += encoder.decisions(decisions, pairs, beside, chance, of)
            with self._lock:
                self._evidence.joined("limiter_decision", of)
                for table in _CHILDREN:
                    self._put_back(table, held.get(table, []), [row for _, t, row in pairs if t == table])
        with self._lock:
            waiting = self._held["limiter_decision"] or self._held[_PLAIN]
            # A child is dropped once no waiting decision could have been running at its arrival.
            oldest = (
                min(now, *(held[0][0] for held in (self._held["limiter_decision"], self._held[_PLAIN]) if held))
                if waiting
                else now
            )
            self._pop("tcp_rtt", oldest - RTT_HOLD_S, 1 << 30)
            until = now if everything and not waiting else oldest - CHILD_HOLD_S
            alone = [(t, *self._pop_alone(t, until)) for t in _ALONE]
            findings = self._sorted_out(self._pop("finding", now, MAX_ROWS))
            ids = [(table, bytes(its_id)) for its_id in findings["finding_id"] for table in BESIDE_TABLES]
            details = {key: self._beside.pop(key) for key in ids if key in self._beside}
        for table, rows, of in alone:
            spans += encoder.roots(table, rows, of)
        return spans + encoder.findings(findings, details)

    def changed(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of findings that have opened since the last call, and of those that have closed, each once."""
        with self._lock:
            both, self._opened, self._closed = (self._opened, self._closed), [], []
        opened, closed = (np.concatenate(rows) if rows else np.empty(0, TABLES["finding"].dtype) for rows in both)
        return opened, closed

    def _put_beside(self, batch: Batch) -> None:
        """Keeps all rows of one finding."""
        key = batch.table, bytes(batch.rows["finding_id"][0])
        with self._lock:
            if batch.table == "evidence":
                self._evidence.put(batch.rows)
            self._beside.pop(key, None)
            self._beside[key] = batch.rows
            while sum(rows.nbytes for rows in self._beside.values()) > _BESIDE_BYTES:
                self._beside.popitem(last=False)

    def _sorted_out(self, findings: np.ndarray) -> np.ndarray:
        """The closed findings. If logs are exported, the rows that opened or closed one go to ``changed``."""
        closed: np.ndarray = findings["state"] == TABLES["finding"].code("state", "closed")
        for i, is_closed in enumerate(closed.tolist() if self._config.logs else ()):
            finding_id = bytes(findings["finding_id"][i])
            before = self._known.pop(finding_id, None)
            self._known[finding_id] = not is_closed
            if before is None or (not before and not is_closed):
                self._log(self._opened, findings[i : i + 1])
            if is_closed and before is not False:
                self._log(self._closed, findings[i : i + 1])
        while len(self._known) > MAX_ROWS:
            self._known.popitem(last=False)
        done: np.ndarray = findings[closed]
        return done

    def _log(self, rows: list[np.ndarray], row: np.ndarray) -> None:
        if len(rows) < MAX_ROWS:
            rows.append(row)
        else:
            self._queue_full += 1

    def _put_plain(self, rows: np.ndarray, now: float) -> None:
        """Holds decisions that only a later row could make worth a span. The oldest are dropped first; this
        is no loss.
        """
        with self._lock:
            if len(rows):
                self._held[_PLAIN].append((now, rows))
                self._plain_bytes += rows.nbytes
                self.bytes += rows.nbytes
            while self._plain_bytes > _PLAIN_BYTES:
                _, oldest = self._held[_PLAIN].popleft()
                self._plain_bytes -= oldest.nbytes
                self.bytes -= oldest.nbytes
                self.unsampled += len(oldest)

    def _with_affected(
        self, decisions: np.ndarray, plain: np.ndarray, beside: Mapping[str, np.ndarray], now: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """(the decisions, and those plain ones that a row affects or a finding names; which of them are such)."""
        kept = self._after_jump(plain) | (self._findings("limiter_decision", plain) != b"")
        if len(plain) and any(t in beside for t in _CHILDREN):
            kept[list({d for d, _, _ in children(plain, {t: beside[t] for t in _CHILDREN if t in beside})})] = True
        with self._lock:
            affected = self._within_rate("limiter_decision", plain[kept][:MAX_ROWS], now)
            self.unsampled += len(plain) - min(int(kept.sum()), MAX_ROWS)
        certain = np.arange(len(decisions) + len(affected)) >= len(decisions)
        return np.concatenate([decisions, affected]), certain

    def _informative(self, decisions: np.ndarray) -> np.ndarray:
        """Decisions that become spans whatever comes after them: shape (n,) bool."""
        telling: np.ndarray = self._notable("limiter_decision", decisions) | self._after_jump(decisions)
        return telling

    def _findings(self, table: str, rows: np.ndarray) -> np.ndarray:
        """The finding that each row is evidence of; empty: none."""
        with self._lock:
            return self._evidence.findings(table, rows)

    def _after_jump(self, decisions: np.ndarray) -> np.ndarray:
        after: np.ndarray = np.zeros(len(decisions), np.bool_)
        for jump_ns in list(self._jumps):
            after |= (decisions["t_ns"] >= jump_ns) & (decisions["t_ns"] - jump_ns <= _JUMP_NS)
        after &= decisions["step_immune"] != 1
        return after

    def give_up(self, items: int) -> None:
        """Counts what is left, and the ``items`` of unaccepted requests, as lost at shutdown."""
        with self._lock:
            self._shutdown += items + sum(
                len(rows) for t, held in self._held.items() if t not in ("tcp_rtt", _PLAIN) for _, rows in held
            )
            self.unsampled += sum(len(rows) for _, rows in self._held[_PLAIN])
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
            rows = rows[self._notable(batch.table, rows) | (self._findings(batch.table, rows) != b"")]
        return _without_hist(rows) if batch.table == "tcp_rtt" else rows

    def _notable(self, table: str, rows: np.ndarray) -> np.ndarray:
        """Slow or failed, shape (n,) bool. No wait for input is slow, and no change of a clock that is routine."""
        if table == "clock_change":
            return ~np.isin(rows["kind"], _ROUTINE_KINDS)
        slow_ns = self._config.slow_s * 1e9
        notable: np.ndarray = np.asarray(rows["duration_ns"] >= slow_ns)
        if table == "limiter_decision":
            notable |= (rows["wait_ns"] >= slow_ns) | (rows["result"] == _ERROR)
        elif table == "slow_syscall":
            notable &= rows["kind"] != _WAITING
        else:
            notable |= rows["result"] != TABLES[table].code("result", "ok")
        return notable

    def _within_rate(self, table: str, rows: np.ndarray, now: float) -> np.ndarray:
        """The rows within the rate, notable ones first; findings, clock changes and RTT rows are never many."""
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
        if table == _PLAIN:
            self._plain_bytes -= rows.nbytes
            self.unsampled += len(rows)
        elif table != "tcp_rtt":
            self._queue_full += len(rows)

    def _pop(self, table: str, until: float, most: int) -> np.ndarray:
        """The rows that arrived until then, the oldest first, at most ``most``."""
        held, out, n = self._held[table], [], 0
        while held and held[0][0] <= until and n < most:
            at, rows = held.popleft()
            if n + len(rows) > most:
                held.appendleft((at, rows[most - n :]))
                rows = rows[: most - n]
            n += len(rows)
            self.bytes -= rows.nbytes
            self._plain_bytes -= rows.nbytes if table == _PLAIN else 0
            out.append((at, rows))
        return _joined(out) if out else np.empty(0, TABLES["limiter_decision" if table == _PLAIN else table].dtype)

    def _pop_alone(self, table: str, until: float) -> tuple[np.ndarray, np.ndarray]:
        """The next rows that arrived until then and become spans, at most MAX_ROWS; the finding of each, or empty."""
        while True:
            rows = self._pop(table, until, MAX_ROWS)
            of = self._evidence.findings(table, rows)
            kept = self._notable(table, rows) | (of != b"")
            self.unsampled += int((~kept).sum())
            if kept.any() or not len(rows):
                self._evidence.joined(table, of)
                return rows[kept], of[kept]

    def _put_back(self, table: str, pieces: list[_Piece], used: list[int]) -> None:
        """Holds rows again, without the used ones (indices into all pieces joined)."""
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
