"""POST over HTTP to servers that break off, say what cannot be, or do not answer at all."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from agent.batch import make
from agent.common import http_get
from exporters.aggregate import MetricStore
from exporters.lane import Lane
from exporters.otlp_settings import Endpoint
from exporters.points import PointEncoder
from exporters.protobuf_pieces import Envelope
from exporters.send import HttpSender, Outcome, failed
from exporters.transport import Transport, _closed
from tests.hostile import Answers, endless, peak, reset_peak, serving

_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n"
_EMPTY = _OK + b"Content-Length: 0\r\n\r\n"


def _sender(port: int, timeout_s: float = 5.0) -> HttpSender:
    return HttpSender("traces", Endpoint(f"http://127.0.0.1:{port}/v1/traces", timeout_s=timeout_s))


@pytest.mark.parametrize(("size", "why"), [(b"-1", "the answer is too large"), (b"-2", "a chunk of negative size")])
def test_a_chunk_of_negative_size_is_not_read_to_the_end(size: bytes, why: str) -> None:
    with serving(endless(_OK + b"Transfer-Encoding: chunked\r\n\r\n" + size + b"\r\n", bytes(1 << 20))) as port:
        sender, before = _sender(port, timeout_s=1.0), reset_peak()
        outcome = sender.send(b"")
        assert peak() - before < 8 << 20
        assert outcome == Outcome("retry", message=f"HTTPException: {why}")
        sender.close()


def _refuses(status: bytes) -> Answers:
    """Answers after the head, and closes with most of the body unread, hence with a reset."""

    def answers(connection: socket.socket) -> None:
        connection.recv(64)
        connection.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\nno")

    return answers


@pytest.mark.parametrize(
    ("status", "outcome"), [(b"413 Content Too Large", "too_large"), (b"401 Unauthorized", "refused")]
)
def test_who_answers_before_the_body_is_read_is_received(status: bytes, outcome: str) -> None:
    with serving(_refuses(status)) as port:
        sender = _sender(port)
        assert sender.send(bytes(32 << 20)) == Outcome(outcome, message=f"HTTP {status.decode()}")
        sender.close()


def test_a_redirect_is_reported_with_its_location() -> None:
    head = b"HTTP/1.1 308 Permanent Redirect\r\nLocation: https://else/v1\r\nContent-Length: 0\r\n\r\n"
    with serving(lambda connection: connection.sendall(head)) as port:
        sender = _sender(port)
        assert sender.send(b"") == Outcome("refused", message="HTTP 308 Permanent Redirect, Location: https://else/v1")
        sender.close()


def test_who_closes_without_an_answer_is_asked_again() -> None:
    with serving(lambda connection: connection.close()) as port:
        sender = _sender(port)
        assert sender.send(bytes(32 << 20)).status == "retry"
        sender.close()


@pytest.mark.parametrize(("scheme", "port"), [("http", 80), ("https", 443)])
def test_an_ipv6_address_needs_no_port(monkeypatch: pytest.MonkeyPatch, scheme: str, port: int) -> None:
    asked: list[Any] = []

    def refused(*address: Any) -> socket.socket:
        asked.append(address[:2])
        raise ConnectionRefusedError

    monkeypatch.setattr(http_get, "connect", refused)
    with contextlib.suppress(ConnectionRefusedError):
        Transport(f"{scheme}://[::1]/v1/traces").post(b"", {}, 1.0)
    assert asked == [("::1", port)]


def test_what_was_slow_to_connect_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time-out passes while there is no socket to end yet, as when a name is looked up."""
    connect = http_get.connect

    def slow(*args: Any) -> socket.socket:
        time.sleep(0.4)
        return connect(*args)

    def trickles(connection: socket.socket) -> None:
        while True:
            connection.sendall(b"H")
            time.sleep(0.05)

    monkeypatch.setattr(http_get, "connect", slow)
    with serving(trickles) as port:
        transport, begun = Transport(f"http://127.0.0.1:{port}/"), time.monotonic()
        ended = threading.Timer(3.0, transport.abort)  # what would end it otherwise
        ended.start()
        with pytest.raises(TimeoutError):
            transport.post(b"", {}, 0.2)
        assert time.monotonic() - begun < 2.0
        ended.cancel()
        ended.join()
        transport.close()


@pytest.mark.parametrize("error", [ssl.SSLEOFError("x"), ssl.SSLZeroReturnError("x"), BrokenPipeError("x")])
def test_a_kept_connection_that_was_closed_is_made_again(error: OSError) -> None:
    def answers(connection: socket.socket) -> None:
        while connection.recv(65536):
            connection.sendall(_EMPTY)

    with serving(answers) as port:
        sender = _sender(port)
        assert sender.send(b"").status == "sent"
        transport: Any = sender._transport
        transport._closed = _closed(tls=isinstance(error, ssl.SSLError))

        def closed(*_: object) -> None:
            raise error

        transport._connection.send = closed
        transport._socket.shutdown(socket.SHUT_RDWR)
        assert sender.send(b"").status == "sent"
        sender.close()


class _Raises:
    """A sender in which something is wrong that nobody thought of."""

    def send(self, data: bytes) -> Outcome:
        raise RuntimeError("can't start new thread")

    def abort(self) -> None: ...

    def close(self) -> None: ...


def test_whatever_a_sender_raises_is_tried_again() -> None:
    lane = Lane("traces", _Raises(), b"".join)
    lane.begin([b"span"], 1)
    assert not lane.step(time.monotonic())
    assert (lane.failures, lane.last_error, lane.begun) == (1, "RuntimeError: can't start new thread", 0.0)
    assert lane.request is not None


def test_no_message_reports_what_a_header_holds() -> None:
    with serving(lambda connection: None) as port:
        headers = (("authorization", "Bearer s3cret\n"),)
        sender = HttpSender("traces", Endpoint(f"http://127.0.0.1:{port}/", headers=headers))
        assert sender.send(b"") == Outcome("retry", message="ValueError")
    assert failed(ssl.SSLCertVerificationError("of whom")).message.startswith("SSLCertVerificationError: ")


class _Limited:
    """A collector that takes requests of at most so many bytes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken: list[bytes] = []
        self.refused = 0

    def send(self, data: bytes) -> Outcome:
        if len(data) > self.most:
            self.refused += 1
            return Outcome("too_large", message="HTTP 413 Payload Too Large")
        self.taken.append(data)
        return Outcome("sent")

    def abort(self) -> None: ...

    def close(self) -> None: ...


def test_a_request_that_is_too_large_is_sent_in_parts_and_the_size_is_remembered() -> None:
    sender = _Limited(300)
    lane = Lane("traces", sender, b"".join)
    parts = [bytes([i]) * 10 for i in range(100)]
    lane.begin(parts, len(parts))
    assert lane.step(time.monotonic())
    assert b"".join(sender.taken) == b"".join(parts)
    assert (lane.sent, lane.rejected, lane.too_large, lane.refusals, lane.last_error) == (100, 0, 0, 0, "")
    refused = sender.refused
    lane.begin(parts, len(parts))
    assert lane.step(time.monotonic())
    assert (lane.sent, sender.refused) == (200, refused)


def test_one_item_that_is_too_large_alone_is_dropped_and_the_rest_is_sent() -> None:
    sender = _Limited(300)
    lane = Lane("logs", sender, b"".join)
    lane.begin([b"a" * 10, b"b" * 301, b"c" * 10], 3)
    assert lane.step(time.monotonic())
    assert sorted(sender.taken) == [b"a" * 10, b"c" * 10]
    assert (lane.sent, lane.rejected, lane.too_large, lane.under_way) == (2, 0, 1, 0)
    assert lane.last_error == "one item alone is larger than the receiver takes (301 bytes): HTTP 413 Payload Too Large"
    lane.begin([b"d" * 10], 1)
    assert lane.step(time.monotonic())
    assert lane.sent == 3


def test_a_metric_with_many_points_is_sent_in_parts() -> None:
    store = MetricStore()
    comms = [b"program-%d" % i for i in range(100)]
    store.offer(make("tcp_reset", 100, t_ns=1, direction=0, comm=comms))
    encoded, count = PointEncoder("delta", lambda t: t, 0).encode(store.collect(), 2)
    whole = {m.name: points(m) for m in map(Metric.FromString, encoded)}
    sender = _Limited(max(map(len, encoded)) // 3)
    lane = Lane("metrics", sender, Envelope({}).request)
    lane.begin(encoded, count)
    assert lane.step(time.monotonic())
    assert (lane.sent, lane.too_large) == (count, 0)
    received: dict[str, list[bytes]] = {}
    for data in sender.taken:
        for m in ExportMetricsServiceRequest.FromString(data).resource_metrics[0].scope_metrics[0].metrics:
            received.setdefault(m.name, []).extend(points(m))
    assert {name: sorted(found) for name, found in received.items()} == {n: sorted(p) for n, p in whole.items()}


def points(metric: Metric) -> list[bytes]:
    return [point.SerializeToString() for point in getattr(metric, metric.WhichOneof("data")).data_points]
