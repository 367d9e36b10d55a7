"""How a hook delivers a notice: a command, a webhook, a Redis channel. Each imports what it needs where it is made."""

from __future__ import annotations

import base64
import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from agent.common.lean import without
from agent.errors import printable
from agent.posix import privilege

if TYPE_CHECKING:
    from http.client import HTTPConnection

#: Of what a command says when it fails.
_SAID_BYTES = 160


class HookFailed(Exception):
    """A notice could not be delivered; the text says why."""


Deliver = Callable[[bytes], None]


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raises HookFailed inside the block when it takes longer, whatever it waits for. Main thread only."""

    def late(_: int, __: object) -> None:
        raise HookFailed(f"no end within {seconds:g} s")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def execute(command: tuple[str, ...], timeout_s: float) -> Deliver:
    """Runs the command with the notice as a line on its standard input; it and what it started are killed after
    ``timeout_s``.
    """

    def deliver(line: bytes) -> None:
        me, environment = os.getpid(), {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8"}
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd="/",
                env=environment,
                start_new_session=True,
                preexec_fn=lambda: privilege.die_with_parent(me),
            )
        except OSError as error:
            raise HookFailed(f"cannot run {command[0]}: {error.strerror}") from error
        try:
            said = _exchange(child, line + b"\n", timeout_s)
        except TimeoutError:
            raise HookFailed(f"{command[0]} did not end within {timeout_s:g} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            for pipe in (child.stdin, child.stderr):
                if pipe is not None:
                    pipe.close()
        if child.returncode:
            raise HookFailed(f"{command[0]} ended with {child.returncode}" + (f": {said}" if said else ""))

    return deliver


def _exchange(child: subprocess.Popen[bytes], line: bytes, timeout_s: float) -> str:
    """Hands over the line and waits for the end; the beginning of what the command says on stderr. The rest is read and
    thrown away, so that one which says much goes on. Raises TimeoutError.
    """
    assert child.stdin is not None
    assert child.stderr is not None
    until, said, ended = time.monotonic() + timeout_s, b"", os.pidfd_open(child.pid)
    try:
        with contextlib.suppress(OSError):  # it need not read
            os.write(child.stdin.fileno(), line)  # a pipe has room for it
        child.stdin.close()
        waiting = [child.stderr.fileno(), ended]
        os.set_blocking(child.stderr.fileno(), False)
        ready: list[int] = []
        while ended not in ready:
            ready, _, _ = select.select(waiting, [], [], max(0.0, until - time.monotonic()))
            if not ready or time.monotonic() >= until:
                raise TimeoutError
            with contextlib.suppress(BlockingIOError):
                piece = os.read(child.stderr.fileno(), 1 << 16)
                said += piece[: _SAID_BYTES - len(said)]
                if not piece:
                    waiting = [ended]
    finally:
        os.close(ended)
    return printable(b" ".join(said.split()))


def _https() -> type[HTTPConnection]:
    """What http.client has only where it was imported with ssl."""
    import http.client
    import ssl

    context = ssl.create_default_context()

    class Encrypted(http.client.HTTPConnection):
        default_port = http.client.HTTPS_PORT

        def connect(self) -> None:
            super().connect()
            self.sock = context.wrap_socket(self.sock, server_hostname=self.host)

    return Encrypted


def post(url: str, timeout_s: float) -> Deliver:
    """Posts the notice as JSON; any 2xx answer is a delivery. Redirections are not followed."""
    with without("ssl"):
        import http.client

    parts = urlsplit(url)
    kind = _https() if parts.scheme == "https" else http.client.HTTPConnection
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Content-Type": "application/json", "User-Agent": "tickscope"}
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"

    def deliver(line: bytes) -> None:
        connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
        try:
            with _within(timeout_s):
                connection.request("POST", path, line, headers)
                status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            raise HookFailed(
                f"{parts.hostname}: {getattr(error, 'strerror', None) or error or type(error).__name__}"
            ) from error
        finally:
            connection.close()
        if not 200 <= status < 300:
            raise HookFailed(f"{parts.hostname} answered {status}")

    return deliver


def publish(url: str, channel: str, timeout_s: float) -> Deliver:
    """Publishes the notice on a channel."""
    import hiredis

    from agent.common.resp import RedisDown, RedisUrl, RespClient

    client = RespClient(RedisUrl.parse(url), timeout_s)

    def deliver(line: bytes) -> None:
        try:
            with _within(timeout_s):
                (reply,) = client.pipeline([("PUBLISH", channel, line)])
        except (RedisDown, HookFailed) as error:
            client.close()
            raise HookFailed(f"{client.url.server}: {error}") from error
        if isinstance(reply, hiredis.ReplyError):
            raise HookFailed(f"{client.url.server}: {reply}")

    return deliver
