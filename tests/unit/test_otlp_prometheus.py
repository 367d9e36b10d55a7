"""The Prometheus text endpoint over real sockets: what it says, and clients that mean no good."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest

from agent.batch import make
from agent.errors import AgentError
from exporters.aggregate import MetricStore
from exporters.prometheus import _MAX_CONNECTIONS, _MAX_REQUEST_BYTES, PrometheusEndpoint


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
    assert 'tickscope_tcp_resets_total{process_command="a\\"b\\\\c",network_io_direction="sent"} 7' in lines
    assert "# TYPE tickscope_tcp_resets_total counter" in lines
    assert "tickscope_clock_offset_nanoseconds 1700000000123456789" in lines
    name = "tickscope_tls_handshake_duration_nanoseconds"
    assert f'{name}_bucket{{process_command="curl",le="1024"}} 1' in lines
    assert f'{name}_bucket{{process_command="curl",le="2048"}} 2' in lines
    assert f'{name}_bucket{{process_command="curl",le="+Inf"}} 3' in lines
    assert f'{name}_sum{{process_command="curl"}} 5001924' in lines
    assert f'{name}_count{{process_command="curl"}} 3' in lines


def test_counts_go_on(endpoint: PrometheusEndpoint, store: MetricStore) -> None:
    store.offer(make("tcp_reset", 4, t_ns=1, comm=b'a"b\\c', direction=0))
    assert any(line.startswith("tickscope_tcp_resets_total") and line.endswith(" 11") for line in _get(endpoint))


@pytest.mark.parametrize(("request_", "status"), [
    (b"GET / HTTP/1.1\r\n\r\n", b"404"), (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"), (b"\0\xff\r\n\r\n", b"405"),
    (b"GET /metrics HTTP/1.1\r\nX: ".ljust(_MAX_REQUEST_BYTES, b"a"), b"431"), (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200"),
])
def test_other_requests(endpoint: PrometheusEndpoint, request_: bytes, status: bytes) -> None:
    assert _raw(endpoint, request_).split(b" ")[1] == status


def test_silent_clients_are_bounded_and_do_not_hold_up_others(endpoint: PrometheusEndpoint) -> None:
    """One place is left beside the clients that send nothing, and serves; beyond the bound a connection is closed."""
    silent = [socket.create_connection(("127.0.0.1", endpoint.port), timeout=20) for _ in range(_MAX_CONNECTIONS - 1)]
    assert _get(endpoint)
    more = [socket.create_connection(("127.0.0.1", endpoint.port), timeout=20) for _ in range(3)]
    assert [c.recv(1) for c in more[1:]] == [b"", b""]
    assert endpoint.refused == 2
    # Their deadline frees the places again: the server closes first.
    assert [c.recv(1) for c in silent] == [b""] * len(silent)
    assert _get(endpoint)
    for each in silent + more:
        each.close()


def test_a_client_that_does_not_read_a_large_page(store: MetricStore, endpoint: PrometheusEndpoint) -> None:
    names = [b"process-%d" % i for i in range(1900)]
    hist = np.ones((len(names), 64), np.uint32)
    store.offer(make("syscall_latency", len(names), t_ns=1, comm=names, count=64, hist=hist, syscall=b"read"))
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=20) as lazy:
        lazy.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert sum(line.startswith("tickscope_syscall_duration_nanoseconds_count") for line in _get(endpoint)) == len(names)


def test_a_taken_port_is_an_error_with_a_remedy(endpoint: PrometheusEndpoint, store: MetricStore) -> None:
    with pytest.raises(AgentError) as raised:
        PrometheusEndpoint(("127.0.0.1", endpoint.port), store, {})
    assert raised.value.remedy
