"""The control socket: one request line in, one JSON document out. Readable by root and the group tickscope."""

from __future__ import annotations

import errno
import json
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent.common.fairness import UpperBound
from agent.contracts import Readable
from agent.errors import UNREACHABLE, AgentError
from agent.posix.listener import Listener

if TYPE_CHECKING:
    from agent.batch import Batch

CLIENTS = 32
#: Time for a client to send its request and to read the answer.
CLIENT_S = 2.0
#: What hit a bound, in words (agent/service/bounds.py).
REASONS = {
    "refused": f"connections refused, because {CLIENTS} were open",
    "late": f"connections closed that sent no request, or did not read the answer, within {CLIENT_S:g} s",
    "no_descriptor": "connections not accepted for lack of descriptors",
}
_LIMIT, _CHUNK = 256, 4096
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "report",
        "clients of the control socket (the commands)",
        CLIENTS,
        "refused",
        "`status` (`bounds`), `probe_status` row `control`",
    ),
)
Answer = Callable[[], Mapping[str, object]]


@dataclass(eq=False)
class Connection:
    """One connection. answer: what of it was not sent yet."""

    sock: socket.socket
    until_s: float
    request: bytes = b""
    answer: memoryview | None = None


class Control(Readable):
    """Answers requests from the agent's loop, at most one in a turn; a ``Source`` without rows. Nobody can hold the
    loop up: it never waits for a client.

    sock: listening, non-blocking.
    """

    name = "control"

    def __init__(self, sock: socket.socket, answers: Mapping[str, Answer]) -> None:
        self._answers = answers
        self._epoll = select.epoll()
        self._clients: dict[int, Connection] = {}
        self._counts: Counter[str] = Counter()
        self.listener = Listener(self._epoll, sock)

    def counts(self) -> dict[str, int]:
        """How often each bound was hit."""
        return {**{reason: self._counts[reason] for reason in REASONS}, "no_descriptor": self.listener.deafened}

    def fds(self) -> list[int]:
        return [self._epoll.fileno()]

    def drain(self, now_ns: int) -> Iterable[Batch]:
        self.serve()
        return ()

    def serve(self) -> None:
        """Does what can be done now."""
        now_s, answered = time.monotonic(), False
        for client in [c for c in self._clients.values() if c.until_s < now_s]:
            self._forget(client, "late")
        for fd, _ in self._epoll.poll(0):
            client_ = self._clients.get(fd)
            if client_ is not None and client_.answer is not None:
                self._send(client_)
            elif client_ is not None and not answered:
                answered = self._receive(client_)
        self._accept(now_s)

    def _accept(self, now_s: float) -> None:
        sock = self.listener.accept()
        if sock is None:
            return
        if len(self._clients) >= CLIENTS:
            self._counts["refused"] += 1
            sock.close()
            return
        self._clients[sock.fileno()] = Connection(sock, now_s + CLIENT_S)
        self._epoll.register(sock, select.EPOLLIN)

    def _receive(self, client: Connection) -> bool:
        """Reads from a client. True if the request is complete; it is answered then."""
        try:
            data = client.sock.recv(_CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            self._forget(client)
            return False
        client.request += data
        request = client.request[:_LIMIT].partition(b"\n")[0].decode(errors="replace").strip()
        if data and b"\n" not in client.request and len(client.request) < _LIMIT and request not in self._answers:
            return False
        if not client.request:
            self._forget(client)
            return False
        client.answer, client.until_s = memoryview(self._document(request)), time.monotonic() + CLIENT_S
        self._epoll.modify(client.sock, select.EPOLLOUT)
        self._send(client)
        return True

    def _document(self, request: str) -> bytes:
        """The answer, as a line; an error with its reason if there is none. Never raises."""
        answer = self._answers.get(request)
        try:
            document = answer() if answer else {"error": f"no request {request!r}; known: {', '.join(self._answers)}"}
            return json.dumps(document, default=str).encode() + b"\n"
        except Exception as error:  # noqa: BLE001 - the next request may be another one
            return json.dumps({"error": f"cannot answer {request!r}: {type(error).__name__}: {error}"}).encode() + b"\n"

    def _send(self, client: Connection) -> None:
        assert client.answer is not None
        try:
            client.answer = client.answer[client.sock.send(client.answer) :]
        except BlockingIOError:
            return
        except OSError:
            client.answer = memoryview(b"")
        if not len(client.answer):
            self._forget(client)

    def _forget(self, client: Connection, why: str = "") -> None:
        del self._clients[client.sock.fileno()]
        client.sock.close()
        if why:
            self._counts[why] += 1

    def close(self) -> None:
        for client in self._clients.values():
            client.sock.close()
        self.listener.close()
        self._epoll.close()


def ask(run_dir: str, request: str, timeout_s: float = 2.0) -> dict[str, object]:
    """The client's side. Raises AgentError (exit code 4) where no agent answers."""
    path = Path(run_dir) / "control.sock"
    remedy = "start it: sudo tickscope run"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout_s)
            sock.connect(str(path))
            sock.sendall(request.encode() + b"\n")
            data = b""
            while chunk := sock.recv(1 << 16):
                data += chunk
        document = dict(json.loads(data))
    except TimeoutError as error:
        raise AgentError(
            "the agent does not answer",
            why=f"nothing came from {path} within {timeout_s:g} s: it is still starting, or gets no CPU time",
            remedy="tickscope status --wait 30",
            exit_code=UNREACHABLE,
        ) from error
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            remedy = "run this as root, or join the group tickscope"
        raise AgentError(
            "no agent answers", why=f"{path}: {error.strerror or error}", remedy=remedy, exit_code=UNREACHABLE
        ) from error
    except ValueError as error:
        raise AgentError(
            "the agent's answer was cut short", why=str(error), remedy="try again", exit_code=UNREACHABLE
        ) from error
    if set(document) == {"error"}:
        raise AgentError(
            "the agent gave no answer",
            why=str(document["error"]),
            remedy="see the agent's log",
            exit_code=UNREACHABLE,
        )
    return document
