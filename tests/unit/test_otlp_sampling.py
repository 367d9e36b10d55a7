"""Which decisions become spans by default: what tells something, and a stated sample of the rest."""

from __future__ import annotations

import numpy as np
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from agent.batch import Batch, make
from agent.tables import TABLES
from exporters.otlp_settings import read_otlp
from exporters.sampling import randomness, threshold, tracestate
from exporters.spans import SpanEncoder
from exporters.waiting import Waiting
from tests.unit.test_otlp_spans import attributes_of

_S, _WALL = 10**9, 1_700_000_000 * 10**9
_CODE = TABLES["limiter_decision"].code


def _backlog(**settings: object) -> Waiting:
    return Waiting(read_otlp({"endpoint": "http://127.0.0.1:1", "max_spans_per_s": 100_000, **settings}))


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
    encoder, out = SpanEncoder("boot", lambda t: t + _WALL), []
    while more := backlog.take(encoder, 9.0, everything=True):
        out += [Span.FromString(raw) for raw in more]
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


def test_refused_delayed_failed_and_slow_ones_all_go_out() -> None:
    results = [_CODE("result", name) for name in ("refused", "delayed", "error")] * 67
    spans = _spans(
        _backlog(sample=0), _decisions(201, result=results), _decisions(7, duration_ns=10_000_000), _decisions(99)
    )
    assert len(spans) == 208
    assert {(s.trace_state, attributes_of(s)["tickscope.sampling.probability"]) for s in spans} == {("ot=th:0", 1.0)}


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
    assert (
        len(_spans(_backlog(decisions="slow"), _decisions(997), _decisions(7, result=_CODE("result", "refused")))) == 7
    )


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
