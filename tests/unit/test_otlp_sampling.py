"""What becomes a span: slow and failed operations, evidence of findings, and of decisions a stated sample."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from agent.batch import Batch, make
from agent.common.address import peer_of
from agent.correlate.correlator import Correlator
from agent.correlate.thresholds import CorrelatorConfig
from agent.tables import TABLES
from exporters.otlp_settings import read_otlp
from exporters.sampling import randomness, threshold, tracestate
from exporters.waiting import BESIDE_TABLES, SPAN_TABLES, Waiting
from tests.unit.correlate_scenarios import T0, UNTIL, Host, broker_slow, clock_step, config, syscall, tls
from tests.unit.test_otlp_spans import attributes_of, encoder_of, span_of

_S, _WALL = 10**9, 1_700_000_000 * 10**9
_CODE = TABLES["limiter_decision"].code


def _backlog(**settings: object) -> Waiting:
    return Waiting(
        read_otlp({"endpoint": "http://127.0.0.1:1", "max_spans_per_s": 100_000, "sample": 0.01, **settings})
    )


def _decisions(n: int, **columns: object) -> Batch:
    return make(
        "limiter_decision",
        n,
        **{
            "t_ns": np.arange(n) * 1000 + _S,
            "pid": 41,
            "tid": 43,
            "duration_ns": 500,
            "limiter_id": b"shop",
            "result": _CODE("result", "allowed"),
            **columns,
        },
    )


def _spans(backlog: Waiting, *batches: Batch) -> list[Span]:
    for batch in batches:
        backlog.put(batch, 0.0)
    encoder, out = encoder_of(), []
    while more := backlog.take(encoder, 9.0, everything=True):
        out += [span_of(raw) for raw in more]
    return out


def test_of_plain_decisions_a_sample_goes_out_that_reports_it() -> None:
    backlog, n = _backlog(), 50_000
    spans = _spans(backlog, _decisions(n))
    assert 0.8 * 0.01 * n < len(spans) < 1.2 * 0.01 * n
    assert {(s.trace_state, attributes_of(s)["tickscope.sampling.probability"]) for s in spans} == {
        (tracestate(0.01), 0.01)
    }
    assert backlog.unsampled == n - len(spans)
    assert backlog.bytes == 0
    assert backlog.dropped() == {"queue_full": 0, "shutdown": 0}
    # The bits of the trace id are what decided: everybody who looks at them comes to the same.
    assert all(int.from_bytes(s.trace_id[9:], "big") >= threshold(0.01) for s in spans)


def test_failed_and_slow_ones_all_go_out_and_refused_ones_are_plain() -> None:
    spans = _spans(
        _backlog(sample=0),
        _decisions(67, result=_CODE("result", "error")),
        _decisions(7, duration_ns=100_000_000),
        _decisions(5, result=_CODE("result", "delayed"), wait_ns=100_000_000),
        _decisions(99, result=_CODE("result", "refused")),
        _decisions(97, result=_CODE("result", "delayed"), wait_ns=99_000_000),
    )
    assert len(spans) == 67 + 7 + 5
    assert {(s.trace_state, attributes_of(s)["tickscope.sampling.probability"]) for s in spans} == {("ot=th:0", 1.0)}


@pytest.mark.parametrize(
    ("table", "columns", "goes_out"),
    [
        ("slow_syscall", {"kind": "slow", "duration_ns": 99_000_000}, False),
        ("slow_syscall", {"kind": "slow", "duration_ns": 100_000_000}, True),
        ("slow_syscall", {"kind": "waiting", "duration_ns": 5 * _S}, False),
        ("tls_handshake", {"result": "ok", "duration_ns": 99_000_000}, False),
        ("tls_handshake", {"result": "ok", "duration_ns": 100_000_000}, True),
        ("tls_handshake", {"result": "failed", "duration_ns": 1}, True),
        ("tcp_connect", {"result": "ok", "duration_ns": 99_000_000}, False),
        ("tcp_connect", {"result": "failed", "duration_ns": 1}, True),
        ("clock_change", {"kind": "step"}, True),
        ("clock_change", {"kind": "frequency"}, False),
    ],
)
def test_of_lone_operations_the_slow_and_the_failed_go_out(
    table: str, columns: dict[str, object], goes_out: bool
) -> None:
    stored = {n: TABLES[table].code(n, v) if isinstance(v, str) else v for n, v in columns.items()}
    backlog = _backlog()
    spans = _spans(backlog, make(table, 3, t_ns=_S, pid=41, **stored))
    assert len(spans) == (3 if goes_out else 0)
    held = goes_out or table != "tcp_connect"  # fast connects are many, and no children
    assert (backlog.unsampled + len(spans), backlog.bytes) == (3 if held else 0, 0)


def test_many_fast_operations_are_left_out_at_once_and_are_no_losses() -> None:
    backlog = _backlog()
    fast = make("slow_syscall", 5000, t_ns=_S, pid=41, duration_ns=1, kind=0)
    slow = make("slow_syscall", 1, t_ns=_S, pid=41, duration_ns=_S, kind=0)
    assert len(_spans(backlog, fast, slow)) == 1
    backlog.give_up(0)
    assert (backlog.unsampled, backlog.dropped()) == (5000, {"queue_full": 0, "shutdown": 0})


def _evidence(**columns: object) -> Batch:
    given = {"finding_id": b"f1", "what": b"x", "t_ns": _S, "end_ns": 2 * _S, **columns}
    return make("evidence", 1, role=TABLES["evidence"].code("role", "for"), **given)


@pytest.mark.parametrize(
    ("table", "keys", "columns"),
    [
        ("slow_syscall", {"pid": 41, "syscall": "fsync"}, {"syscall": b"fsync", "kind": 0}),
        ("tls_handshake", {"peer": "10.9.8.7:443"}, {"result": 0}),
        ("tcp_connect", {"peer": "10.9.8.7:443", "pid": 41}, {"result": 0}),
        ("limiter_decision", {"limiter_id": "shop"}, {"result": 0, "limiter_id": b"shop", "tid": 1}),
    ],
)
def test_what_is_evidence_of_a_finding_goes_out_in_its_trace(
    table: str, keys: dict[str, object], columns: dict[str, object]
) -> None:
    """Faster than slow_s: only since it is evidence. Others of the same time are not."""
    peer = {} if table == "limiter_decision" else {"peer": np.frombuffer(peer_of("10.9.8.7:443"), "V18")}
    evidence = _evidence(table=table.encode(), keys=json.dumps(keys).encode())
    # They arrive after it, as while a finding is open.
    named = make(table, 5, t_ns=_S, pid=41, duration_ns=1000, **peer, **columns)
    other = make(table, 7, t_ns=_S, pid=42, duration_ns=1000, **{k: v for k, v in columns.items() if k == "result"})
    late = make(table, 3, t_ns=90 * _S, pid=41, duration_ns=1000, **peer, **columns)
    against = _evidence(table=table.encode(), keys=b"{}", finding_id=b"f2")
    against.rows["role"] = TABLES["evidence"].code("role", "against")
    spans = _spans(_backlog(sample=0), evidence, against, named, other, late)
    trace, root, _ = encoder_of().finding_ids(b"f1")
    assert [(s.trace_id, s.parent_span_id) for s in spans] == [(trace, root)] * 5
    assert len({s.span_id for s in spans}) == 5


def test_a_findings_trace_is_bounded_and_no_links_lead_into_it() -> None:
    backlog, encoder = _backlog(sample=0), encoder_of()
    evidence = _evidence(table=b"limiter_decision", keys=b'{"limiter_id":"shop","pid":41}')
    for batch in (evidence, *(_decisions(100, t_ns=_S + n * _S // 5) for n in range(5))):
        backlog.put(batch, 0.0)
    spans = [span_of(raw) for raw in backlog.take(encoder, 9.0, everything=True)]
    assert len(spans) == 64
    assert backlog.unsampled == 500 - 64
    closed = make("finding", 1, t_ns=3 * _S, finding_id=b"f1", state=TABLES["finding"].code("state", "closed"))
    backlog.put(closed, 0.0)
    root = span_of(backlog.take(encoder, 9.0, everything=True)[0])
    assert {s.trace_id for s in spans} == {root.trace_id}
    assert {s.parent_span_id for s in spans} == {root.span_id}
    assert (len(root.links), root.dropped_links_count) == (0, 0)


def test_a_decision_of_a_traced_request_stays_in_its_trace() -> None:
    trace = b"0123456789abcdef0123456789abcdef"
    evidence = _evidence(table=b"limiter_decision", keys=b'{"limiter_id":"shop"}')
    (span,) = _spans(_backlog(), evidence, _decisions(1, trace_id=trace, span_id=b"00f067aa0ba902b7"))
    assert (span.trace_id.hex().encode(), span.parent_span_id.hex()) == (trace, "00f067aa0ba902b7")


@pytest.mark.parametrize("keys", [b"[]", b"{", b'{"no_such":1}', b'{"peer":"nobody"}', b'{"pid":"x"}', b'{"pid":null}'])
def test_evidence_that_names_no_rows_of_this_version_is_left_out(keys: bytes) -> None:
    evidence = _evidence(table=b"slow_syscall", keys=keys)
    assert _spans(_backlog(), evidence, make("slow_syscall", 3, t_ns=_S, pid=41, duration_ns=1)) == []


def test_what_something_touched_goes_out() -> None:
    call = make("slow_syscall", 1, t_ns=5000 + _S, pid=41, tid=43, duration_ns=300, syscall=b"poll", kind=1)
    spans = _spans(_backlog(sample=0), _decisions(99), call)
    assert sorted(s.name for s in spans) == ["decision allowed", "syscall poll"]
    assert spans[0].end_time_unix_nano == _WALL + _S + 5000
    assert attributes_of(spans[0])["tickscope.sampling.probability"] == 1.0


def test_after_a_jump_of_the_clock_all_go_out_whose_limiter_does_not_ignore_it() -> None:
    jump = make("clock_change", 1, t_ns=_S + 50_000, kind=TABLES["clock_change"].code("kind", "step"))
    immune = _decisions(99, step_immune=1, limiter_id=b"immune")
    for order in ([jump, _decisions(99), immune], [_decisions(99), immune, jump]):  # whichever drains first
        decisions = [s for s in _spans(_backlog(sample=0), *order) if s.name == "decision allowed"]
        assert len(decisions) == 49
        assert {attributes_of(s)["rate_limiting.limiter.id"] for s in decisions} == {"shop"}


def test_a_trace_has_all_of_its_plain_decisions_or_none() -> None:
    traces = [f"{i:032x}".encode() for i in np.random.default_rng(5).integers(0, 2**63, 400)]
    traces = [t[16:] + t[16:] for t in traces]
    spans = _spans(_backlog(sample=0.25), _decisions(1200, trace_id=traces * 3, span_id=b"00f067aa0ba902b7"))
    counts: dict[bytes, int] = {}
    for span in spans:
        counts[span.trace_id] = counts.get(span.trace_id, 0) + 1
    assert 60 < len(counts) < 140
    assert set(counts.values()) == {3}
    assert all(int(t.hex()[-14:], 16) >= threshold(0.25) for t in counts)


def test_all_of_them_where_that_is_asked_for() -> None:
    assert len(_spans(_backlog(decisions="all"), _decisions(997))) == 997
    assert len(_spans(_backlog(decisions="none"), _decisions(997))) == 0
    assert len(_spans(_backlog(decisions="slow"), _decisions(997), _decisions(7, duration_ns=_S))) == 7


def test_plain_ones_that_wait_stay_bounded() -> None:
    backlog, batches = _backlog(sample=0), 40
    for _ in range(batches):
        backlog.put(_decisions(1000), 0.0)
    assert backlog.bytes <= 2 << 20
    assert _spans(backlog) == []
    assert (backlog.unsampled, backlog.bytes, backlog.dropped()["queue_full"]) == (1000 * batches, 0, 0)


def test_malformed_trace_ids_are_no_randomness() -> None:
    given = [
        b"",
        b"xyz",
        b"0123456789abcdef0123456789abcdeg",
        b"0123456789abcdef0123456789ABCDEF",
        b"0123456789abcdef0123456789abcdef",
    ]
    rows = make("limiter_decision", len(given), t_ns=np.arange(len(given)), pid=1, tid=1, trace_id=given).rows
    bits = randomness(rows).tolist()
    assert bits[3] == bits[4] == 0x23456789ABCDEF
    assert len(set(bits)) == 4
    assert max(bits) < 1 << 56


@pytest.mark.parametrize(
    ("scenario", "name"),
    [
        (broker_slow, "decision"),
        (tls, "decision"),
        (syscall, "decision"),
        (clock_step, "clock step"),
        (config, "decision"),
    ],
)
def test_the_trace_of_a_real_finding_has_the_operations_that_it_is_about(
    scenario: Callable[[], Host], name: str
) -> None:
    """The correlator judges what the exporter gets, in the order in which the agent hands it on."""
    backlog, encoder, correlator, host = _backlog(sample=0), encoder_of(), Correlator(CorrelatorConfig()), scenario()
    spans: list[Span] = []
    for second in range(T0 // _S, T0 // _S + UNTIL + 60):
        for made in host.made:
            rows = made.rows[made.rows["t_ns"] // _S == second]
            if len(rows):
                correlator.feed(Batch(made.table, rows))
                if made.table in SPAN_TABLES:
                    backlog.put(Batch(made.table, rows), float(second + 1))
        # 0.3 s behind the clock: the second that has just ended is judged at the next beat
        for found in correlator.advance((second + 1) * _S - 1):
            if found.table in SPAN_TABLES | BESIDE_TABLES:
                backlog.put(found, second + 1.3)
        spans += [span_of(raw) for raw in backlog.take(encoder, second + 2.0, everything=False)]
    while more := backlog.take(encoder, float(second + 60), everything=True):
        spans += [span_of(raw) for raw in more]
    (root,) = [span for span in spans if span.name.startswith("finding ")]
    own = [span for span in spans if span.trace_id == root.trace_id and span is not root]
    assert any(span.name.startswith(name) for span in own)
    assert len(own) <= 2 * 64
    others = {span.trace_id for span in spans} - {root.trace_id}
    assert {link.trace_id for link in root.links} <= others
