"""POST over HTTP to servers that break off, say what cannot be, or do not answer at all."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from typing import Any

import pytest

from exporters.otlp import _Lane, _Request
from exporters.otlp_settings import Endpoint
from exporters.send import HttpSender, Outcome, failed
from exporters.transport import Transport, _closed
from tests.hostile import Answers, endless, peak, reset_peak, serving

_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n"
_EMPTY = _OK + b"Content-Length: 0\r\n\r\n"


def _sender(port: int, timeout_s: float = 5.0) -> HttpSender:
    return HttpSender("traces", Endpoint(f"http://127.0.0.1:{port}/v1/traces", timeout_s=timeout_s))


def test_a_chunk_of_negative_size_is_not_read_to_the_end() -> None:
    with serving(endless(_OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", bytes(1 << 20))) as port:
        sender, before = _sender(port, timeout_s=1.0), reset_peak()
        outcome = sender.send(b"")
        assert peak() - before < 8 << 20
        assert outcome == Outcome("retry", message="HTTPException: a chunk of negative size")
        sender.close()


def _refuses(status: bytes) -> Answers:
    """Answers after the head, and closes with most of the body unread, hence with a reset."""

    def answers(connection: socket.socket) -> None:
        connection.recv(64)
        connection.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\nno")

    return answers


@pytest.mark.parametrize("status", [b"413 Content Too Large", b"401 Unauthorized"])
def test_who_answers_before_the_body_is_read_is_heard(status: bytes) -> None:
    with serving(_refuses(status)) as port:
        sender = _sender(port)
        assert sender.send(bytes(32 << 20)) == Outcome("refused", message=f"HTTP {status.decode()}")
        sender.close()


def test_a_redirect_is_told_with_its_location() -> None:
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

    def refused(address: Any, *_: object) -> socket.socket:
        asked.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refused)
    with contextlib.suppress(ConnectionRefusedError):
        Transport(f"{scheme}://[::1]/v1/traces").post(b"", {}, 1.0)
    assert asked == [("::1", port)]


def test_what_was_slow_to_connect_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time-out passes while there is no socket to end yet, as when a name is looked up."""
    connect = socket.create_connection

    def slow(*args: Any) -> socket.socket:
        time.sleep(0.4)
        return connect(*args)

    def trickles(connection: socket.socket) -> None:
        while True:
            connection.sendall(b"H")
            time.sleep(0.05)

    monkeypatch.setattr(socket, "create_connection", slow)
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
        kept: Any = sender._transport._connection
        kept.closed = _closed(tls=isinstance(error, ssl.SSLError))

        def closed(*_: object) -> None:
            raise error

        kept.send = closed
        kept.sock.shutdown(socket.SHUT_RDWR)
        assert sender.send(b"").status == "sent"
        sender.close()


class _Raises:
    """A sender in which something is wrong that nobody thought of."""

    def send(self, data: bytes) -> Outcome:
        raise RuntimeError("can't start new thread")

    def abort(self) -> None: ...

    def close(self) -> None: ...


def test_whatever_a_sender_raises_is_tried_again() -> None:
    lane = _Lane("traces", _Raises())
    lane.request = _Request(b"", 1)
    assert not lane.step(time.monotonic())
    assert (lane.failures, lane.last_error, lane.begun) == (1, "RuntimeError: can't start new thread", 0.0)
    assert lane.request is not None


def test_no_message_tells_what_a_header_holds() -> None:
    with serving(lambda connection: None) as port:
        headers = (("authorization", "Bearer s3cret\n"),)
        sender = HttpSender("traces", Endpoint(f"http://127.0.0.1:{port}/", headers=headers))
        assert sender.send(b"") == Outcome("retry", message="ValueError")
    assert failed(ssl.SSLCertVerificationError("of whom")).message.startswith("SSLCertVerificationError: ")
