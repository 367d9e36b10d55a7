"""The Prometheus text endpoint over real sockets: what it says, and clients that mean no good."""

from __future__ import annotations

import gzip
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families as text_parser

from agent.batch import Batch, make
from agent.errors import AgentError
from agent.tables import TABLES
from exporters.aggregate import MetricStore
from exporters.exposition import render
from exporters.metrics import METRICS
from exporters.page_request import known_host
from exporters.page_server import MAX_CONNECTIONS, MAX_REQUEST_BYTES
from exporters.page_settings import MetricsSettings
from exporters.peer import owner
from exporters.process_resource import ProcessResources
from exporters.prometheus import FRESH_S, PrometheusEndpoint
from exporters.spans import SpanEncoder
from tests.patience import until


@pytest.fixture
def store() -> MetricStore:
    made = MetricStore()
    made.offer(make("tcp_reset", 7, t_ns=1, comm=b'a"b\\c', direction=0))
    made.offer(make("tls_handshake", 3, t_ns=1, comm=b"curl", duration_ns=[900, 1024, 5_000_000]))
    made.offer(make("clock_offset", 1, t_ns=1, real_mono_ns=1_700_000_000_123_456_789))
    return made


@pytest.fixture
def endpoint(store: MetricStore) -> Iterator[PrometheusEndpoint]:
    made = PrometheusEndpoint(("127.0.0.1", 0), store, {"service.name": "tickscope"})
    yield made
    made.close()


def _get(endpoint: PrometheusEndpoint) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=20) as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode()).splitlines()


def _raw(endpoint: PrometheusEndpoint, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=20) as client:
        client.sendall(request)
        out = b""
        while piece := client.recv(65536):
            out += piece
    return out


def test_the_page(endpoint: PrometheusEndpoint) -> None:
    lines = _get(endpoint)
    assert 'target_info{service_name="tickscope"} 1' in lines
    labels = 'network_io_direction="sent",process_executable_name="a\\"b\\\\c"'
    assert f"tickscope_tcp_resets_by_process_total{{{labels}}} 7" in lines
    assert "# TYPE tickscope_tcp_resets_total counter" in lines
    assert 'tickscope_tcp_resets_total{network_io_direction="received"} 0' in lines
    assert "tickscope_clock_offset_seconds 1700000000.1234567" in lines
    name = "tickscope_tls_handshake_duration_seconds"
    assert f'{name}_bucket{{process_executable_name="curl",le="1.6384e-05"}} 2' in lines
    assert f'{name}_bucket{{process_executable_name="curl",le="0.004194304"}} 2' in lines
    assert f'{name}_bucket{{process_executable_name="curl",le="0.008388608"}} 3' in lines
    assert f'{name}_bucket{{process_executable_name="curl",le="+Inf"}} 3' in lines
    assert f'{name}_sum{{process_executable_name="curl"}} 0.005001924' in lines
    assert f'{name}_count{{process_executable_name="curl"}} 3' in lines
    assert not any("nanoseconds" in line for line in lines)


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("text/plain", False),
        ("*/*", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0", True),
        (
            "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.4,*/*;q=0.1",
            True,
        ),
        ("application/openmetrics-text;version=2.0.0,text/plain;q=0.1", False),
        ("application/openmetrics-text;q=0.2,text/plain", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=x", False),
        (";;,,=;q", False),
    ],
)
@pytest.mark.parametrize(
    ("coding", "zipped"),
    [("gzip", True), ("deflate, gzip;q=0.5", True), ("gzip;q=0", False), ("", False), ("br", False)],
)
def test_formats_are_negotiated(
    endpoint: PrometheusEndpoint, accept: str, openmetrics: bool, coding: str, zipped: bool
) -> None:
    head, _, body = _raw(
        endpoint,
        f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nAccept-Encoding: {coding}\r\n\r\n".encode(),
    ).partition(b"\r\n\r\n")
    assert (b"application/openmetrics-text; version=1.0.0" in head) == openmetrics
    assert (b"Content-Encoding: gzip" in head) == zipped
    text = gzip.decompress(body).decode() if zipped else body.decode()
    assert text.endswith("\n# EOF\n") == openmetrics
    families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert ("tickscope_tcp_resets" if openmetrics else "tickscope_tcp_resets_total") in families


@pytest.mark.parametrize("openmetrics", [True, False])
def test_the_reference_parsers_read_the_page(openmetrics: bool) -> None:
    """prometheus_client's parsers, the stricter of the two for OpenMetrics: names, units, suffixes, order, end. All
    metrics have a value here.
    """
    full = MetricStore(full=True)
    for table in {m.table for m in METRICS} - {""}:
        for t_ns in (0, 1, 20 * 10**9):
            columns: dict[str, object] = {c.name: 1 for c in TABLES[table].columns if c.kind in ("i64", "f64", "bool")}
            if table == "queue_lag":
                columns["status"] = b"ok"
            full.offer(
                make(
                    table,
                    1,
                    **{**columns, "t_ns": t_ns, **{c.name: 0 for c in TABLES[table].columns if c.kind == "enum"}},
                )
            )
            full.collect()
    for metric in METRICS:
        if not metric.table:
            full.observe(metric.name, [((("a.b", "c\nd"), ("a_b", 1), ("9", True)), 1.5)], 1)
    collected = full.collect()
    missing = {m.name for m in METRICS} - {m.name for m, _ in collected}
    assert missing == {"ntp.source.offset", "ntp.source.reach"}  # another kind of row
    text = render(collected, {"0": 'x"y\\'}, openmetrics=openmetrics)
    parse = openmetrics_parser if openmetrics else text_parser
    families = {f.name: f for f in parse(text)}
    assert families["tickscope_tcp_rtt_seconds"].type == "histogram"
    assert {"tickscope_build_info", "tickscope_clock_drift_ratio"} <= set(families)


def test_promtool_finds_nothing_to_report(store: MetricStore) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=render(store.collect(), {"service.name": "tickscope"}),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.fixture
def exemplified() -> tuple[MetricStore, Span]:
    """Handshakes in a store, and the span of the slowest."""
    store, rows = (
        MetricStore(),
        make(
            "tls_handshake",
            3,
            t_ns=[1, 2, 3],
            pid=7,
            comm=b"curl",
            role=0,
            result=0,
            duration_ns=[9_000_000, 0, 150_000_000],
        ).rows,
    )
    store.offer(Batch("tls_handshake", rows))
    encoder = SpanEncoder("boot", lambda t: t + 10**18, ProcessResources({"service.name": "tickscope"}), store)
    return store, Span.FromString(encoder.roots("tls_handshake", rows[2:])[0].span)


def test_exemplars_of_openmetrics_are_the_spans_that_were_sent(exemplified: tuple[MetricStore, Span]) -> None:
    store, span = exemplified
    text = render(store.collect(), {}, openmetrics=True)
    family = next(f for f in openmetrics_parser(text) if f.name == "tickscope_tls_handshake_duration_seconds")
    found = {s.labels["le"]: s.exemplar for s in family.samples if s.exemplar}
    assert list(found) == ["0.268435456"]
    (one,) = found.values()
    assert one.labels == {"trace_id": span.trace_id.hex(), "span_id": span.span_id.hex()}
    assert (one.value, float(one.timestamp)) == (0.15, 10**9)
    assert "trace_id" not in render(store.collect(), {}, openmetrics=False)


def test_counts_go_on(endpoint: PrometheusEndpoint, store: MetricStore) -> None:
    store.offer(make("tcp_reset", 4, t_ns=1, comm=b'a"b\\c', direction=0))
    assert any(
        line.startswith("tickscope_tcp_resets_by_process_total") and line.endswith(" 11") for line in _get(endpoint)
    )


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"\0\xff\r\n\r\n", b"405"),
        (b"GET /metrics HTTP/1.1\r\nX: ".ljust(MAX_REQUEST_BYTES, b"a"), b"431"),
        (b"HEAD /metrics HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /metrics HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", b"400"),
        (b"GET http://attacker.example/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
    ],
)
def test_other_requests(endpoint: PrometheusEndpoint, request_: bytes, status: bytes) -> None:
    assert _raw(endpoint, request_).split(b" ")[1] == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", b"200"),
        ("LOCALHOST:9469", b"200"),
        ("127.0.0.1:9469", b"200"),
        ("127.9.9.9", b"200"),
        ("[::1]:9469", b"200"),
        ("node7.example", b"200"),
        ("Node7.Example:80", b"200"),
        ("attacker.example", b"421"),
        ("attacker.example:9469", b"421"),
        ("localhost.attacker.example", b"421"),
        ("203.0.113.5:9469", b"200"),
        ("10.1", b"421"),
        ("", b"421"),
        ("[", b"421"),
        ("127.0.0.1.attacker.example", b"421"),
        ("[::ffff:127.0.0.1]", b"200"),
    ],
)
def test_only_hosts_that_are_meant_are_served(store: MetricStore, host: str, status: bytes) -> None:
    """A web site whose name its owner turns into 127.0.0.1 may not read the page through somebody's browser."""
    endpoint = PrometheusEndpoint(("127.0.0.1", 0), store, {}, MetricsSettings(hosts=("node7.example",)))
    answer = _raw(endpoint, f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    endpoint.close()
    assert answer.split(b" ")[1] == status
    assert (b"metrics: {hosts:" in answer) == (status == b"421")


def test_an_address_is_a_host_wherever_the_request_came_in() -> None:
    """Behind a published port or NAT the client asks for another address than the page has."""
    assert all(known_host(given, ()) for given in ("203.0.113.5:9469", "[fd00::1]:9469", "[fe80::1%eth0]"))


def test_ipv6(store: MetricStore) -> None:
    endpoint = PrometheusEndpoint(("::1", 0), store, {})
    with urllib.request.urlopen(f"http://[::1]:{endpoint.port}/metrics", timeout=20) as answer:
        assert answer.status == 200
    endpoint.close()


_FLOOD = """
import socket, sys, time
held = []
while True:  # half requests, forever: each that is closed is replaced
    try:
        held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=1))
        held[-1].sendall(b"GET /metrics HTTP/1.1\\r\\nHost:")
    except OSError:
        pass
    held = held[-400:]
    if len(held) == 200:
        print("full", flush=True)
    time.sleep(0.0005)
"""


def test_half_requests_of_one_user_keep_nobody_out(endpoint: PrometheusEndpoint) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _FLOOD, str(endpoint.port)], user=65534, group=65534, stdout=subprocess.PIPE, text=True
    ) as flood:
        try:
            assert flood.stdout
            assert flood.stdout.readline() == "full\n"
            for _ in range(20):
                assert _get(endpoint)
        finally:
            flood.kill()
    assert endpoint.dropped["share"] >= 200 - MAX_CONNECTIONS // 4
    assert endpoint.state()["dropped"] == endpoint.dropped.total()
    assert "share" in str(endpoint.state()["reason"])
    assert endpoint.requests == {200: 20}


def test_half_requests_are_closed_in_time(endpoint: PrometheusEndpoint) -> None:
    silent = [socket.create_connection(("127.0.0.1", endpoint.port), timeout=20) for _ in range(MAX_CONNECTIONS + 7)]
    assert [c.recv(1) for c in silent] == [b""] * len(silent)
    assert (endpoint.dropped["share"], endpoint.dropped["timeout"]) == (7, MAX_CONNECTIONS)
    assert _get(endpoint)
    for each in silent:
        each.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_whose_connection_it_is(address: str) -> None:
    script = (
        f"import socket, sys; s = socket.create_connection(({address!r}, int(sys.argv[1]))); print('in', flush=True);"
        " s.recv(1)"
    )
    with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as listener:
        port = str(listener.getsockname()[1])
        with subprocess.Popen(
            [sys.executable, "-c", script, port], user=65534, group=65534, stdout=subprocess.PIPE, text=True
        ) as client:
            assert client.stdout
            client.stdout.readline()
            with listener.accept()[0] as connection:
                assert owner(connection) == 65534
                netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4)
                netlink.close()
    assert owner(connection) == "unknown"


def test_a_client_that_does_not_read_a_large_page() -> None:
    store = MetricStore(max_samples=None, full=True)
    endpoint = PrometheusEndpoint(("127.0.0.1", 0), store, {})
    names = [b"process-%d" % i for i in range(1900)]
    hist = np.ones((len(names), 64), np.uint32)
    store.offer(make("syscall_latency", len(names), t_ns=1, comm=names, count=64, hist=hist, syscall=b"read"))
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=20) as lazy:
        lazy.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert sum(line.startswith("tickscope_syscall_duration_seconds_count") for line in _get(endpoint)) == len(names)
    endpoint.close()


def test_who_asks_without_a_pause_does_not_take_the_processor(
    endpoint: PrometheusEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests within a moment get one page; what has happened since is on the next."""
    made: list[float] = []

    def slow(*given: Any, **how: Any) -> str:
        made.append(time.monotonic())
        time.sleep(0.05)
        return render(*given, **how)

    monkeypatch.setattr("exporters.prometheus.render", slow)
    for _ in range(200):
        assert _get(endpoint)
    assert len(made) <= 1 + (made[-1] - made[0]) / (FRESH_S + 5 * 0.05)
    assert endpoint.requests == {200: 200}


def test_answers_that_nobody_reads_stay_bounded(store: MetricStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporters.page_server.MAX_WAITING_BYTES", 1 << 20)
    monkeypatch.setattr(
        "exporters.prometheus.render", lambda *_, **__: "x" * (6 << 20)
    )  # more than socket buffers take
    endpoint = PrometheusEndpoint(("127.0.0.1", 0), store, {})
    lazy = [socket.create_connection(("127.0.0.1", endpoint.port), timeout=20) for _ in range(3)]
    for each in lazy:
        each.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    until(lambda: endpoint.dropped["slow_reader"] >= 3)
    endpoint.close()
    for each in lazy:
        each.close()


def test_a_page_that_cannot_be_made_costs_one_answer(
    endpoint: PrometheusEndpoint, store: MetricStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong in it: the next is answered, and until then the state says what it was."""
    collect = store.collect

    def broken() -> Any:
        raise KeyError("a metric\x1b[31m")

    monkeypatch.setattr(store, "collect", broken)
    for _ in range(7):
        assert _raw(endpoint, b"GET /metrics HTTP/1.0\r\n\r\n") == b""
    assert endpoint.dropped["failed"] == 7
    state = endpoint.state()
    assert (state["state"], state["dropped"], "reason" in state) == ("failing", 7, False)
    assert str(state["last_error"]).startswith("KeyError: 'a metric") and "\x1b" not in str(state["last_error"])
    monkeypatch.setattr(store, "collect", collect)
    assert _get(endpoint)
    assert "state" not in endpoint.state()


_NO_DESCRIPTORS = """
import resource, socket, time
from exporters.aggregate import MetricStore
from exporters.prometheus import PrometheusEndpoint
endpoint = PrometheusEndpoint(("127.0.0.1", 0), MetricStore(), {})
waiting, spare = socket.socket(), socket.socket()
resource.setrlimit(resource.RLIMIT_NOFILE, (spare.fileno() + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
waiting.connect(("127.0.0.1", endpoint.port))
waiting.sendall(b"GET /metrics HTTP/1.0\\r\\n\\r\\n")
before = time.process_time()
time.sleep(1)
print(time.process_time() - before, endpoint.deafened)
spare.close()
waiting.settimeout(20)
print(waiting.recv(12).decode())
endpoint.close()
"""


def test_without_descriptors_it_waits_for_room() -> None:
    """Who connected stays there, and the thread does not spin: 0.5 s from look to look."""
    done = subprocess.run([sys.executable, "-c", _NO_DESCRIPTORS], capture_output=True, text=True, timeout=60)
    took, deafened, *answer = done.stdout.split()
    assert float(took) < 0.3, done
    assert 1 <= int(deafened) <= 4
    assert answer == ["HTTP/1.1", "200"]


def test_a_taken_port_is_an_error_with_a_remedy(endpoint: PrometheusEndpoint, store: MetricStore) -> None:
    with pytest.raises(AgentError) as raised:
        PrometheusEndpoint(("127.0.0.1", endpoint.port), store, {})
    assert raised.value.remedy
