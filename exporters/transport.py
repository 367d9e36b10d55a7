"""HTTP POST with bounds: a collector, or another server at its address, costs at most a megabyte and the timeout per
request.

Built on the standard library's client. Its own bounds are insufficient: its timeout is per read, so a server that sends
single bytes holds a request for hours; it reads a body of any length, and a chunk of negative size to the end.
"""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import zlib
from collections.abc import Mapping
from email.message import Message
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

from agent.common.lean import without
from agent.common.tls import client_context

with without("ssl"):  # OpenSSL is 2 MB, and only https needs it
    from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead

if TYPE_CHECKING:
    import ssl

#: Bytes that are read of an answer. An OTLP response has a number and a sentence; a longer answer is none.
MAX_BODY_BYTES = 1 << 20
_GZIP_OR_ZLIB = 47  # zlib.decompressobj: either, by its header
_IN_PATHS = "%/:@!$&'()*+,;=~"


class Answer(NamedTuple):
    """``body``: at most MAX_BODY_BYTES, unpacked."""

    status: int
    reason: str
    headers: Message
    body: bytes


class Transport:
    """One connection to one URL, kept between requests; for one thread, except ``abort``."""

    def __init__(self, url: str, *, certificate: str = "", client_certificate: str = "", client_key: str = "") -> None:
        parts = urlsplit(url)
        self._path = quote(parts.path or "/", safe=_IN_PATHS) + (
            f"?{quote(parts.query, safe=_IN_PATHS + '?')}" if parts.query else ""
        )
        self._host, self._tls = str(parts.hostname), parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        self._certificates = (certificate, client_certificate, client_key)
        self._connection: _Connection | None = None
        self._given_up = False

    def post(self, data: bytes, headers: Mapping[str, str], timeout_s: float) -> Answer:
        """Blocks for at most ``timeout_s``, plus the name look-up (bounded by the resolver's settings) and connecting
        (``timeout_s`` per address). Raises OSError and HTTPException without a complete answer, ValueError for an
        invalid header, RuntimeError if no thread can be started.
        """
        self._given_up = False
        watchdog = threading.Timer(timeout_s, self.abort)
        watchdog.daemon = True
        watchdog.start()
        try:
            answer = self._post(data, headers, timeout_s)
        except (OSError, HTTPException, ValueError):
            self.close()
            if self._given_up:
                raise TimeoutError("no whole answer in time") from None
            raise
        finally:
            watchdog.cancel()
        if self._given_up:  # the connection was ended, not the answer
            self.close()
            raise TimeoutError("no whole answer in time")
        return answer

    def _post(self, data: bytes, headers: Mapping[str, str], timeout_s: float) -> Answer:
        if self._connection is not None and self._connection.sock is not None:
            # A server may have ended the kept connection, which shows only now.
            with contextlib.suppress(*self._connection.closed):
                return self._exchange(self._connection, data, headers)
            self.close()
        self._connection = _Connection(self._host, self._port, timeout_s, self._context())
        if self._given_up:  # before there was this one to end
            raise TimeoutError
        self._connection.connect()
        return self._exchange(self._connection, data, headers)

    def _exchange(self, connection: _Connection, data: bytes, headers: Mapping[str, str]) -> Answer:
        response, whole = _response_of(connection, self._path, data, headers)
        body = response.read(MAX_BODY_BYTES + 1)
        if response.length and len(body) <= MAX_BODY_BYTES:
            raise IncompleteRead(body, response.length)
        if not (whole and response.isclosed()):
            connection.close()  # the rest is not needed
        unpacked = _unpacked(body[:MAX_BODY_BYTES], response.headers.get("content-encoding", ""))
        return Answer(response.status, (response.reason or "")[:100], response.headers, unpacked)

    def _context(self) -> ssl.SSLContext | None:
        if not self._tls:
            return None
        return client_context(*self._certificates)

    def abort(self) -> None:
        """Ends the request under way. May be called from any thread."""
        self._given_up = True
        if self._connection is not None:
            self._connection.end()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class _Bounded(io.BufferedReader):
    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            raise HTTPException("a chunk of negative size")
        return super().read(size)


class _Response(HTTPResponse):
    """Reads no more than requested, whatever the server says."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = _Bounded(self.fp.detach())


class _Connection(HTTPConnection):
    """A connection that another thread can end at any time. The request under way ends then or, before there is a
    socket, when it is connected.
    """

    response_class = _Response

    def __init__(self, host: str, port: int, timeout_s: float, context: ssl.SSLContext | None) -> None:
        self.default_port = 443 if context else 80
        super().__init__(host, port, timeout=timeout_s)
        self._context = context
        self.closed = _closed(tls=context is not None)
        self._under_way: socket.socket | None = None
        self._ended = False

    def connect(self) -> None:
        sock = socket.create_connection((self.host, self.port), self.timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is None:
            self._take(sock)
            return
        encrypted = self._context.wrap_socket(sock, server_hostname=self.host, do_handshake_on_connect=False)
        self._take(encrypted)
        encrypted.do_handshake()

    def _take(self, sock: socket.socket) -> None:
        self.sock = self._under_way = sock
        if self._ended:
            raise TimeoutError("ended before it was connected")

    def end(self) -> None:
        self._ended = True
        if self._under_way is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(
                    self._under_way, socket.SHUT_RDWR
                )  # not SSLSocket's own, which removes the TLS state


def _closed(*, tls: bool) -> tuple[type[OSError], ...]:
    """Errors raised when the peer has closed the connection, maybe long ago."""
    if not tls:
        return (ConnectionError,)
    import ssl

    return ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError


def _response_of(
    connection: _Connection, path: str, data: bytes, headers: Mapping[str, str]
) -> tuple[HTTPResponse, bool]:
    """The answer, and whether the request was sent completely: a server that refuses it (413, 401) may answer and close
    before it has read it.
    """
    try:
        connection.request("POST", path, data, dict(headers))
    except connection.closed as error:
        try:
            return connection.getresponse(), False
        except (OSError, HTTPException):
            raise error from None
    return connection.getresponse(), True


def _unpacked(body: bytes, encoding: str) -> bytes:
    """The beginning of a body that is compressed although that was not requested."""
    if encoding.strip().lower() not in ("gzip", "x-gzip", "deflate"):
        return body
    with contextlib.suppress(zlib.error):
        return zlib.decompressobj(_GZIP_OR_ZLIB).decompress(body, MAX_BODY_BYTES)
    return body
