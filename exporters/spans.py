"""Rows as spans: findings, decisions with their children, and slow or rare events.

A span ends at its row's ``t_ns`` and lasts its row's duration, both CLOCK_BOOTTIME. Only the end is converted to wall
time, and the start is that many nanoseconds earlier, so that a span keeps its true length across a step. A child is
placed relative to its decision's end, so it lies inside in any case. If it began before its decision, only the part
inside is shown, and ``tickscope.duration_ns`` has its whole length. A round-trip time is a sample without a duration:
an event of its decision.
"""

from __future__ import annotations

import json
from _blake2 import blake2b  # hashlib would load OpenSSL
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from agent.common.sentence import ToWall, pieces, text_of
from exporters.aggregate import MetricStore
from exporters.links import Links
from exporters.process_resource import ProcessResources
from exporters.protobuf_pieces import AttributeCache, EncodedSpan, field, key_values
from exporters.sampling import randomness, tracestate
from exporters.span_cells import (
    CHANCE,
    attribute_of,
    cells_of,
    dicts,
    known_or,
    numbered,
    raw_rows,
    w3c_id,
)
from exporters.values import Value

_ATTRIBUTES_FIELD, _EVENTS_FIELD, _EVENT_ATTRIBUTES_FIELD = (
    9,
    11,
    3,
)  # Span.attributes, Span.events, Span.Event.attributes in trace.proto
#: Columns of ``evidence`` that its span or event has already.
_ELSEWHERE = ("finding_id", "as_of_ns", "t_ns")
#: Round-trip samples of one decision.
_MAX_SAMPLES = 8


@dataclass(frozen=True)
class SpanKind:
    """How a table's rows become spans: the name's first word, the column that completes it, what makes it an error, and
    the column that tells whether the process asked another one or answered it.
    """

    word: str
    column: str = ""
    error: tuple[str, frozenset[str]] = ("", frozenset())
    role: str = ""


_ROLES: dict[Value | None, Span.SpanKind.ValueType] = {
    "client": Span.SPAN_KIND_CLIENT,
    "server": Span.SPAN_KIND_SERVER,
}
KINDS: dict[str, SpanKind] = {
    "limiter_decision": SpanKind("decision", "result", ("result", frozenset({"error"})), "role"),
    "slow_syscall": SpanKind("syscall", "syscall"),
    "tls_handshake": SpanKind("tls handshake", "", ("result", frozenset({"failed", "abandoned"})), "role"),
    "tcp_connect": SpanKind("tcp connect", "", ("result", frozenset({"failed", "aborted"})), "role"),
    "clock_change": SpanKind("clock", "kind"),
    "finding": SpanKind("finding", "cause", ("severity", frozenset({"alarm"}))),
}


class SpanEncoder:
    """Serialised spans from rows. Has only bounded caches; used by one thread.

    boot_id: makes ids of equal rows of different boots differ. metrics: gets the spans as exemplars of the histograms
    that count their rows. findings, in the methods: the finding that each row is evidence of
    (exporters/finding_evidence.py); its span is a child of the finding's, which comes later.
    """

    def __init__(
        self, boot_id: str, to_wall: ToWall, resources: ProcessResources, metrics: MetricStore | None = None
    ) -> None:
        self._seed = boot_id.encode()
        self._to_wall, self._resources, self._metrics = to_wall, resources, metrics
        self._attribute, self._event_attribute = (
            AttributeCache(_ATTRIBUTES_FIELD),
            AttributeCache(_EVENT_ATTRIBUTES_FIELD),
        )
        self._links = Links()
        self._beside: Mapping[tuple[str, bytes], np.ndarray] = {}

    def roots(self, table: str, rows: np.ndarray, findings: np.ndarray | None = None) -> list[EncodedSpan]:
        """One span per row, each the root of a trace of its own if it is no evidence."""
        ids = [
            self._joined(finding, self._trace(table, raw, nth))
            for (raw, nth), finding in zip(numbered(rows), _or_none(findings, rows), strict=True)
        ]
        return self._of_processes(rows, self._encode(table, rows, ids, None))

    def decisions(
        self,
        rows: np.ndarray,
        children: Iterable[tuple[int, str, int]],
        tables: Mapping[str, np.ndarray],
        chance: np.ndarray | None = None,
        findings: np.ndarray | None = None,
    ) -> list[EncodedSpan]:
        """A span per decision and per child ``(decision index, table, row index)``; round-trip times become events.

        A decision with its request's trace id joins that trace; others get a trace of their own if they are no
        evidence. chance: the probability with which each decision of its kind became a span, shape (n,); 1 if None.
        """
        chances = np.ones(len(rows)) if chance is None else chance
        ids = []
        given = zip(
            numbered(rows),
            randomness(rows).tolist(),
            rows["trace_id"].tolist(),
            rows["span_id"].tolist(),
            _or_none(findings, rows),
            strict=True,
        )
        for (raw, nth), random, trace_text, span_text, finding in given:
            own = self._trace("limiter_decision", raw, nth)
            trace, parent = w3c_id(trace_text, 16), w3c_id(span_text, 8)
            if trace:
                ids.append((trace, own[1], parent or b""))
            else:
                ids.append(self._joined(finding, (own[0][:9] + random.to_bytes(7, "big"), own[1], b"")))
        bodies = self._encode("limiter_decision", rows, ids, None, chances)
        by_table: dict[str, list[tuple[int, int]]] = {}
        for decision, table, row in children:
            by_table.setdefault(table, []).append((decision, row))
        for d, events in self._samples(rows, by_table.pop("tcp_rtt", []), tables).items():
            beyond = len(events) - _MAX_SAMPLES
            bodies[d] += b"".join(events[:_MAX_SAMPLES]) + (
                Span(dropped_events_count=beyond).SerializeToString() if beyond > 0 else b""
            )
        spans = self._of_processes(rows, bodies)
        for table, pairs in by_table.items():
            of, at = (np.array(x, np.int64) for x in zip(*pairs, strict=True))
            chosen = tables[table][at]
            child_ids = [
                (ids[d][0], self._hash(8, ids[d][1], table.encode(), raw), ids[d][1])
                for d, raw in zip(of.tolist(), raw_rows(chosen), strict=True)
            ]
            spans += self._of_processes(chosen, self._encode(table, chosen, child_ids, rows[of]))
        for i in np.flatnonzero(chances == 1).tolist():
            limiter = rows["limiter_id"][i].decode("utf-8", "backslashreplace")
            self._links.decision(limiter, int(rows["t_ns"][i]), int(rows["pid"][i]), ids[i][:2])
        return spans

    def _samples(
        self, decisions: np.ndarray, pairs: list[tuple[int, int]], tables: Mapping[str, np.ndarray]
    ) -> dict[int, list[bytes]]:
        """Serialised events by decision: the samples of its sockets' round-trip time, at the end of their interval if
        that is inside.
        """
        out: dict[int, list[bytes]] = {}
        if not pairs:
            return out
        of, at = (np.array(x, np.int64) for x in zip(*pairs, strict=True))
        chosen, inside = tables["tcp_rtt"][at], decisions[of]
        wall, _ = self._inside(chosen["t_ns"], np.zeros_like(chosen["t_ns"]), inside)
        cells = cells_of("tcp_rtt", chosen)
        columns = [self._event_attribute.column(attribute_of("tcp_rtt", c), v) for c, v in cells.items()]
        attributes = [b"".join(row) for row in zip(*columns, strict=True)] if columns else [b""] * len(chosen)
        for d, end, more in zip(of.tolist(), wall.tolist(), attributes, strict=True):
            event = Span.Event(name="tcp rtt", time_unix_nano=end).SerializeToString() + more
            out.setdefault(d, []).append(field(_EVENTS_FIELD, event))
        return out

    def findings(
        self, rows: np.ndarray, beside: Mapping[tuple[str, bytes], np.ndarray] | None = None
    ) -> list[EncodedSpan]:
        """One root span per finding, of the agent itself; rows of closed ones. beside: rows of ``verdict`` and
        ``evidence``, by table and finding id.
        """
        self._beside = beside or {}
        ids = [self.finding_ids(bytes(row["finding_id"])) for row in rows]
        return self._of_processes(rows, self._encode("finding", rows, ids, None))

    def finding_ids(self, finding_id: bytes) -> tuple[bytes, bytes, bytes]:
        """(trace, span, no parent) of a finding's present or future span."""
        digest = self._hash(24, b"finding", finding_id)
        return digest[:16], digest[16:], b""

    def _joined(self, finding: bytes | None, own: tuple[bytes, bytes, bytes]) -> tuple[bytes, bytes, bytes]:
        """(trace, span, parent) of what is evidence of a finding; else its own."""
        if not finding:
            return own
        trace, root, _ = self.finding_ids(finding)
        return trace, own[1], root

    def _of_processes(self, rows: np.ndarray, bodies: list[bytes]) -> list[EncodedSpan]:
        return [EncodedSpan(of, body) for of, body in zip(self._resources.of(rows), bodies, strict=True)]

    def _hash(self, size: int, *parts: bytes) -> bytes:
        return blake2b(b"\0".join(parts), digest_size=size, key=self._seed[:64]).digest()

    def _trace(self, table: str, raw: bytes, nth: int) -> tuple[bytes, bytes, bytes]:
        digest = self._hash(24, table.encode(), raw, nth.to_bytes(4, "little"))
        return digest[:16], digest[16:], b""

    def _encode(
        self,
        table: str,
        rows: np.ndarray,
        ids: list[tuple[bytes, bytes, bytes]],
        inside: np.ndarray | None,
        chances: np.ndarray | None = None,
    ) -> list[bytes]:
        if not len(rows):
            return []
        kind = KINDS[table]
        start, end, cut = self._times(table, rows, inside)
        cells = self.cells(table, rows)
        if cut.any():
            cells["duration_ns"] = [
                int(v) if c else None for v, c in zip(rows["duration_ns"].tolist(), cut.tolist(), strict=True)
            ]
        if chances is not None:
            cells[CHANCE] = list(chances.tolist())
        unknown: list[Value | None] = [None] * len(rows)
        names, roles = cells.get(kind.column, unknown), cells.get(kind.role, unknown)
        outcome = cells.get(kind.error[0], unknown)
        columns = [self._attribute.column(attribute_of(table, c), v) for c, v in cells.items()]
        attributes = [b"".join(row) for row in zip(*columns, strict=True)] if columns else [b""] * len(rows)
        out = []
        for i, (trace, span, parent) in enumerate(ids):
            message = Span(
                trace_id=trace,
                span_id=span,
                parent_span_id=parent,
                name=f"{kind.word} {names[i]}" if names[i] else kind.word,
                kind=_ROLES.get(roles[i], Span.SPAN_KIND_INTERNAL),
                start_time_unix_nano=start[i],
                end_time_unix_nano=end[i],
            )
            if chances is not None:
                message.trace_state = tracestate(float(chances[i]))
            if outcome[i] in kind.error[1]:
                message.status.code = Status.STATUS_CODE_ERROR
            if table == "finding":
                self._explain(message, rows[i])
                if outcome[i] in kind.error[1]:
                    message.status.message = str((cells.get("sentence") or [None] * len(rows))[i] or "")
            out.append(message.SerializeToString() + attributes[i])
        if self._metrics is not None:
            self._metrics.exemplify(table, rows, [(trace, span) for trace, span, _ in ids], end)
        if "pid" in (rows.dtype.names or ()):
            for t_ns, pid, (trace, span, _) in zip(rows["t_ns"].tolist(), rows["pid"].tolist(), ids, strict=True):
                self._links.event(table, t_ns, pid, (trace, span))
        return out

    @staticmethod
    def attribute_name(column: str) -> str:
        """The attribute name of a column of ``finding``."""
        return attribute_of("finding", column)

    def cells(self, table: str, rows: np.ndarray) -> dict[str, list[Value | None]]:
        """A row's columns as attribute values. Findings' sentences get wall times (UTC), since boot+ means nothing
        outside.
        """
        out = cells_of(table, rows)
        if "sentence" in out:
            sentences = zip(rows["sentence_parts"].tolist(), rows["sentence"].tolist(), strict=True)
            out["sentence"] = [text_of(pieces(*one), self._to_wall, utc=True) if one[1] else None for one in sentences]
        return out

    def _times(
        self, table: str, rows: np.ndarray, inside: np.ndarray | None
    ) -> tuple[list[int], list[int], np.ndarray]:
        """(start, end) as Unix time ns, and whether the start was cut off."""
        end = rows["t_ns"].copy()
        if table == "finding":
            end, length = known_or(rows["end_ns"], end), known_or(rows["end_ns"], end) - known_or(rows["start_ns"], end)
        elif "duration_ns" in (rows.dtype.names or ()):
            length = known_or(rows["duration_ns"], np.zeros_like(end))
        else:
            length = np.zeros_like(end)
        length = np.maximum(length, 0)
        wall, most = (self._to_wall(end), length) if inside is None else self._inside(end, length, inside)
        return (wall - most).tolist(), wall.tolist(), most < length

    def _inside(self, end: np.ndarray, length: np.ndarray, decisions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(end as Unix time, length) of the part of a child inside its decision; only the decision's end is
        converted.
        """
        last = decisions["t_ns"]
        first = last - np.maximum(known_or(decisions["duration_ns"], np.zeros_like(last)), 0)
        ends = np.clip(end, first, last)
        return self._to_wall(last) - (last - ends), np.minimum(length, ends - first)

    def _explain(self, message: Span, row: np.void) -> None:
        """Adds a finding's causes and evidence as events, with links to the spans that it explains, if they were sent
        recently.
        """
        its_id = bytes(row["finding_id"])
        verdicts, evidence = (
            dicts(table, self._beside[table, its_id]) if (table, its_id) in self._beside else []
            for table in ("verdict", "evidence")
        )
        causes = [
            {"cause": v["cause"], "confidence": v["score"], "words": v.get("reason", "")}
            for v in verdicts
            if not v["ruled_out"] and (v["score"] or v["cause"] == "unknown")
        ]
        for word, listed in (("cause", causes), ("evidence", evidence)):
            for one in listed:
                at = int(one.get("t_ns", row["t_ns"]))
                message.events.add(
                    time_unix_nano=int(self._to_wall(np.array([at]))[0]),
                    name=word,
                    attributes=key_values(
                        (f"tickscope.{word}.{name}", v) for name, v in one.items() if name not in _ELSEWHERE
                    ),
                )
        decoded = [{**one, "keys": json.loads(str(one["keys"]))} for one in evidence]
        links, message.dropped_links_count = self._links.of(decoded, message.trace_id)
        for trace, span in links:
            message.links.add(trace_id=trace, span_id=span)


def _or_none(findings: np.ndarray | None, rows: np.ndarray) -> list[bytes | None]:
    return [None] * len(rows) if findings is None else findings.tolist()
