"""The exporter against a strict receiver over real sockets: everything arrives, once, valid, whatever the receiver
does.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.batch import make
from agent.tables import TABLES
from exporters.aggregate import MetricStore
from exporters.metric import OTHER
from exporters.otlp import OtlpExporter
from exporters.points import PointEncoder
from tests.patience import until
from tests.ports import free_port
from tests.servers.otlp_load import (
    CALLS,
    CHANGES,
    DECISIONS,
    HANDSHAKES,
    RETRANSMITS,
    RTT_ROWS,
    SPANS,
    boot_ns,
    exporter,
    spans_only,
    workload,
)
from tests.servers.strict_receiver import Answer, Span, StrictReceiver, attributes


@pytest.fixture(params=["http/protobuf", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def receiver(protocol: str) -> Iterator[StrictReceiver]:
    with StrictReceiver(grpc=protocol == "grpc") as made:
        yield made


@pytest.fixture
def started() -> Iterator[list[OtlpExporter]]:
    """Exporters to close, whatever happens."""
    made: list[OtlpExporter] = []
    yield made
    for each in made:
        each.close()


def _feed(sink: OtlpExporter, store: MetricStore) -> int:
    now = boot_ns()
    for batch in workload(now):
        store.offer(batch)
        sink.offer(batch)
    return now


def test_every_row_arrives_once_and_valid(receiver: StrictReceiver, protocol: str, started: list[OtlpExporter]) -> None:
    store = MetricStore()
    sink = exporter(f"http://127.0.0.1:{receiver.port}", store, protocol=protocol)
    started.append(sink)
    _feed(sink, store)
    until(lambda: len(receiver.spans) >= SPANS and len(receiver.metrics) > 0)
    sink.close()
    assert receiver.violations == []
    handshakes = {(s.trace_id, s.span_id) for s in receiver.spans if s.name == "tls handshake"}
    histograms = [m.histogram for m in receiver.metrics if m.name == "tickscope.tls.handshake.duration"]
    exemplars = [one for h in histograms for point in h.data_points for one in point.exemplars]
    assert {one.as_double for one in exemplars} == {0.150000001}
    assert {(one.trace_id, one.span_id) for one in exemplars} <= handshakes
    names = [s.name for s in receiver.spans]
    assert len(names) == SPANS
    assert len({s.span_id for s in receiver.spans}) == SPANS
    assert names.count("syscall fsync") == CALLS
    assert names.count("tls handshake") == HANDSHAKES
    assert names.count("clock step") == CHANGES
    assert names.count("finding clock_step") == 1
    assert sum(n.startswith("decision ") for n in names) == DECISIONS
    parents = {s.span_id: s for s in receiver.spans}
    inside = [s for s in receiver.spans if s.name == "syscall fsync"]
    for call in inside:
        decision = parents[call.parent_span_id]
        assert decision.name.startswith("decision ")
        assert decision.trace_id == call.trace_id
        assert (
            decision.start_time_unix_nano
            <= call.start_time_unix_nano
            <= call.end_time_unix_nano
            <= decision.end_time_unix_nano
        )
        assert call.end_time_unix_nano - call.start_time_unix_nano == 11_000_003
    state = sink.state()
    assert (state["sent_spans"], state["rejected"], state["dropped"], state["state"]) == (SPANS, 0, 0, "ok")
    services = {r["service.name"]: r.get("process.pid") for r in receiver.resources}
    assert services == {"tickscope": None, "api": 41, "curl": 47, "chronyd": 53}
    assert {r["os.type"] for r in receiver.resources} == {"linux"}
    kinds = {s.name: s.kind for s in receiver.spans}
    assert (kinds["tls handshake"], kinds["syscall fsync"]) == (Span.SPAN_KIND_CLIENT, Span.SPAN_KIND_INTERNAL)
    finding = next(s for s in receiver.spans if s.name == "finding clock_step")
    evidence = [s for s in receiver.spans if s.name == "clock step"]
    assert {(s.trace_id, s.parent_span_id) for s in evidence} == {(finding.trace_id, finding.span_id)}


def test_kernel_buckets_become_histogram_points(
    receiver: StrictReceiver, protocol: str, started: list[OtlpExporter]
) -> None:
    store = MetricStore()
    sink = exporter(f"http://127.0.0.1:{receiver.port}", store, protocol=protocol)
    started.append(sink)
    _feed(sink, store)
    until(lambda: any(m.name == "tickscope.tcp.rtt" for m in receiver.metrics))
    point = next(m for m in receiver.metrics if m.name == "tickscope.tcp.rtt").histogram.data_points[0]
    counted = {bound: n for bound, n in zip(point.explicit_bounds, point.bucket_counts, strict=False) if n}
    assert counted == {0.000256: 2 * RTT_ROWS, 0.001024: RTT_ROWS}
    assert (point.count, point.min, point.max) == (3 * RTT_ROWS, 0.0002, 0.0006)
    assert point.sum == pytest.approx(3 * 0.000256 * RTT_ROWS)
    assert attributes(point.attributes) == {"process.executable.name": "api", "network.role": "client"}
    retransmits = next(m for m in receiver.metrics if m.name == "tickscope.tcp.retransmits").sum
    assert retransmits.is_monotonic
    assert {attributes(p.attributes)["tickscope.kind"]: p.as_int for p in retransmits.data_points} == {
        "data": RETRANSMITS,
        "synack": 0,
        "syn": 0,
        OTHER: 0,
    }


def test_deltas_add_up_across_failures(receiver: StrictReceiver, protocol: str, started: list[OtlpExporter]) -> None:
    """What was not delivered is in a later delta: the sum over all is the count of rows."""
    receiver.answers.extend([Answer(), Answer(status=503), Answer(status=503)])
    store = MetricStore()
    sink = exporter(
        f"http://127.0.0.1:{receiver.port}",
        store,
        protocol=protocol,
        temporality="delta",
        decisions="none",
        interval_s=0.2,
    )
    started.append(sink)
    for _ in range(5):
        store.offer(make("tcp_reset", 7, t_ns=boot_ns(), direction=0))
        _another_request(receiver)
    store.offer(make("tcp_reset", 2, t_ns=boot_ns(), direction=0))

    def total() -> int:
        return sum(
            p.as_int for m in list(receiver.metrics) if m.name == "tickscope.tcp.resets" for p in m.sum.data_points
        )

    until(lambda: total() == 37)
    sink.close()
    assert total() == 37
    assert receiver.violations == []


def _another_request(receiver: StrictReceiver) -> None:
    before = receiver.requests
    until(lambda: receiver.requests > before)


def test_partial_success_is_read_and_counted(
    receiver: StrictReceiver, protocol: str, started: list[OtlpExporter]
) -> None:
    receiver.answers.append(Answer(rejected=5, message="five too many"))
    sink = spans_only(f"http://127.0.0.1:{receiver.port}", protocol=protocol)
    started.append(sink)
    sink.offer(make("clock_change", 11, t_ns=boot_ns(), kind=0))
    until(lambda: sink.state()["rejected"] == 5)
    state = sink.state()
    assert (state["sent_spans"], state["last_error"]) == (6, "five too many")
    assert sink.losses()["rejected"] == 5


def test_a_refused_request_is_counted_and_not_repeated(
    receiver: StrictReceiver, protocol: str, started: list[OtlpExporter]
) -> None:
    receiver.answers.append(Answer(status=400))
    sink = spans_only(f"http://127.0.0.1:{receiver.port}", protocol=protocol)
    started.append(sink)
    sink.offer(make("clock_change", 13, t_ns=boot_ns(), kind=0))
    until(lambda: sink.losses()["rejected"] == 13)
    sink.offer(make("clock_change", 3, t_ns=boot_ns(), kind=0))
    until(lambda: len(receiver.spans) == 3)
    assert receiver.requests == 2


def test_an_unavailable_receiver_gets_the_same_spans_later(
    receiver: StrictReceiver, protocol: str, started: list[OtlpExporter]
) -> None:
    receiver.answers.extend([Answer(status=503), Answer(status=503)])
    sink = spans_only(f"http://127.0.0.1:{receiver.port}", protocol=protocol)
    started.append(sink)
    sink.offer(make("clock_change", 17, t_ns=boot_ns(), kind=0))
    until(lambda: len(receiver.spans) == 17)
    assert receiver.requests == 3
    assert sink.losses() == dict.fromkeys(sink.losses(), 0)


def test_a_decision_joins_the_trace_of_its_request(
    receiver: StrictReceiver, protocol: str, started: list[OtlpExporter]
) -> None:
    sink = spans_only(f"http://127.0.0.1:{receiver.port}", protocol=protocol)
    started.append(sink)
    sink.offer(
        make(
            "limiter_decision",
            2,
            t_ns=boot_ns(),
            result=TABLES["limiter_decision"].code("result", "error"),
            trace_id=[b"0af7651916cd43dd8448eb211c80319c", b"nonsense"],
            span_id=[b"b7ad6b7169203331", b"x"],
        )
    )
    until(lambda: len(receiver.spans) == 2)
    known, own = receiver.spans
    assert (known.trace_id.hex(), known.parent_span_id.hex()) == (
        "0af7651916cd43dd8448eb211c80319c",
        "b7ad6b7169203331",
    )
    assert own.parent_span_id == b""


def test_headers_and_compression(started: list[OtlpExporter]) -> None:
    with StrictReceiver() as receiver:
        sink = spans_only(f"http://127.0.0.1:{receiver.port}", headers="x-key=a%20b", compression="gzip")
        started.append(sink)
        sink.offer(make("clock_change", 1, t_ns=boot_ns(), kind=0))
        until(lambda: len(receiver.spans) == 1)
        assert (receiver.headers[0]["x-key"], receiver.headers[0]["content-encoding"]) == ("a b", "gzip")


def test_retry_after_is_honoured(started: list[OtlpExporter]) -> None:
    """A pause that is longer than the timeout is kept: the request waits, the exporter goes on."""
    with StrictReceiver() as receiver:
        receiver.answers.append(Answer(status=429, retry_after="3600"))
        sink = spans_only(f"http://127.0.0.1:{receiver.port}", timeout_s=0.5)
        started.append(sink)
        sink.offer(make("clock_change", 1, t_ns=boot_ns(), kind=0))
        until(lambda: sink.state()["state"] == "retrying")
        assert sink._lanes["traces"].not_before > time.monotonic() + 3000
        assert receiver.requests == 1


@pytest.mark.parametrize(
    "answer",
    [Answer(body=b"\xff\xff\xffhello"), Answer(status=301), Answer(drop=True)],
    ids=["garbage", "redirect", "dropped"],
)
def test_odd_answers_are_accounted_for(answer: Answer, started: list[OtlpExporter]) -> None:
    with StrictReceiver() as receiver:
        receiver.answers.append(answer)
        sink = spans_only(f"http://127.0.0.1:{receiver.port}", timeout_s=3)
        started.append(sink)
        sink.offer(make("clock_change", 7, t_ns=boot_ns(), kind=0))
        until(lambda: sink.state()["sent_spans"] + sink.state()["rejected"] == 7)  # type: ignore[operator]
        if not answer.drop:
            assert sink.state()["last_error"]
        assert sink.losses()["rejected"] == (0 if answer.drop else 7)
        assert len(receiver.spans) == (0 if answer.status == 301 else 7)


HTML = b"<!DOCTYPE html>\n<html><body>It works!</body></html>"
JSON = "application/json; charset=utf-8"


@pytest.mark.parametrize(
    ("content_type", "body", "rejected"),
    [
        ("application/x-protobuf", b"", 0),
        ("", b"", 0),
        ("text/html", b"", 0),
        ("application/json", b"", 0),  # as Prometheus answers, and frameworks
        ("", b"\n\x02\x08\x05", 5),
        ("application/octet-stream", b"\n\x02\x08\x05", 5),
        ("Application/X-Protobuf; a=b", b"\n\x02\x08\x05", 5),
        (JSON, b"{}", 0),
        (JSON, b' {"partialSuccess": {"rejectedSpans": "5"}, "took": 3}', 5),  # as servers answer that only know JSON
        ("text/html; charset=utf-8", HTML, 7),
        ("", HTML, 7),
        ("application/x-protobuf", HTML, 7),
        ("text/plain", b"\n\x00", 7),
        (JSON, b"[]", 7),
        (JSON, b'"OK"', 7),
        (JSON, b"{", 7),
        (JSON, b'{"partialSuccess": 1}', 7),
        (JSON, b'{"x":' + b"[" * 100_000, 7),
        (JSON, b"\xff", 7),
    ],
)
def test_only_an_otlp_response_reports_that_spans_arrived(
    content_type: str, body: bytes, rejected: int, started: list[OtlpExporter]
) -> None:
    """The specification's own answer, what real servers send instead of it, and what no collector sends."""
    with StrictReceiver() as receiver:
        receiver.answers.append(Answer(content_type=content_type, body=body))
        sink = spans_only(f"http://127.0.0.1:{receiver.port}")
        started.append(sink)
        sink.offer(make("clock_change", 7, t_ns=boot_ns(), kind=0))
        until(lambda: sink.state()["sent_spans"] + sink.state()["rejected"] == 7)  # type: ignore[operator]
        state = sink.state()
        assert (state["sent_spans"], sink.losses()["rejected"]) == (7 - rejected, rejected)
        assert ("is not an OTLP response" in str(state["last_error"])) == (rejected == 7)
        assert receiver.requests == 1


def test_a_web_server_that_answers_everybody_is_no_collector(started: list[OtlpExporter]) -> None:
    with StrictReceiver() as receiver:
        receiver.answers.extend([Answer(content_type="text/html", body=HTML)] * 1000)
        store = MetricStore()
        store.offer(make("tcp_reset", 1, t_ns=boot_ns()))
        sink = exporter(f"http://127.0.0.1:{receiver.port}", store, interval_s=0.1)
        started.append(sink)
        sink.offer(make("clock_change", 50, t_ns=boot_ns(), kind=0))
        until(lambda: sink.state()["state"] == "down" and sink.losses()["rejected"] >= 52)
        state = sink.state()
        assert (state["sent_spans"], state["sent_points"]) == (0, 0)
        assert "text/html" in str(state["last_error"])
        assert str(state["remedy"]).startswith("check the endpoint")
        receiver.answers.clear()
        until(lambda: sink.state()["state"] == "ok")


def test_a_dead_collector_costs_only_the_oldest_spans(protocol: str, started: list[OtlpExporter]) -> None:
    """Memory stays bounded, what is dropped is counted, and what is left arrives when the collector comes."""
    port = free_port()
    bound = 1 << 20
    sink = spans_only(f"http://127.0.0.1:{port}", protocol=protocol, max_queue_bytes=bound)
    started.append(sink)
    offered = 0
    for _ in range(211):
        sink.offer(make("clock_change", 101, t_ns=boot_ns() - np.arange(101), kind=0))
        offered += 101
        assert sink._backlog.bytes <= bound
    until(lambda: sink.state()["state"] == "down")
    assert sink.state()["remedy"]
    assert sink.losses()["queue_full"] > 0
    with StrictReceiver(port, grpc=protocol == "grpc") as receiver:
        until(lambda: len(receiver.spans) == offered - sink.losses()["queue_full"], 90)
        assert receiver.violations == []


def test_a_hanging_collector_does_not_hold_up_the_shutdown(protocol: str) -> None:
    """The worker is still in its request when ``close`` returns; what it had is counted as lost."""
    if protocol == "grpc":
        with socket.create_server(("127.0.0.1", 0)) as silent:
            _close_while_hanging(silent.getsockname()[1], protocol)
    else:
        with StrictReceiver() as receiver:
            receiver.answers.extend([Answer(hang=True)] * 9)
            _close_while_hanging(receiver.port, protocol)


def _close_while_hanging(port: int, protocol: str) -> None:
    sink = spans_only(f"http://127.0.0.1:{port}", protocol=protocol, timeout_s=60)
    sink.offer(make("clock_change", 19, t_ns=boot_ns(), kind=0))
    until(lambda: sink._lanes.get("traces") is not None and sink._lanes["traces"].request is not None)
    closer = threading.Thread(target=sink.close)
    closer.start()
    closer.join(15)
    assert not closer.is_alive()
    assert sink.losses()["shutdown"] >= 19  # and points of metrics, where their request had begun


def test_spans_and_points_that_nobody_took_are_lost_at_shutdown(protocol: str, started: list[OtlpExporter]) -> None:
    port = free_port()
    store = MetricStore()
    store.offer(make("tcp_reset", 7, t_ns=boot_ns(), comm=[b"a", b"b"] * 3 + [b"b"]))
    sink = exporter(f"http://127.0.0.1:{port}", store, protocol=protocol, timeout_s=1, interval_s=0.2)
    started.append(sink)
    sink.offer(make("clock_change", 50, t_ns=boot_ns(), kind=0))
    until(lambda: bool(sink._lanes) and all(sink._lanes[s].request for s in ("traces", "metrics")))
    sink.close()
    points = PointEncoder("cumulative", lambda t: t, 0).encode(store.collect(), boot_ns())[1]
    assert sink.losses() == {"queue_full": 0, "shutdown": 50 + points, "rejected": 0, "too_large": 0}
    sink.close()
    assert sink.losses()["shutdown"] == 50 + points


def test_the_grpc_process_is_started_again(started: list[OtlpExporter]) -> None:
    with StrictReceiver(grpc=True) as receiver:
        sink = spans_only(f"http://127.0.0.1:{receiver.port}", protocol="grpc")
        started.append(sink)
        sink.offer(make("clock_change", 3, t_ns=boot_ns(), kind=0))
        until(lambda: sink.state()["sent_spans"] == 3)
        first = sink.pids()[0]
        os.kill(first, 9)
        sink.offer(make("clock_change", 5, t_ns=boot_ns(), kind=0))
        until(lambda: len(receiver.spans) == 8)
        second = sink.pids()[0]
        assert second != first
        sink.close()
        assert sink.pids() == []
        assert not os.path.exists(f"/proc/{second}")


def test_ctrl_c_is_the_agent_s_to_answer_and_the_last_batch_still_goes(started: list[OtlpExporter]) -> None:
    """Terminal and systemd signal every process of the group."""
    with StrictReceiver(grpc=True) as receiver:
        sink = spans_only(f"http://127.0.0.1:{receiver.port}", protocol="grpc")
        started.append(sink)
        sink.offer(make("clock_change", 3, t_ns=boot_ns(), kind=0))
        until(lambda: bool(sink.pids()))
        pid = sink.pids()[0]
        os.kill(pid, signal.SIGINT)  # it still imports
        until(lambda: len(receiver.spans) == 3)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
        time.sleep(0.2)
        sink.offer(make("clock_change", 5, t_ns=boot_ns(), kind=0))
        sink.close()
        assert (len(receiver.spans), sink.losses()["shutdown"]) == (8, 0)


def _finding(state: str, now: int) -> object:
    return make(
        "finding",
        1,
        t_ns=now,
        finding_id=b"f7",
        state=TABLES["finding"].code("state", state),
        severity=1,
        start_ns=now - 9,
        end_ns=now,
        cause=b"clock_step",
        sentence=b"stepped",
        sentence_parts=b'["stepped at ", %d]' % now,
    )


def test_a_finding_is_a_record_when_it_opens_and_a_record_and_a_span_when_it_closes(
    receiver: StrictReceiver, protocol: str, started: list[OtlpExporter]
) -> None:
    sink, now = spans_only(f"http://127.0.0.1:{receiver.port}", protocol=protocol), boot_ns()
    started.append(sink)
    for _ in range(3):
        sink.offer(_finding("open", now))  # type: ignore[arg-type]
    until(lambda: len(receiver.logs) == 1)
    assert receiver.spans == []
    sink.offer(_finding("closed", now))  # type: ignore[arg-type]
    until(lambda: len(receiver.spans) == 1 and sink.state()["sent_logs"] == 2)
    (span,) = receiver.spans
    assert [(one.event_name, one.trace_id, one.span_id) for one in receiver.logs] == [
        (f"tickscope.finding.{event}", span.trace_id, span.span_id) for event in ("opened", "closed")
    ]
    assert receiver.violations == []


@pytest.mark.parametrize("answer", [Answer(status=404), Answer(status=501)])
def test_a_collector_without_logs_is_asked_once_and_nothing_is_lost(
    answer: Answer, started: list[OtlpExporter]
) -> None:
    with StrictReceiver() as receiver:
        receiver.answers.append(answer)
        sink, now = spans_only(f"http://127.0.0.1:{receiver.port}"), boot_ns()
        started.append(sink)
        sink.offer(_finding("open", now))  # type: ignore[arg-type]
        until(lambda: "logs" in sink.state())
        sink.offer(_finding("closed", now))  # type: ignore[arg-type]
        until(lambda: len(receiver.spans) == 1)
        state = sink.state()
        assert (state["state"], state["rejected"], receiver.requests) == ("ok", 0, 2)
        assert str(answer.status) in str(state["logs"])


#: What answers a request that is too large: nginx and most proxies; the Collector; gRPC.
LIMITED: dict[str, dict[str, Any]] = {
    "413": {},
    "400": {"too_large": Answer(status=400, body=b"\x08\x03\x12\x1ehttp: request body too large")},
    "grpc": {"grpc": True},
}


@pytest.mark.parametrize("kind", LIMITED)
def test_what_is_too_large_for_the_collector_is_sent_in_parts(kind: str, started: list[OtlpExporter]) -> None:
    with StrictReceiver(max_bytes=20_000, **LIMITED[kind]) as receiver:
        store = MetricStore()
        store.offer(make("tcp_reset", 300, t_ns=boot_ns(), direction=0, comm=[b"program-%d" % i for i in range(300)]))
        protocol = "grpc" if kind == "grpc" else "http/protobuf"
        sink = exporter(f"http://127.0.0.1:{receiver.port}", store, protocol=protocol)
        started.append(sink)
        sink.offer(make("clock_change", 1009, t_ns=boot_ns(), kind=0))

        def points() -> int:
            metrics = [m for m in list(receiver.metrics) if m.name == "tickscope.tcp.resets.by_process"]
            return len({str(p.attributes) for m in metrics for p in m.sum.data_points})

        until(lambda: len(receiver.spans) >= 1009 and points() >= 300)
        state = sink.state()
        assert (len(receiver.spans), state["sent_spans"], receiver.violations) == (1009, 1009, [])
        assert sink.losses() == dict.fromkeys(sink.losses(), 0)
        assert (state["state"], state["last_error"], state["errors"]) == ("ok", "", {})
        assert set(state["max_request_bytes"]) == {"traces", "metrics"}  # type: ignore[call-overload]


def test_what_is_too_large_for_a_proxy_before_a_grpc_collector_is_sent_in_parts(
    started: list[OtlpExporter], tmp_path: Path
) -> None:
    """nginx answers by HTTP, with 413."""
    port = free_port()
    with StrictReceiver(grpc=True) as receiver:
        (tmp_path / "nginx.conf").write_text(
            f"""daemon off; pid {tmp_path}/pid; error_log {tmp_path}/log; events {{}}
            http {{ access_log off; client_body_temp_path {tmp_path}/body; server {{ listen 127.0.0.1:{port} http2;
            client_max_body_size 4k; location / {{ grpc_pass grpc://127.0.0.1:{receiver.port}; }} }} }}"""
        )
        with subprocess.Popen(["nginx", "-c", tmp_path / "nginx.conf", "-e", tmp_path / "log"]) as nginx:
            try:
                sink = spans_only(f"http://127.0.0.1:{port}", protocol="grpc")
                started.append(sink)
                sink.offer(make("clock_change", 1009, t_ns=boot_ns(), kind=0))
                until(lambda: len(receiver.spans) >= 1009)
                assert sink.losses() == dict.fromkeys(sink.losses(), 0)
            finally:
                nginx.terminate()


@pytest.mark.parametrize("kind", LIMITED)
def test_one_span_that_is_too_large_is_lost_and_the_remedy_is_the_limit(kind: str, started: list[OtlpExporter]) -> None:
    with StrictReceiver(max_bytes=10, **LIMITED[kind]) as receiver:
        sink = spans_only(f"http://127.0.0.1:{receiver.port}", protocol="grpc" if kind == "grpc" else "http/protobuf")
        started.append(sink)
        sink.offer(make("clock_change", 3, t_ns=boot_ns(), kind=0))
        until(lambda: sink.losses()["too_large"] == 3)
        state = sink.state()
        assert (state["rejected"], state["dropped"], state["sent_spans"]) == (0, 3, 0)
        assert str(state["last_error"]).startswith("one item alone is larger than the receiver takes")
        assert state["errors"]["traces"]["remedy"] == state["remedy"]  # type: ignore[index]
        wanted = "max_recv_msg_size_mib" if kind == "grpc" else "max_request_body_size"
        assert wanted in str(state["remedy"])


def test_each_signal_has_its_own_last_error(started: list[OtlpExporter]) -> None:
    with StrictReceiver() as receiver:
        receiver.answers.append(Answer(rejected=5, message="five too many"))
        store = MetricStore()
        sink = exporter(f"http://127.0.0.1:{receiver.port}", store, interval_s=5)  # spans of lone events wait for 2 s
        started.append(sink)
        sink.offer(make("clock_change", 11, t_ns=boot_ns(), kind=0))
        until(lambda: sink.state()["rejected"] == 5)
        receiver.answers.append(Answer(status=403))
        store.offer(make("tcp_reset", 1, t_ns=boot_ns(), direction=0))
        until(lambda: "metrics" in sink.state()["errors"])  # type: ignore[operator]
        state = sink.state()
        assert state["last_error"] == "HTTP 403 Forbidden"
        errors: Any = state["errors"]
        assert errors["traces"]["last_error"] == "five too many"
        assert "OTEL_EXPORTER_OTLP_HEADERS" in errors["metrics"]["remedy"]
