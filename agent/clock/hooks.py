"""Hooks: a command, a webhook, a Redis channel that are told of every jump. Each runs in an unprivileged process of its own.

Such a process is a subscriber of the notice socket like any other, so nothing that it waits for can hold up the agent or the clock
watch. It delivers one notice after the other, each within ``timeout_s``; what comes faster waits, the oldest is dropped and
counted. Forked by the agent before it has loaded much; imports what its hook needs, after the fork.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator
from urllib.parse import unquote, urlsplit

from agent import privilege
from agent.clock.hook_config import HookConfig
from agent.errors import printable

#: Notices that wait for a slow hook. Older ones are of no use to anybody.
QUEUE = 32
_SOCKET = "notices.sock"
#: Of what a command says when it fails.
_SAID_BYTES = 160
#: Before it is tried again to connect.
_AGAIN_S = 0.5


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
    """Runs the command with the notice as a line on its standard input; it and what it started are killed after ``timeout_s``."""

    def deliver(line: bytes) -> None:
        me, environment = os.getpid(), {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8"}
        try:
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/", env=environment,
                                     start_new_session=True, preexec_fn=lambda: privilege.die_with_parent(me))
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
    """Hands over the line and waits for the end; the beginning of what the command says on stderr. The rest is read and thrown away, so that one which says
    much goes on. Raises TimeoutError."""
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


def post(url: str, timeout_s: float) -> Deliver:
    """Posts the notice as JSON; any 2xx answer is a delivery. Redirections are not followed."""
    import http.client

    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
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
            raise HookFailed(f"{parts.hostname}: {getattr(error, 'strerror', None) or error or type(error).__name__}") from error
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


class Hook:
    """The child's side: lines from the notice socket in the current directory to ``deliver``, counts to ``report``."""

    def __init__(self, report: socket.socket, deliver: Deliver) -> None:
        self._report, self._deliver = report, deliver
        self._directory = os.getcwd()
        self._notices, self._rest = _connect(), b""
        self._last: int | None = None  # the id of the newest notice that came
        self._waiting: deque[bytes] = deque()
        self._counts: dict[str, object] = {"delivered": 0, "failed": 0, "dropped": 0, "error": ""}

    def run(self) -> None:
        """Until the agent is gone, whose end is this process's."""
        while True:
            self._gather()
            line = self._waiting.popleft()
            try:
                self._deliver(line)
                self._count("delivered")
            except HookFailed as error:
                self._counts["error"] = str(error)[:200]
                self._count("failed")

    def _count(self, what: str, more: int = 1) -> None:
        number = self._counts[what]
        assert isinstance(number, int)
        self._counts[what] = number + more
        with contextlib.suppress(BlockingIOError):  # the next one carries the same counts
            self._report.send(json.dumps(self._counts).encode())

    def _gather(self) -> None:
        """Takes what has come, and waits where nothing has."""
        while True:
            try:
                data = self._notices.recv(1 << 16, socket.MSG_DONTWAIT if self._waiting else 0)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if not data and self._waiting:
                return
            if not data:
                self._connect_anew()
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        number = int(json.loads(line)["id"])
        if self._last is not None and number > self._last + 1:  # this process was dropped for being slow
            self._count("dropped", number - self._last - 1)
        self._last = number
        if len(self._waiting) == QUEUE:
            self._waiting.popleft()
            self._count("dropped")
        self._waiting.append(line)

    def _connect_anew(self) -> None:
        """The clock watch was started again, or dropped this process. The directory may be another one by now."""
        self._notices.close()
        while True:
            time.sleep(_AGAIN_S)
            try:
                with contextlib.suppress(OSError):  # a way that is closed to us leads to where we are
                    os.chdir(self._directory)
                self._notices, self._rest = _connect(), b""
                return
            except OSError:
                continue


def _connect() -> socket.socket:
    """A connection that only listens to the notice socket in the current directory. Raises OSError."""
    notices = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        notices.connect(_SOCKET)
        notices.shutdown(socket.SHUT_WR)
    except OSError:
        notices.close()
        raise
    return notices


def delivers(config: HookConfig) -> dict[str, Callable[[], Deliver]]:
    """The hooks that are configured, by channel; called in the child."""
    made: dict[str, Callable[[], Deliver]] = {}
    if config.exec:
        made["exec"] = lambda: execute(config.exec, config.timeout_s)
    if config.webhook:
        made["webhook"] = lambda: post(config.webhook, config.timeout_s)
    if config.redis:
        made["redis"] = lambda: publish(config.redis, config.redis_channel, config.timeout_s)
    return made


class HookProcess:
    """The agent's side. ``reports`` carries the child's counts."""

    def __init__(self, channel: str, pid: int, reports: socket.socket) -> None:
        self.channel, self.pid, self.reports = channel, pid, reports

    def close(self) -> None:
        """Ends it, also in the middle of a delivery, and waits for it."""
        self.reports.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def start(config: HookConfig, run_fd: int, uid: int, gid: int) -> list[HookProcess]:
    """Forks a process for each configured hook. run_fd: the directory of the notice socket. Raises OSError."""
    return [_start(channel, make, run_fd, uid, gid) for channel, make in delivers(config).items()]


def _start(channel: str, make: Callable[[], Deliver], run_fd: int, uid: int, gid: int) -> HookProcess:
    reports, report = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent, pid = os.getpid(), os.fork()
    if pid:
        report.close()
        reports.setblocking(False)
        return HookProcess(channel, pid, reports)
    try:
        os.fchdir(run_fd)
        privilege.keep_only(report.fileno())
        privilege.set_name(f"tickscope-{channel}")
        privilege.drop(uid, gid)
        privilege.die_with_parent(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        report.setblocking(False)
        Hook(report, make()).run()
    finally:
        os._exit(0)
