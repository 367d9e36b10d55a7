"""Rows as spans: times, identities, findings, and values that OTLP would refuse."""

from __future__ import annotations

import errno
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from agent.batch import Batch, make
from agent.common.address import addr_text
from agent.common.places import NOWHERE, ProcessPlace
from agent.common.sentence import ToWall
from agent.tables import TABLES
from exporters.links import MAX_LINKS
from exporters.otlp_settings import read_otlp
from exporters.process_resource import PlaceOf, ProcessResources
from exporters.protobuf_pieces import AttributeCache, EncodedSpan, Envelope, field
from exporters.records import records
from exporters.sampling import randomness
from exporters.spans import SpanEncoder
from exporters.waiting import Waiting

_WALL = 1_700_000_000 * 10**9


def encoder_of(
    boot_id: str = "boot", to_wall: ToWall = lambda t: t + _WALL, place_of: PlaceOf = lambda *_: NOWHERE
) -> SpanEncoder:
    return SpanEncoder(boot_id, to_wall, ProcessResources({"service.name": "tickscope"}, place_of))


def _encoder() -> SpanEncoder:
    return encoder_of()


def span_of(encoded: EncodedSpan) -> Span:
    return Span.FromString(encoded.span)


def attributes_of(span: Span | Resource) -> dict[str, object]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value") or "") for a in span.attributes}


def resource_of(encoded: EncodedSpan) -> dict[str, object]:
    return attributes_of(Resource.FromString(encoded.resource))


_PODS = {"runtime": b"containerd", "namespace": b"shop", "container_name": b"app", "image": b"shop:1.4"}


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ({}, {"service.name": "python3"}),
        (
            {"unit": b"redis-server.service"},
            {"service.name": "redis-server", "systemd.unit.name": "redis-server.service"},
        ),
        ({"unit": b"postgresql@15-main.service"}, {"service.name": "postgresql@15-main"}),
        ({"unit": b"session-3.scope"}, {"service.name": "python3", "systemd.unit.name": "session-3.scope"}),
        ({"unit": b"user@1000.service"}, {"service.name": "python3"}),
        (
            {"container_name": b"redis1", "image": b"redis:7", "unit": b"podman.service"},
            {"service.name": "redis1", "container.name": "redis1", "container.image.name": "redis:7"},
        ),
        (
            {**_PODS, "pod": b"api-7c9d8b5f6-x2x4z", "pod_uid": b"4f1c"},
            {
                "service.name": "api",
                "service.namespace": "shop",
                "k8s.pod.name": "api-7c9d8b5f6-x2x4z",
                "k8s.pod.uid": "4f1c",
                "k8s.namespace.name": "shop",
                "k8s.container.name": "app",
                "container.image.name": "shop:1.4",
                "container.runtime.name": "containerd",
            },
        ),
        ({**_PODS, "pod": b"fluent-bit-x2x4z"}, {"service.name": "fluent-bit"}),
        ({**_PODS, "pod": b"kafka-2"}, {"service.name": "kafka"}),
        ({**_PODS, "pod": b"etcd-control-plane"}, {"service.name": "etcd-control-plane"}),
    ],
)
def test_a_span_belongs_to_the_service_that_was_observed(place: dict[str, bytes], expected: dict[str, str]) -> None:
    asked: list[tuple[int, int, int]] = []

    def place_of(*process: int) -> ProcessPlace:
        asked.append(process)  # type: ignore[arg-type]
        return ProcessPlace(**place)

    own = {
        "service.name": "edge",
        "service.version": "1",
        "k8s.pod.name": "tickscope-x2x4z",
        "k8s.node.name": "n7",
        "host.name": "web1",
        "team": "red",
    }
    encoder = SpanEncoder("boot", lambda t: t, ProcessResources(own, place_of))
    rows = make("slow_syscall", 2, t_ns=9, pid=41, proc_start_ns=5, cgroup_id=77, tid=[41, 43], comm=b"python3").rows
    found = [resource_of(one) for one in encoder.roots("slow_syscall", rows)]
    assert found[0] == found[1]
    known = {"process.pid": 41, "process.executable.name": "python3", "linux.cgroup.id": 77}
    assert {**found[0], **known, **expected, "host.name": "web1", "k8s.node.name": "n7", "team": "red"} == found[0]
    assert {"service.version"} & found[0].keys() == set()
    assert found[0].get("k8s.pod.name") == expected.get("k8s.pod.name", place.get("pod", b"").decode() or None)
    assert asked == [(41, 5, 77)]


def test_what_no_process_did_and_findings_belong_to_the_agent() -> None:
    encoder = _encoder()
    (leap,) = encoder.roots("clock_change", make("clock_change", 1, t_ns=9).rows)
    (finding,) = encoder.findings(_finding("closed", 100))
    assert resource_of(leap) == resource_of(finding) == {"service.name": "tickscope"}
    (other,) = encoder.roots("clock_change", make("clock_change", 1, t_ns=9, pid=5, comm=b"chronyd").rows)
    assert resource_of(other)["service.name"] == "chronyd"
    request = ExportTraceServiceRequest.FromString(Envelope({"service.name": "x"}).spans([leap, other, finding]))
    names = [[span.name for group in one.scope_spans for span in group.spans] for one in request.resource_spans]
    assert names == [["clock", "finding clock_step"], ["clock"]]


@pytest.mark.parametrize(
    ("table", "role", "kind"),
    [
        ("tcp_connect", "client", Span.SPAN_KIND_CLIENT),
        ("tls_handshake", "client", Span.SPAN_KIND_CLIENT),
        ("tls_handshake", "server", Span.SPAN_KIND_SERVER),
        ("tls_handshake", None, Span.SPAN_KIND_INTERNAL),
        ("limiter_decision", "client", Span.SPAN_KIND_CLIENT),
        ("limiter_decision", "server", Span.SPAN_KIND_SERVER),
        ("limiter_decision", None, Span.SPAN_KIND_INTERNAL),
    ],
)
def test_what_a_process_asks_is_of_kind_client_and_what_it_answers_server(
    table: str, role: str | None, kind: int
) -> None:
    stored = {} if role is None else {"role": TABLES[table].code("role", role)}
    rows = make(table, 1, t_ns=9, pid=5, **stored).rows
    encoder = _encoder()
    (one,) = encoder.decisions(rows, [], {}) if table == "limiter_decision" else encoder.roots(table, rows)
    assert span_of(one).kind == kind


def test_blocked_calls_are_internal() -> None:
    (one,) = _encoder().roots("slow_syscall", make("slow_syscall", 1, t_ns=9, pid=5, fd_type=b"socket").rows)
    assert span_of(one).kind == Span.SPAN_KIND_INTERNAL


def test_a_span_keeps_its_length_when_the_clock_moved_inside_it() -> None:
    stepped = encoder_of("boot", lambda t: t + np.where(t < 50, _WALL + 10**12, _WALL))
    (raw,) = stepped.roots("slow_syscall", make("slow_syscall", 1, t_ns=60, duration_ns=40).rows)
    span = span_of(raw)
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (_WALL + 20, _WALL + 60)


def test_ids_are_the_same_again_and_differ_between_rows_and_boots() -> None:
    rows = make("clock_change", 5, t_ns=[1, 2, 3, 3, 3], pid=7).rows
    first = [span_of(s) for s in _encoder().roots("clock_change", rows)]
    again = [span_of(s) for s in _encoder().roots("clock_change", rows)]
    other = [span_of(s) for s in encoder_of("another").roots("clock_change", rows)]
    assert [s.span_id for s in first] == [s.span_id for s in again]
    assert len({s.span_id for s in first + other}) == len({s.trace_id for s in first + other}) == 10


def test_unknown_columns_are_absent_and_known_ones_have_their_convention_names() -> None:
    rows = make(
        "tcp_connect",
        1,
        t_ns=9,
        result=TABLES["tcp_connect"].code("result", "failed"),
        errno=errno.ECONNREFUSED,
        dport=443,
        daddr=np.frombuffer(bytes(15) + b"\1", "V16"),
        comm=b"caf\xc3\xa9\xff",
    ).rows
    (encoded,) = _encoder().roots("tcp_connect", rows)
    span = span_of(encoded)
    assert resource_of(encoded)["process.executable.name"] == "caf\u00e9\ufffd"
    assert attributes_of(span) == {
        "error.type": "ECONNREFUSED",
        "network.peer.address": "::1",
        "network.peer.port": 443,
        "tickscope.result": "failed",
    }
    assert span.status.code == Status.STATUS_CODE_ERROR


def test_round_trip_times_are_events_inside_the_decision() -> None:
    decisions = make("limiter_decision", 1, t_ns=1000, duration_ns=100).rows
    rtt = make("tcp_rtt", 3, t_ns=[1500, 700, 950], interval_ns=600, srtt_us=[42, 43, 44]).rows
    (raw,) = _encoder().decisions(decisions, [(0, "tcp_rtt", i) for i in range(3)], {"tcp_rtt": rtt})
    span = span_of(raw)
    assert [(e.name, e.time_unix_nano - _WALL) for e in span.events] == [
        ("tcp rtt", 1000),
        ("tcp rtt", 900),
        ("tcp rtt", 950),
    ]
    assert [{a.key: a.value.int_value for a in e.attributes}["tickscope.srtt_us"] for e in span.events] == [42, 43, 44]
    many = make("tcp_rtt", 99, t_ns=950).rows
    span = span_of(_encoder().decisions(decisions, [(0, "tcp_rtt", i) for i in range(99)], {"tcp_rtt": many})[0])
    assert (len(span.events), span.dropped_events_count) == (8, 91)


@given(
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 3000)), min_size=1, max_size=9),
    st.integers(0, 1500),
    st.integers(-5000, 5000),
)
def test_children_lie_inside_their_decision_whatever_the_clock_did(
    calls: list[tuple[int, int]], length: int, step: int
) -> None:
    encoder = encoder_of("boot", lambda t: t + np.where(t < 900, _WALL + step, _WALL))
    decisions = make("limiter_decision", 1, t_ns=1000, duration_ns=length).rows
    rows = make("slow_syscall", len(calls), t_ns=[t for t, _ in calls], duration_ns=[d for _, d in calls]).rows
    parent, *children = [
        span_of(s)
        for s in encoder.decisions(
            decisions, [(0, "slow_syscall", i) for i in range(len(calls))], {"slow_syscall": rows}
        )
    ]
    for child, (t_ns, duration) in zip(children, calls, strict=True):
        assert (
            parent.start_time_unix_nano
            <= child.start_time_unix_nano
            <= child.end_time_unix_nano
            <= parent.end_time_unix_nano
        )
        drawn = child.end_time_unix_nano - child.start_time_unix_nano
        assert attributes_of(child).get("tickscope.duration_ns", drawn) == duration
        if 1000 - length <= t_ns - duration and t_ns <= 1000:
            assert (drawn, 1000 - t_ns) == (duration, parent.end_time_unix_nano - child.end_time_unix_nano)


def test_a_call_inside_two_decisions_is_two_spans() -> None:
    decisions = make("limiter_decision", 2, t_ns=[1000, 1001], duration_ns=100).rows
    calls = make("slow_syscall", 1, t_ns=950, duration_ns=10).rows
    spans = [
        span_of(s)
        for s in _encoder().decisions(
            decisions, [(0, "slow_syscall", 0), (1, "slow_syscall", 0)], {"slow_syscall": calls}
        )
    ]
    assert len({s.span_id for s in spans}) == 4
    assert [spans[2].trace_id, spans[3].trace_id] == [spans[0].trace_id, spans[1].trace_id]


def _finding(state: str, at: int, **more: object) -> np.ndarray:
    return make(
        "finding",
        1,
        t_ns=at,
        finding_id=b"f",
        state=TABLES["finding"].code("state", state),
        **{
            "start_ns": 70,
            "end_ns": at,
            "cause": b"clock_step",
            "severity": 1,
            "sentence": b"a step",
            "sentence_parts": b'["a step at ", 1250000000]',
            **more,
        },
    ).rows


_STEP = datetime.fromtimestamp((_WALL + 1_250_000_000) // 10**9, UTC)
_SENTENCE = f"a step at {_STEP:%Y-%m-%dT%H:%M:%S}.{(_WALL // 10**6 + 250) % 1000:03d}Z"


def _beside(*evidence: dict[str, object]) -> dict[tuple[str, bytes], np.ndarray]:
    """What the finding ``f`` rests on."""
    rows = [make("evidence", 1, **{"finding_id": b"f", "what": b"x", "keys": b"{}", **one}).rows for one in evidence]
    verdicts = make("verdict", 2, finding_id=b"f", cause=[b"clock_step", b"cpu"], score=[0.9, 0], ruled_out=[0, 1])
    return {("evidence", b"f"): np.concatenate(rows), ("verdict", b"f"): verdicts.rows}


def test_a_finding_is_one_span_with_evidence_and_links() -> None:
    encoder = _encoder()
    change = span_of(encoder.roots("clock_change", make("clock_change", 1, t_ns=77, pid=5).rows)[0])
    beside = _beside(
        {"table": b"clock_change", "value": 3, "t_ns": 77, "keys": b'{"pid":5}'}, {"table": b"cpu_wait", "t_ns": 99}
    )
    (raw,) = encoder.findings(_finding("closed", 100), beside)
    root = span_of(raw)
    assert (root.name, root.parent_span_id) == ("finding clock_step", b"")
    assert (root.status.code, root.status.message) == (Status.STATUS_CODE_ERROR, _SENTENCE)
    assert attributes_of(root)["tickscope.sentence"] == _SENTENCE
    assert (root.start_time_unix_nano - _WALL, root.end_time_unix_nano - _WALL) == (70, 100)
    assert [(e.name, e.time_unix_nano - _WALL) for e in root.events] == [
        ("cause", 100),
        ("evidence", 77),
        ("evidence", 99),
    ]
    assert [(link.trace_id, link.span_id) for link in root.links] == [(change.trace_id, change.span_id)]


def test_a_finding_waits_with_what_it_rests_on() -> None:
    """What came last counts; of a finding whose span was made nothing is kept."""
    waiting, encoder = Waiting(read_otlp({"endpoint": "http://127.0.0.1:1"})), _encoder()
    for at in (5, 6):
        for (table, _), rows in _beside({"table": b"cpu_wait", "t_ns": at}).items():
            waiting.put(Batch(table, rows), 0.0)
    waiting.put(Batch("finding", _finding("closed", 100)), 0.0)
    root = span_of(waiting.take(encoder, 1.0, everything=True)[0])
    assert [(e.name, e.time_unix_nano - _WALL) for e in root.events] == [("cause", 100), ("evidence", 6)]
    waiting.put(Batch("finding", _finding("closed", 100)), 1.0)
    assert not span_of(waiting.take(encoder, 2.0, everything=True)[0]).events


def test_a_notice_is_no_error() -> None:
    span = span_of(_encoder().findings(_finding("closed", 100, severity=0))[0])
    assert (span.status.code, span.status.message) == (Status.STATUS_CODE_UNSET, "")
    assert attributes_of(span)["tickscope.sentence"] == _SENTENCE


def test_an_open_finding_is_a_log_record_with_the_ids_of_its_span() -> None:
    encoder = _encoder()
    (raw,) = records("opened", _finding("open", 80), encoder, lambda t: t + _WALL, sampled=True)
    record, span = LogRecord.FromString(raw), span_of(encoder.findings(_finding("closed", 100))[0])
    assert (record.trace_id, record.span_id) == (span.trace_id, span.span_id)
    assert (record.body.string_value, record.severity_text, record.time_unix_nano - _WALL) == (_SENTENCE, "WARN", 80)
    assert {a.key: a.value.string_value for a in record.attributes}["tickscope.cause"] == "clock_step"
    assert (record.event_name, record.flags) == ("tickscope.finding.opened", 1)
    for event, row in (("opened", _finding("open", 80, severity=0)), ("closed", _finding("closed", 100))):
        (raw,) = records(event, row, encoder, lambda t: t + _WALL, sampled=False)
        record = LogRecord.FromString(raw)
        assert (record.event_name, record.severity_text) == (f"tickscope.finding.{event}", "INFO")
        assert (record.trace_id, record.span_id, record.flags) == (span.trace_id, span.span_id, 0)


@pytest.mark.parametrize(
    ("states", "opened", "closed"),
    [("open open", 1, 0), ("open closed closed", 1, 1), ("closed", 1, 1), ("open closed open closed", 2, 2)],
)
def test_each_opening_and_each_end_is_one_log_record(states: str, opened: int, closed: int) -> None:
    waiting, encoder = Waiting(read_otlp({"endpoint": "http://127.0.0.1:1"})), _encoder()
    for at, state in enumerate(states.split()):
        waiting.put(Batch("finding", _finding(state, 80 + at)), 0.0)
    waiting.take(encoder, 1.0, everything=True)
    assert [len(rows) for rows in waiting.changed()] == [opened, closed]
    assert [len(rows) for rows in waiting.changed()] == [0, 0]


def test_findings_do_not_wait_for_logs_that_are_off() -> None:
    waiting = Waiting(read_otlp({"endpoint": "http://127.0.0.1:1", "logs": "off"}))
    waiting.put(Batch("finding", _finding("open", 80)), 0.0)
    waiting.take(_encoder(), 1.0, everything=True)
    assert [len(rows) for rows in waiting.changed()] == [0, 0]


def test_a_finding_links_the_decisions_that_it_explains() -> None:
    encoder, s, n = _encoder(), 10**9, 3000
    refused = TABLES["limiter_decision"].code("result", "refused")
    rows = make(
        "limiter_decision", n, t_ns=np.arange(n) * s // 10 + 50 * s, pid=41, limiter_id=b"shop", result=refused
    ).rows
    spans = [span_of(raw) for raw in encoder.decisions(rows, [], {})]
    other = encoder.decisions(
        make("limiter_decision", 5, t_ns=200 * s, pid=41, limiter_id=b"mail", result=refused).rows, [], {}
    )
    start, end = 250 * s, 300 * s
    keys = b'{"pid":41,"limiter_id":"shop"}'
    beside = _beside({"table": b"limiter_decision", "t_ns": start, "end_ns": end, "keys": keys})
    root = span_of(encoder.findings(_finding("closed", end + 9 * s, start_ns=start, end_ns=end), beside)[0])
    links = [link.span_id for link in root.links]
    explained = {
        span.span_id: span.end_time_unix_nano - _WALL
        for span in spans
        if start - s <= span.end_time_unix_nano - _WALL <= end + s
    }
    assert 16 < len(links) <= MAX_LINKS
    assert 60 < root.dropped_links_count + len(links) < 120  # of ten a second that were explained two were kept
    assert set(links) <= set(explained)
    assert max(explained[i] for i in links) - min(explained[i] for i in links) > 40 * s  # spread over its time
    assert len(other) == 5


def test_which_share_a_decision_stands_for_is_reported() -> None:
    rows = make("limiter_decision", 2, t_ns=[1, 2], trace_id=[b"0123456789abcdef0123456789abcdef", b""]).rows
    first, second = (span_of(raw) for raw in _encoder().decisions(rows, [], {}, np.array([0.25, 1.0])))
    assert (first.trace_state, attributes_of(first)["tickscope.sampling.probability"]) == ("ot=th:c", 0.25)
    assert (second.trace_state, attributes_of(second)["tickscope.sampling.probability"]) == ("ot=th:0", 1.0)
    assert first.trace_id.hex() == "0123456789abcdef0123456789abcdef"
    assert int.from_bytes(second.trace_id[9:], "big") == int(randomness(rows)[1])


@given(
    st.lists(
        st.tuples(
            st.text(max_size=300), st.one_of(st.text(max_size=300), st.integers(-(2**63), 2**63 - 1), st.booleans())
        ),
        max_size=20,
    )
)
def test_concatenated_pieces_are_the_message(pairs: list[tuple[str, str | int | bool]]) -> None:
    """Every length of varint is met: what was put together by hand parses to what was meant."""
    cache = AttributeCache(9)
    body = Span(name="n").SerializeToString() + b"".join(
        cache.column(f"{i}{k}", [v])[0] for i, (k, v) in enumerate(pairs)
    )
    request = ExportTraceServiceRequest.FromString(Envelope({"service.name": "t"}).request([body, body]))
    first, second = request.resource_spans[0].scope_spans[0].spans
    assert first == second
    assert attributes_of(first) == {f"{i}{k}": v for i, (k, v) in enumerate(pairs)}
    assert field(2, bytes(200))[:3] == b"\x12\xc8\x01"


def test_addresses() -> None:
    assert addr_text(bytes(10) + b"\xff\xff\x7f\0\0\1") == "127.0.0.1"
    assert addr_text(bytes(15) + b"\1") == "::1"
    assert addr_text(bytes(16)) == ""
