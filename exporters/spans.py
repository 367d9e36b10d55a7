"""Rows as spans: findings, decisions with their children, and the slow or rare events.

A span ends at its row's ``t_ns`` and lasts its row's duration, both CLOCK_BOOTTIME. Only the end is converted to wall time;
the start is that many nanoseconds before it, so that a span keeps its true length when the wall clock moved inside it.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from agent.clock.instants import dated
from agent.columns import NULL_I64, Column
from agent.tables import TABLES
from exporters.values import Value, column_values, text
from exporters.wire import AttributeCache, key_values

#: CLOCK_BOOTTIME ns, shape (n,) i64 -> Unix time ns by the offset history, shape (n,) i64.
ToWall = Callable[[np.ndarray], np.ndarray]

_ATTRIBUTES_FIELD = 9  # Span.attributes, trace.proto
#: Columns that a span carries elsewhere, or that mean nothing outside this host's memory.
_LEFT_OUT = frozenset({"t_ns", "duration_ns", "trace_id", "span_id", "proc_start_ns", "sock_id", "netns", "hist", "start_ns", "end_ns",
                       "evidence", "causes"})
_MAX_EVIDENCE = 64
_RECENT = 1024


@dataclass(frozen=True)
class Kind:
    """How a table's rows become spans: the name's first word, the column that completes it, and what makes it an error."""

    word: str
    column: str = ""
    error: tuple[str, frozenset[str]] = ("", frozenset())


KINDS: dict[str, Kind] = {
    "limiter_decision": Kind("decision", "result", ("result", frozenset({"error"}))),
    "slow_syscall": Kind("syscall", "syscall"),
    "tls_handshake": Kind("tls handshake", "", ("result", frozenset({"failed", "abandoned"}))),
    "tcp_connect": Kind("tcp connect", "", ("result", frozenset({"failed", "aborted"}))),
    "tcp_rtt": Kind("tcp rtt"),
    "clock_change": Kind("clock", "kind"),
    "finding": Kind("finding", "cause"),
}


class SpanEncoder:
    """Serialised spans from rows. Holds only a bounded cache; used by one thread.

    boot_id: makes ids of equal rows of different boots differ.
    """

    def __init__(self, boot_id: str, to_wall: ToWall) -> None:
        self._seed = boot_id.encode()
        self._to_wall = to_wall
        self._attribute = AttributeCache(_ATTRIBUTES_FIELD)
        self._recent: OrderedDict[tuple[str, int, int], tuple[bytes, bytes]] = OrderedDict()

    def roots(self, table: str, rows: np.ndarray) -> list[bytes]:
        """One span a row, each the root of a trace of its own."""
        return self._encode(table, rows, [self._trace(table, raw, nth) for raw, nth in _numbered(rows)], None)

    def decisions(self, rows: np.ndarray, children: Iterable[tuple[int, str, int]], tables: Mapping[str, np.ndarray]) -> list[bytes]:
        """A span a decision and one for each child ``(decision index, table, row index)``.

        A decision that knows the trace of its request takes part in it; others get a trace of their own.
        """
        ids = []
        for (raw, nth), trace_text, span_text in zip(_numbered(rows), rows["trace_id"].tolist(), rows["span_id"].tolist(), strict=True):
            own = self._trace("limiter_decision", raw, nth)
            trace, parent = _id(trace_text, 16), _id(span_text, 8)
            ids.append((trace, own[1], parent or b"") if trace else own)
        spans = self._encode("limiter_decision", rows, ids, None)
        by_table: dict[str, list[tuple[int, int]]] = {}
        for decision, table, row in children:
            by_table.setdefault(table, []).append((decision, row))
        for table, pairs in by_table.items():
            of, at = (np.array(x, np.int64) for x in zip(*pairs, strict=True))
            chosen = tables[table][at]
            child_ids = [(ids[d][0], self._hash(8, ids[d][1], table.encode(), raw), ids[d][1]) for d, raw in zip(of.tolist(), _raw(chosen), strict=True)]
            spans += self._encode(table, chosen, child_ids, rows[of])
        return spans

    def findings(self, rows: np.ndarray, known: set[bytes]) -> list[bytes]:
        """A root span for each closed finding; for one first seen open, a span of its own below it, so that it shows at once.

        known: ids of findings seen open; later rows of the same open finding are not exported. Kept by the caller.
        """
        out = []
        for i, state in enumerate(column_values(TABLES["finding"].by_name["state"], rows["state"])):
            finding_id = bytes(rows["finding_id"][i])
            digest = self._hash(24, b"finding", finding_id)
            if state == "closed":
                known.discard(finding_id)
                ids = (digest[:16], digest[16:], b"")
            elif finding_id in known:
                continue
            else:
                known.add(finding_id)
                ids = (digest[:16], self._hash(8, b"open", digest), digest[16:])
            out += self._encode("finding", rows[i : i + 1], [ids], None)
        return out

    def _hash(self, size: int, *parts: bytes) -> bytes:
        return blake2b(b"\0".join(parts), digest_size=size, key=self._seed[:64]).digest()

    def _trace(self, table: str, raw: bytes, nth: int) -> tuple[bytes, bytes, bytes]:
        digest = self._hash(24, table.encode(), raw, nth.to_bytes(4, "little"))
        return digest[:16], digest[16:], b""

    def _encode(self, table: str, rows: np.ndarray, ids: list[tuple[bytes, bytes, bytes]], inside: np.ndarray | None) -> list[bytes]:
        if not len(rows):
            return []
        kind = KINDS[table]
        start, end = self._times(table, rows, inside)
        cells = _cells(table, rows)
        names = cells.get(kind.column, [None] * len(rows))
        outcome = cells.get(kind.error[0], [None] * len(rows))
        columns = [self._attribute.column(_name(table, c), v) for c, v in cells.items()]
        attributes = [b"".join(row) for row in zip(*columns, strict=True)] if columns else [b""] * len(rows)
        out = []
        for i, (trace, span, parent) in enumerate(ids):
            message = Span(trace_id=trace, span_id=span, parent_span_id=parent, name=f"{kind.word} {names[i]}" if names[i] else kind.word,
                           kind=Span.SPAN_KIND_INTERNAL, start_time_unix_nano=start[i], end_time_unix_nano=end[i])
            if outcome[i] in kind.error[1]:
                message.status.code = Status.STATUS_CODE_ERROR
            if table == "finding":
                self._explain(message, rows[i])
            out.append(message.SerializeToString() + attributes[i])
        if "pid" in (rows.dtype.names or ()):
            for t_ns, pid, (trace, span, _) in zip(rows["t_ns"].tolist(), rows["pid"].tolist(), ids, strict=True):
                self._recent[table, t_ns, pid] = trace, span
            while len(self._recent) > _RECENT:
                self._recent.popitem(last=False)
        return out

    def _times(self, table: str, rows: np.ndarray, inside: np.ndarray | None) -> tuple[list[int], list[int]]:
        """(start, end) as Unix time ns."""
        end = rows["t_ns"].copy()
        if table == "finding":
            end, length = _or(rows["end_ns"], end), _or(rows["end_ns"], end) - _or(rows["start_ns"], end)
        elif table == "tcp_rtt":
            # What was measured is an interval; of it the part inside the decision, or all of it where they do not overlap.
            begin = end - _or(rows["interval_ns"], np.zeros_like(end))
            if inside is not None:
                low = np.maximum(begin, inside["t_ns"] - _or(inside["duration_ns"], np.zeros_like(end)))
                high = np.minimum(end, inside["t_ns"])
                begin, end = np.where(low <= high, low, begin), np.where(low <= high, high, end)
            length = end - begin
        elif "duration_ns" in (rows.dtype.names or ()):
            length = _or(rows["duration_ns"], np.zeros_like(end))
        else:
            length = np.zeros_like(end)
        wall = self._to_wall(end)
        return (wall - np.maximum(length, 0)).tolist(), wall.tolist()

    def _explain(self, message: Span, row: np.void) -> None:
        """A finding's causes and evidence as events, with links to the spans of the same event, where they were sent lately."""
        for word, column in (("cause", "causes"), ("evidence", "evidence")):
            for item in _items(row[column])[:_MAX_EVIDENCE]:
                flat = {k: v for k, v in item.items() if isinstance(v, str | int | float)}
                at, pid = flat.get("t_ns"), flat.get("pid")
                t_ns = at if isinstance(at, int) else int(row["t_ns"])
                message.events.add(time_unix_nano=int(self._to_wall(np.array([t_ns]))[0]), name=word,
                                   attributes=key_values((f"tickscope.{word}.{k}", v) for k, v in flat.items()))
                known = self._recent.get((str(flat.get("table")), t_ns, pid if isinstance(pid, int) else NULL_I64))
                if known:
                    message.links.add(trace_id=known[0], span_id=known[1])
        if sentence := text(bytes(row["sentence"])):
            message.status.message = dated(sentence, self._to_wall, utc=True)
            message.status.code = Status.STATUS_CODE_ERROR


def _items(raw: bytes) -> list[dict[str, object]]:
    """A JSON column's entries; a finding cut by its column's width has none, which its sentence does not depend on."""
    try:
        value = json.loads(raw) if raw else []
    except ValueError:
        return []
    return [v if isinstance(v, dict) else {"text": str(v)} for v in value] if isinstance(value, list) else []


def _raw(rows: np.ndarray) -> list[bytes]:
    size, raw = rows.dtype.itemsize, rows.tobytes()
    return [raw[i : i + size] for i in range(0, len(raw), size)]


def _numbered(rows: np.ndarray) -> list[tuple[bytes, int]]:
    """Each row's bytes, and how many equal rows came before it: two events that look alike are two spans."""
    seen: dict[bytes, int] = {}
    out = []
    for raw in _raw(rows):
        seen[raw] = nth = seen.get(raw, -1) + 1
        out.append((raw, nth))
    return out


def _or(values: np.ndarray, instead: np.ndarray) -> np.ndarray:
    return np.where(values == NULL_I64, instead, values)


def _id(raw: bytes, size: int) -> bytes | None:
    """A W3C id's bytes; None where it is missing, malformed or all zero."""
    if len(raw) != 2 * size:
        return None
    try:
        value = bytes.fromhex(raw.decode("ascii"))
    except ValueError:
        return None
    return value if any(value) else None


def _cells(table: str, rows: np.ndarray) -> dict[str, list[Value | None]]:
    names = rows.dtype.names or ()
    has_address = "daddr" in names
    out: dict[str, list[Value | None]] = {}
    for column in TABLES[table].columns:
        if column.name not in names or column.name in _LEFT_OUT or (column.kind == "peer" and has_address):
            continue
        values = column_values(column, rows[column.name])
        if any(v is not None for v in values):
            out[column.name] = values
    return out


def _name(table: str, column: str) -> str:
    declared: Column = TABLES[table].by_name[column]
    return declared.attribute or f"tickscope.{column}"
