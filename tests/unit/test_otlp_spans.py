"""Rows as spans: times, identities, findings, and values that OTLP would refuse."""

from __future__ import annotations

import errno
from datetime import UTC, datetime

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from agent.batch import make
from agent.tables import TABLES
from exporters.spans import SpanEncoder
from exporters.values import address
from exporters.wire import AttributeCache, Envelope, field

_WALL = 1_700_000_000 * 10**9


def _encoder() -> SpanEncoder:
    return SpanEncoder("boot", lambda t: t + _WALL)


def _attributes(span: Span) -> dict[str, object]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value") or "") for a in span.attributes}


def test_a_span_keeps_its_length_when_the_clock_moved_inside_it() -> None:
    stepped = SpanEncoder("boot", lambda t: t + np.where(t < 50, _WALL + 10**12, _WALL))
    (raw,) = stepped.roots("slow_syscall", make("slow_syscall", 1, t_ns=60, duration_ns=40).rows)
    span = Span.FromString(raw)
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (_WALL + 20, _WALL + 60)


def test_ids_are_the_same_again_and_differ_between_rows_and_boots() -> None:
    rows = make("clock_change", 5, t_ns=[1, 2, 3, 3, 3], pid=7).rows
    first = [Span.FromString(s) for s in _encoder().roots("clock_change", rows)]
    again = [Span.FromString(s) for s in _encoder().roots("clock_change", rows)]
    other = [Span.FromString(s) for s in SpanEncoder("another", lambda t: t + _WALL).roots("clock_change", rows)]
    assert [s.span_id for s in first] == [s.span_id for s in again]
    assert len({s.span_id for s in first + other}) == len({s.trace_id for s in first + other}) == 10


def test_unknown_columns_are_absent_and_known_ones_have_their_convention_names() -> None:
    rows = make("tcp_connect", 1, t_ns=9, result=TABLES["tcp_connect"].code("result", "failed"), errno=errno.ECONNREFUSED, dport=443,
                daddr=np.frombuffer(bytes(15) + b"\1", "V16"), comm=b"caf\xc3\xa9\xff").rows
    span = Span.FromString(_encoder().roots("tcp_connect", rows)[0])
    assert _attributes(span) == {"error.type": "ECONNREFUSED", "network.peer.address": "::1", "network.peer.port": 443,
                                 "process.command": "caf\u00e9\ufffd", "tickscope.result": "failed"}
    assert span.status.code == Status.STATUS_CODE_ERROR


def test_an_rtt_child_is_the_part_of_its_interval_inside_the_decision() -> None:
    decisions = make("limiter_decision", 1, t_ns=1000, duration_ns=100).rows
    rtt = make("tcp_rtt", 2, t_ns=[1500, 700], interval_ns=[600, 100], srtt_us=42).rows
    raw = _encoder().decisions(decisions, [(0, "tcp_rtt", 0), (0, "tcp_rtt", 1)], {"tcp_rtt": rtt})
    parent, inside, outside = (Span.FromString(s) for s in raw)
    assert (inside.start_time_unix_nano - _WALL, inside.end_time_unix_nano - _WALL) == (900, 1000)
    assert (outside.start_time_unix_nano - _WALL, outside.end_time_unix_nano - _WALL) == (600, 700)
    assert inside.parent_span_id == outside.parent_span_id == parent.span_id


def test_a_call_inside_two_decisions_is_two_spans() -> None:
    decisions = make("limiter_decision", 2, t_ns=[1000, 1001], duration_ns=100).rows
    calls = make("slow_syscall", 1, t_ns=950, duration_ns=10).rows
    spans = [Span.FromString(s) for s in _encoder().decisions(decisions, [(0, "slow_syscall", 0), (1, "slow_syscall", 0)], {"slow_syscall": calls})]
    assert len({s.span_id for s in spans}) == 4
    assert [spans[2].trace_id, spans[3].trace_id] == [spans[0].trace_id, spans[1].trace_id]


def test_a_finding_shows_at_once_and_ends_as_one_root_with_evidence_and_links() -> None:
    encoder, known = _encoder(), set[bytes]()
    change = Span.FromString(encoder.roots("clock_change", make("clock_change", 1, t_ns=77, pid=5).rows)[0])

    def seen(state: str, at: int) -> list[Span]:
        rows = make("finding", 1, t_ns=at, finding_id=b"f", state=TABLES["finding"].code("state", state), start_ns=70, end_ns=at, cause=b"clock_step",
                    sentence=b"a step at boot+1.250", evidence=b'[{"table":"clock_change","value":3,"t_ns":77,"pid":5},{"what":"x"}]').rows
        return [Span.FromString(s) for s in encoder.findings(rows, known)]

    (shown,) = seen("open", 80)
    assert seen("open", 90) == []
    (root,) = seen("closed", 100)
    said = datetime.fromtimestamp((_WALL + 1_250_000_000) // 10**9, UTC)
    assert (root.name, root.parent_span_id) == ("finding clock_step", b"")
    assert root.status.message == f"a step at {said:%Y-%m-%dT%H:%M:%S}.{(_WALL // 10**6 + 250) % 1000:03d}Z"
    assert (shown.trace_id, shown.parent_span_id) == (root.trace_id, root.span_id)
    assert (root.start_time_unix_nano - _WALL, root.end_time_unix_nano - _WALL) == (70, 100)
    assert [e.time_unix_nano - _WALL for e in root.events] == [77, 100]
    assert [(link.trace_id, link.span_id) for link in root.links] == [(change.trace_id, change.span_id)]
    assert known == set()


def test_evidence_that_was_cut_does_not_cost_the_finding() -> None:
    rows = make("finding", 1, t_ns=1, finding_id=b"f", state=1, start_ns=0, end_ns=1, evidence=b'[{"table":"clo').rows
    (span,) = (Span.FromString(s) for s in _encoder().findings(rows, set()))
    assert list(span.events) == []


@given(st.lists(st.tuples(st.text(max_size=300), st.one_of(st.text(max_size=300), st.integers(-(2**63), 2**63 - 1), st.booleans())), max_size=20))
def test_concatenated_pieces_are_the_message(pairs: list[tuple[str, str | int | bool]]) -> None:
    """Every length of varint is met: what was put together by hand parses to what was meant."""
    cache = AttributeCache(9)
    body = Span(name="n").SerializeToString() + b"".join(cache.column(f"{i}{k}", [v])[0] for i, (k, v) in enumerate(pairs))
    request = ExportTraceServiceRequest.FromString(Envelope({"service.name": "t"}).request([body, body]))
    first, second = request.resource_spans[0].scope_spans[0].spans
    assert first == second
    assert _attributes(first) == {f"{i}{k}": v for i, (k, v) in enumerate(pairs)}
    assert field(2, bytes(200))[:3] == b"\x12\xc8\x01"


def test_addresses() -> None:
    assert address(bytes(10) + b"\xff\xff\x7f\0\0\1") == "127.0.0.1"
    assert address(bytes(15) + b"\1") == "::1"
    assert address(bytes(16)) is None
