"""HTTP POST with bounds: a collector, or another server at its address, costs at most some megabytes and the timeout
per request. The standard library's client, within the bounds of ``agent.common.http_get``.
"""

from __future__ import annotations

import contextlib
import socket
import time
import zlib
from collections.abc import Mapping
from email.message import Message
from functools import partial
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from agent.common.http_get import BoundedSocket, HttpBudget, TooLarge, open_socket
from agent.common.lean import without
from agent.common.tls import client_context

with without("ssl"):  # OpenSSL is 2 MB, and only https needs it
    from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead

#: Bytes that are used of an answer. An OTLP response has a number and a sentence; a longer answer is none.
MAX_BODY_BYTES = 1 << 20
#: With its head, and the sizes of its chunks: a chunk of 1 byte takes 6, so 350 KB of such chunks are too large.
_RECEIVED_BYTES = 2 * MAX_BODY_BYTES
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
        tls = parts.scheme == "https"
        self._tls = partial(client_context, certificate, client_certificate, client_key) if tls else None
        self._host, self._usual_port, self._closed = str(parts.hostname), 443 if tls else 80, _closed(tls=tls)
        self._port = parts.port or self._usual_port
        self._budget = HttpBudget()
        self._socket: socket.socket | None = None
        self._connection: HTTPConnection | None = None
        self._given_up = False

    def post(self, data: bytes, headers: Mapping[str, str], timeout_s: float) -> Answer:
        """Blocks for at most ``timeout_s``. Raises OSError and HTTPException without a complete answer, ValueError for
        an invalid header.
        """
        self._given_up = False
        self._budget.deadline_s = time.monotonic() + timeout_s
        try:
            answer = self._post(data, headers)
        except TooLarge:
            self.close()
            raise HTTPException("the answer is too large") from None
        except (OSError, HTTPException, ValueError) as error:
            self.close()
            if self._given_up or (isinstance(error, TimeoutError) and error.errno is None):
                raise TimeoutError("no whole answer in time") from None
            raise
        if self._given_up:  # the connection was ended, not the answer
            self.close()
            raise TimeoutError("no whole answer in time")
        return answer

    def _post(self, data: bytes, headers: Mapping[str, str]) -> Answer:
        if self._connection is not None:
            # A server may have ended the kept connection, which shows only now.
            with contextlib.suppress(*self._closed):
                return self._exchange(self._connection, data, headers)
            self.close()
        if self._given_up:
            raise TimeoutError
        self._socket = open_socket(self._host, self._port, self._budget, self._tls, self._connected)
        self._connection = HTTPConnection(self._host, self._port)
        self._connection.auto_open, self._connection.default_port = 0, self._usual_port
        self._connection.sock = BoundedSocket(self._socket, self._budget)
        return self._exchange(self._connection, data, headers)

    def _connected(self, sock: socket.socket) -> None:
        self._socket = sock
        if self._given_up:
            raise TimeoutError

    def _exchange(self, connection: HTTPConnection, data: bytes, headers: Mapping[str, str]) -> Answer:
        self._budget.bytes_left = _RECEIVED_BYTES
        response, whole = self._response_of(connection, data, headers)
        try:
            body = response.read(MAX_BODY_BYTES + 1)
        except ValueError:  # -1 reads on, to the bound
            raise HTTPException("a chunk of negative size") from None
        if response.length and len(body) <= MAX_BODY_BYTES:
            raise IncompleteRead(body, response.length)
        if not (whole and response.isclosed()) or connection.sock is None:
            self.close()  # the rest is not needed, or the server ends the connection
        unpacked = _unpacked(body[:MAX_BODY_BYTES], response.headers.get("content-encoding", ""))
        return Answer(response.status, (response.reason or "")[:100], response.headers, unpacked)

    def _response_of(
        self, connection: HTTPConnection, data: bytes, headers: Mapping[str, str]
    ) -> tuple[HTTPResponse, bool]:
        """The answer, and whether the request was sent completely: a server that refuses it (413, 401) may answer and
        close before it has read it.
        """
        try:
            connection.request("POST", self._path, data, dict(headers))
        except self._closed as error:
            try:
                return connection.getresponse(), False
            except (OSError, HTTPException):
                raise error from None
        return connection.getresponse(), True

    def abort(self) -> None:
        """Ends the request under way, once it is connected. May be called from any thread."""
        self._given_up = True
        if (sock := self._socket) is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not SSLSocket's own, which removes the TLS state

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = self._connection = None


def _closed(*, tls: bool) -> tuple[type[OSError], ...]:
    """Errors raised when the peer has closed the connection, maybe long ago."""
    if not tls:
        return (ConnectionError,)
    import ssl

    return ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError


def _unpacked(body: bytes, encoding: str) -> bytes:
    """The beginning of a body that is compressed although that was not requested."""
    if encoding.strip().lower() not in ("gzip", "x-gzip", "deflate"):
        return body
    with contextlib.suppress(zlib.error):
        return zlib.decompressobj(_GZIP_OR_ZLIB).decompress(body, MAX_BODY_BYTES)
    return body
