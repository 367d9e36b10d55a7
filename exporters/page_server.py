"""A small HTTP server for pages of this host: GET and HEAD, one answer a connection.

One thread with a selector serves few connections, each with a deadline, so that a slow or hostile client never affects
anything else. Each user of this host, or remote address, has a share of the places (agent/common/fairness.py). Every
connection that is closed without an answer is counted.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass, field

from agent.common.fairness import Places
from agent.common.printable import printable
from agent.contracts import Stating
from agent.errors import AgentError
from agent.posix.listener import NO_ROOM
from exporters.peer import owner

#: Connections at a time.
MAX_CONNECTIONS = 64
MAX_REQUEST_BYTES = 8192
#: Deadlines: from the connection to the complete request head; from there to the last byte of the answer.
REQUEST_S, ANSWER_S = 2.0, 10.0
#: Bytes of answers that wait for slow readers.
MAX_WAITING_BYTES = 32 << 20
_REASONS = ("timeout", "share", "slow_reader", "failed")


class PageServer(Stating):
    """Serves until closed. Raises AgentError when the address cannot be bound.

    address: (host, port); port 0 takes a free one, see ``port``. what, remedy: for that error. requests: number of
    answers, by status code. dropped: connections closed without an answer, by reason. deafened: how often no client
    could be accepted for lack of descriptors or memory. An error costs one connection, never the thread.
    """

    def __init__(self, address: tuple[str, int], what: str, remedy: str) -> None:
        try:
            self._listener = socket.create_server(
                address, family=socket.AF_INET6 if ":" in address[0] else socket.AF_INET, backlog=128
            )
        except OSError as error:
            raise AgentError(
                f"cannot serve {what} on {f'[{address[0]}]' if ':' in address[0] else address[0]}:{address[1]}",
                why=error.strerror or str(error),
                remedy=remedy,
            ) from error
        self.port: int = self._listener.getsockname()[1]
        self.requests: Counter[int] = Counter({200: 0})
        self.dropped: Counter[str] = Counter(dict.fromkeys(_REASONS, 0))
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        for each in (self._listener, self._woken):
            each.setblocking(False)
            self._selector.register(each, selectors.EVENT_READ)
        self._clients: dict[socket.socket, _Client] = {}
        self._places = Places(MAX_CONNECTIONS)
        self.deafened, self._paused, self._failure = 0, False, ""
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    @abstractmethod
    def reply(self, request: bytes) -> tuple[int, bytes]:
        """(status code, the whole answer) to a complete request head, or to the beginning of one that is too large.
        Called in the server's thread.
        """

    def state(self) -> dict[str, object]:
        """requests, dropped and deafened, see above; ``reason`` and ``remedy`` if clients took places without using
        them; ``state`` and ``last_error`` after a page could not be made, until one can.
        """
        dropped = {reason: n for reason, n in self.dropped.items() if n and reason != "failed"}
        by_state = (
            {
                "reason": (
                    "clients took connections and did not use them: "
                    + ", ".join(f"{n} {r}" for r, n in dropped.items())
                ),
                "remedy": f"see who it is: ss -tnpe sport = :{self.port} or dport = :{self.port}",
            }
            if dropped
            else {}
        )
        failed = (
            {"state": "failing", "last_error": failure, "remedy": "report this"} if (failure := self._failure) else {}
        )
        return {
            "requests": sum(self.requests.values()),
            "dropped": sum(self.dropped.values()),
            **({"deafened": self.deafened} if self.deafened else {}),
            **by_state,
            **failed,
        }

    def close(self) -> None:
        """Ends the thread and every connection."""
        self._wake.send(b"x")
        self._thread.join()
        self._wake.close()

    def _run(self) -> None:
        while True:
            readable = self._selector.select(0.5 if self._clients or self._paused else None)
            if self._paused:
                with contextlib.suppress(OSError):
                    self._selector.register(self._listener, selectors.EVENT_READ)
                    self._paused = False
            for key, _ in readable:
                if key.fileobj is self._woken:
                    for each in (*self._clients, self._listener, self._woken):
                        each.close()
                    self._selector.close()
                    return
                try:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._clients:
                        self._serve(key.fileobj)
                except Exception as error:  # noqa: BLE001 - an error in one page must not end the thread
                    self._failed(key.fileobj, error)
            now = time.monotonic()
            for late in [s for s, c in self._clients.items() if now > c.deadline]:
                self._drop(late, "slow_reader" if self._clients[late].answer else "timeout")

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:  # else the client left before it was accepted
            if error.errno in NO_ROOM:  # it would be readable again at once
                self._selector.unregister(self._listener)
                self._paused = True
                self.deafened += 1
            return
        uid = owner(connection)
        if self._places.refusal(uid):
            self.dropped["share"] += 1
            connection.close()
            return
        connection.setblocking(False)
        try:
            self._selector.register(connection, selectors.EVENT_READ)
        except OSError:
            connection.close()
            raise
        self._places.take(uid)
        self._clients[connection] = _Client(uid, time.monotonic() + REQUEST_S)

    def _serve(self, connection: socket.socket) -> None:
        client = self._clients[connection]
        try:
            if not client.answer:
                piece = connection.recv(MAX_REQUEST_BYTES)
                client.request += piece
                if not piece:
                    self._drop(connection)
                    return
                if b"\r\n\r\n" not in client.request and len(client.request) < MAX_REQUEST_BYTES:
                    return
                status, answer = self.reply(bytes(client.request))
                self.requests[status] += 1
                client.answer, client.deadline = memoryview(answer), time.monotonic() + ANSWER_S
                self._selector.modify(connection, selectors.EVENT_WRITE)
            client.answer = client.answer[connection.send(client.answer) :]
        except BlockingIOError:
            self._bound_waiting()
            return
        except OSError:
            client.answer = memoryview(b"")
        if not client.answer:
            self._drop(connection)
        else:
            self._bound_waiting()

    def _bound_waiting(self) -> None:
        """Bounds what waits for slow readers: drops the oldest answer of the owner with the most."""
        waiting: Counter[int | str] = Counter()
        for client in self._clients.values():
            waiting[client.owner] += len(client.answer)
        if waiting.total() > MAX_WAITING_BYTES:
            of = waiting.most_common(1)[0][0]
            self._drop(next(s for s, c in self._clients.items() if c.owner == of and c.answer), "slow_reader")

    def _drop(self, connection: socket.socket, reason: str = "") -> None:
        if reason:
            self.dropped[reason] += 1
        self._places.give_back(self._clients.pop(connection).owner)
        self._selector.unregister(connection)
        connection.close()

    def _failed(self, where: object, error: Exception) -> None:
        self._failure = printable(f"{type(error).__name__}: {error}")[:200]
        if isinstance(where, socket.socket) and where in self._clients:
            self._drop(where, "failed")


@dataclass
class _Client:
    """owner: see exporters.peer. answer: the part still to be sent; empty while the request is read."""

    owner: int | str
    deadline: float
    request: bytearray = field(default_factory=bytearray)
    answer: memoryview = field(default_factory=lambda: memoryview(b""))
