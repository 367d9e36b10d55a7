"""Requests over HTTP that read, each within a deadline and a bound of bytes.

http.client bounds the time of one read only, so a server that sends one byte a second could hold a poll for ever. It is
imported at the first request (1.6 MB), without TLS unless it is needed.
"""

from __future__ import annotations

import base64
import io
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.common.lean import without
from agent.common.lookup import connect
from agent.common.printable import printable
from agent.common.tls import ended, error_text, unverified_by_us

if TYPE_CHECKING:
    import ssl

#: Of an answer's body.
MAX_BODY_BYTES = 8 << 20
_HEAD_BYTES = 64 << 10
_PIECE_BYTES = 64 << 10
_EXPLANATION_BYTES = 4 << 10
_LOGIN = re.compile("//[^/@]*@")


class HttpDown(Exception):
    """No usable answer; the text is the reason and ``remedy``, ``failure`` its kind (``queue_lag.failure``),
    ``status`` the status of an answer that is not 200, else 0, ``body`` its body, if it is short.
    """

    def __init__(
        self, reason: str, failure: str = "other", status: int = 0, body: bytes = b"", remedy: str = ""
    ) -> None:
        super().__init__(f"{reason}: {remedy}" if remedy else reason)
        self.reason, self.failure, self.status, self.body, self.remedy = reason, failure, status, body, remedy


class TooLarge(HttpDown):
    """The answer is larger than the bound."""


@dataclass
class HttpBudget:
    """What the present request may still take. deadline_s: time.monotonic; bytes_left: of the answer."""

    deadline_s: float = 0.0
    bytes_left: int = 0

    def left_s(self) -> float:
        left = self.deadline_s - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class _Received(io.RawIOBase):
    """What a socket receives, within a budget."""

    def __init__(self, sock: socket.socket, budget: HttpBudget) -> None:
        self._sock, self._budget = sock, budget

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(self._budget.left_s())
        n = self._sock.recv_into(buffer)
        self._budget.bytes_left -= n
        if self._budget.bytes_left < 0:
            raise TooLarge("its answer is too large")
        return n


class BoundedSocket:
    """The part of a socket that http.client uses, within a budget."""

    def __init__(self, sock: socket.socket, budget: HttpBudget) -> None:
        self._sock, self._budget = sock, budget

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(_Received(self._sock, self._budget))

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(self._budget.left_s())
        self._sock.sendall(data)

    def close(self) -> None:
        """http.client is done with it, but an answer may still be read: who made the socket closes it."""


class HttpClient:
    """One connection to one server, kept between requests. Every failure closes it; the next request connects again.

    tls: makes the context of TLS; None: plain HTTP. ``peer``: address and port of the server, once connected.
    ``announced``: whether the last answer had a length or chunks, so that one that was cut off was refused.
    """

    def __init__(self, host: str, port: int, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._budget = HttpBudget()
        self._socket: socket.socket | None = None
        self._connection: Any = None
        self.peer: tuple[str, int] | None = None
        self.announced = False

    def get(
        self,
        path: str,
        deadline_s: float,
        *,
        login: tuple[str, str] | None = None,
        token: str = "",
        body: bytes | None = None,
        most_bytes: int = MAX_BODY_BYTES,
    ) -> bytes:
        """The body of an answer with status 200. deadline_s: time.monotonic. login: user and password; or token: the
        whole header Authorization. body: JSON for a POST that changes nothing: it may be sent twice. Raises HttpDown.
        """
        self._budget.deadline_s = deadline_s
        headers = {"Accept": "*/*"} | ({} if body is None else {"Content-Type": "application/json"})
        if login is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(":".join(login).encode()).decode()
        elif token:
            headers["Authorization"] = token
        try:
            if self._connection is not None:
                try:
                    return self._request(path, headers, body, most_bytes)
                except (ConnectionError, EOFError):  # the server closed it while it was idle
                    self.close()
            return self._request(path, headers, body, most_bytes)
        except HttpDown:
            self.close()
            raise
        except TimeoutError:
            self.close()
            raise HttpDown("no answer in time", "no_answer") from None
        except EOFError:
            self.close()
            raise HttpDown("connection closed by the server", "closed") from None
        except OSError as error:
            self.close()
            words = ended() if self._tls is not None and isinstance(error, BrokenPipeError) else error_text(error)
            raise HttpDown(words, _failure(error)) from None
        except (ValueError, MemoryError) as error:
            self.close()
            raise HttpDown(f"its answer cannot be read ({type(error).__name__})") from None

    def close(self) -> None:
        """Closes the connection, if there is one."""
        if self._socket is not None:
            self._socket.close()
        self._socket = self._connection = None

    def _request(self, path: str, headers: dict[str, str], body: bytes | None, most_bytes: int) -> bytes:
        if self._tls is None:
            with without("ssl"):
                import http.client as http
        else:
            import http.client as http
        self._budget.bytes_left = most_bytes + _HEAD_BYTES
        if self._connection is None:
            self._connect(http)
        try:
            self._connection.request("GET" if body is None else "POST", path, body, headers)
            answer = self._connection.getresponse()
            if answer.status != 200:
                failure = "login" if answer.status in (401, 403) else "other"
                reason = f"HTTP {answer.status} {answer.reason[:40]}".rstrip() + _elsewhere(answer)
                remedy = _remedy(answer.status, "Authorization" in headers)
                raise HttpDown(reason, failure, answer.status, _explanation(answer), remedy)
            if answer.getheader("Content-Encoding", "identity") != "identity":
                raise HttpDown("its answer is compressed, which was not asked for")
            if (answer.length or 0) > most_bytes:
                raise TooLarge("its answer is too large")
            self.announced = answer.chunked or answer.length is not None
            pieces = []
            while piece := answer.read(_PIECE_BYTES):
                pieces.append(piece)
        except http.RemoteDisconnected:
            raise EOFError from None
        except http.IncompleteRead:
            raise EOFError from None
        except http.HTTPException as error:
            raise HttpDown(f"its answer is not HTTP ({type(error).__name__})") from None
        if answer.length:
            raise EOFError
        if self._connection.sock is None:  # the server does not keep the connection
            self.close()
        whole = b"".join(pieces)
        if len(whole) > most_bytes:
            raise TooLarge("its answer is too large")
        return whole

    def _connect(self, http: Any) -> None:
        self._socket = sock = open_socket(self._host, self._port, self._budget, self._tls, self._connected)
        self._connection = http.HTTPConnection(self._host, self._port)
        self._connection.auto_open = 0
        self._connection.sock = BoundedSocket(sock, self._budget)

    def _connected(self, sock: socket.socket) -> None:
        self.peer = sock.getpeername()[:2]


def open_socket(
    host: str,
    port: int,
    budget: HttpBudget,
    tls: Callable[[], ssl.SSLContext] | None,
    connected: Callable[[socket.socket], None],
) -> socket.socket:
    """A connection, within the budget's time. tls: as for HttpClient. connected: gets it before the TLS handshake."""
    sock = connect(host, port, budget.deadline_s)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            connected(sock)
            return sock
        sock = encrypted = tls().wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
        connected(encrypted)
        encrypted.settimeout(budget.left_s())
        encrypted.do_handshake()
    except BaseException:
        sock.close()
        raise
    return encrypted


def _remedy(status: int, login: bool) -> str:
    """What to do about a refusal. login: whether the request had one."""
    if status not in (401, 403):
        return ""
    if not login:
        return "it wants a login: set user and password_file"
    return "wrong user or password: see user, password_file" if status == 401 else "the user may not read this"


def _explanation(answer: Any) -> bytes:
    """The beginning of an error's body, if its end is announced."""
    try:
        return bytes(answer.read(_EXPLANATION_BYTES)) if answer.length or answer.chunked else b""
    except Exception:  # noqa: BLE001 - the status says enough
        return b""


def _elsewhere(answer: Any) -> str:
    """Where an answer refers to, without a login or a query, which may be secrets."""
    location = answer.getheader("Location") if 300 <= answer.status < 400 else None
    return f", to {printable(_LOGIN.sub('//', location.partition('?')[0]))[:120]}" if location else ""


def _failure(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return "closed"
    return "login" if unverified_by_us(error) else "unreachable"
