"""HTTP requests whose answers are bounded: a collector, or whoever answers in its place, costs at most a megabyte and the time-out of one request.

urllib3's own time-out is one for each read, so a server that sends a byte now and then holds a request for hours; and it reads a body
whole, however long. Imports urllib3: import late.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import zlib
from collections.abc import Mapping
from typing import Any

import urllib3
from opentelemetry.exporter.http.transport._base import BaseHTTPResult
from opentelemetry.exporter.http.transport._urllib3 import Urllib3HTTPResult, Urllib3HTTPTransport
from urllib3.connection import HTTPConnection, HTTPSConnection

#: What is read of an answer. An OTLP response has a number and a sentence; of what is longer, the beginning is enough to tell that it is none.
MAX_BODY_BYTES = 1 << 20
_GZIP_OR_ZLIB = 47  # zlib.decompressobj: either, by its header


class _Answer:
    """The part of a response that results are read from."""

    def __init__(self, data: bytes, headers: Mapping[str, str]) -> None:
        self.data, self.headers = data, headers


class BoundedTransport(Urllib3HTTPTransport):
    """One connection at a time, for one thread; ``last`` is the last answer, whose body and headers the client does not hand out."""

    def __init__(self, *, verify: bool | str = True, cert: str | tuple[str, str] | None = None) -> None:
        super().__init__(verify=verify, cert=cert)
        self.last: BaseHTTPResult | None = None
        self._socket: socket.socket | None = None
        self._given_up = False
        owner = self

        class Plain(HTTPConnection):
            def connect(self) -> None:
                super().connect()
                owner._socket = self.sock

        class Secure(HTTPSConnection):
            def connect(self) -> None:
                super().connect()
                owner._socket = self.sock

        class PlainPool(urllib3.HTTPConnectionPool):
            ConnectionCls = Plain

        class SecurePool(urllib3.HTTPSConnectionPool):
            ConnectionCls = Secure

        self._pool.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}

    def request(self, method: str, url: str, *, headers: dict[str, str] | None = None, timeout: float | None = None,
                data: bytes | None = None) -> BaseHTTPResult:  # fmt: skip
        self._given_up = False
        watchdog = threading.Timer(timeout, self.abort) if timeout is not None else None
        if watchdog is not None:
            watchdog.daemon = True
            watchdog.start()
        try:
            self.last = self._request(method, url, headers, timeout, data)
            if self._given_up:  # what ended is not the answer, but the connection
                raise TimeoutError("no whole answer in time")
        except Exception as error:  # noqa: BLE001 - as the transport that this one is made of
            self.last = Urllib3HTTPResult(error=error)
        finally:
            if watchdog is not None:
                watchdog.cancel()
        return self.last

    def _request(self, method: str, url: str, headers: dict[str, str] | None, timeout: float | None, data: bytes | None) -> BaseHTTPResult:
        limit = urllib3.Timeout(total=timeout) if timeout is not None else None
        response: Any = self._pool.request(method, url, headers=headers, body=data, timeout=limit, preload_content=False)
        try:
            body = response.read(MAX_BODY_BYTES + 1, decode_content=False)
        except Exception:
            response.close()
            raise
        if len(body) > MAX_BODY_BYTES:
            response.close()  # with its connection: nobody wants the rest
        else:
            response.release_conn()
        answer: Any = _Answer(_unpacked(body[:MAX_BODY_BYTES], response.headers.get("content-encoding", "")), response.headers)
        return Urllib3HTTPResult(status_code=response.status, reason=(response.reason or "")[:100], response=answer)

    def abort(self) -> None:
        """Ends the request under way. Callable from any thread."""
        self._given_up = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # not SSLSocket's own, which takes the TLS state away


def _unpacked(body: bytes, encoding: str) -> bytes:
    """A compressed body's beginning: nobody asked for one."""
    if encoding.strip().lower() not in ("gzip", "x-gzip", "deflate"):
        return body
    with contextlib.suppress(zlib.error):
        return zlib.decompressobj(_GZIP_OR_ZLIB).decompress(body, MAX_BODY_BYTES)
    return body
