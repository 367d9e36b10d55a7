"""The control socket: one request line in, one JSON document out. Readable by root and the group tickscope."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from agent.errors import UNREACHABLE, AgentError

_LIMIT = 256
Answer = Callable[[], Mapping[str, object]]


def bind(path: Path, gid: int) -> socket.socket:
    """A listening socket at ``path``. Raises AgentError (exit code 4) where a live agent holds it."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError), contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        else:
            pid = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            raise AgentError(
                f"another agent is running (pid {int.from_bytes(pid[:4], 'little')})",
                why=f"it holds {path}",
                remedy="stop it, or set TICKSCOPE_RUN_DIR and --store for a second one",
                exit_code=UNREACHABLE,
            )
    try:
        sock.bind(str(path))
    except OSError as error:
        raise AgentError(f"cannot make {path}", why=str(error.strerror), remedy="set TICKSCOPE_RUN_DIR to a directory that can be written",
                         exit_code=UNREACHABLE) from error  # fmt: skip
    os.chown(path, 0, gid)
    path.chmod(0o660)
    sock.listen(16)
    sock.setblocking(False)
    return sock


class Control:
    """Answers requests from the agent's loop. A client has a quarter of a second to send its line; nobody can hold the loop up."""

    def __init__(self, sock: socket.socket, answers: Mapping[str, Answer]) -> None:
        self.sock, self._answers = sock, answers

    def serve(self) -> None:
        """Accepts and answers what waits now."""
        try:
            client, _ = self.sock.accept()
        except OSError:
            return
        with client:
            client.settimeout(0.25)
            try:
                request = client.recv(_LIMIT).decode(errors="replace").strip()
                answer = self._answers.get(request)
                document = answer() if answer else {"error": f"no request {request!r}; known: {', '.join(self._answers)}"}
                client.sendall(json.dumps(document, default=str).encode() + b"\n")
            except OSError:
                return

    def close(self) -> None:
        self.sock.close()


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
        return dict(json.loads(data))
    except TimeoutError as error:
        raise AgentError("the agent does not answer", why=f"nothing came from {path} within {timeout_s:g} s: it is still starting, or gets no processor time",
                         remedy="tickscope status --wait 30", exit_code=UNREACHABLE) from error  # fmt: skip
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            remedy = "run this as root, or join the group tickscope"
        raise AgentError("no agent answers", why=f"{path}: {error.strerror or error}", remedy=remedy, exit_code=UNREACHABLE) from error
    except ValueError as error:
        raise AgentError("the agent's answer was cut short", why=str(error), remedy="try again", exit_code=UNREACHABLE) from error
