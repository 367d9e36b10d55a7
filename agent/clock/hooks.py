"""The hook: a command that gets every jump notice, run by an unprivileged process.

That process subscribes to the notice socket like any other, so it cannot delay the agent or the clock watch. It runs
the command once per notice, each run within ``timeout_s``. Notices that come faster wait; beyond ``QUEUE`` the oldest
are dropped and counted. The agent forks the process before it has loaded much.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable

from agent.clock.settings import HookSettings
from agent.common.fairness import UpperBound
from agent.common.printable import printable
from agent.posix import privilege
from agent.posix.supervisor import Forked, Supervised

#: Notices that wait for a slow hook. Older ones are useless.
QUEUE = 32
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "report",
        "notices that wait for a slow hook command (`notices: exec`)",
        QUEUE,
        "the oldest are dropped; the command is killed after `timeout_s`",
        "`status` (`notices`), `notice_status`",
        setting="`notices: {timeout_s: N}`",
    ),
)
_SOCKET = "notices.sock"
#: Delay before it connects again.
_AGAIN_S = 0.5
#: Kept bytes of the command's stderr.
_STDERR_BYTES = 160

Deliver = Callable[[bytes], None]


class HookFailed(Exception):
    """A notice could not be delivered; the text is the reason."""


def execute(command: tuple[str, ...], timeout_s: float) -> Deliver:
    """Runs the command with the notice as one line on its standard input. After ``timeout_s`` the command and its
    children are killed.
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
            stderr = _exchange(child, line + b"\n", timeout_s)
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
            raise HookFailed(f"{command[0]} ended with {child.returncode}" + (f": {stderr}" if stderr else ""))

    return deliver


def _exchange(child: subprocess.Popen[bytes], line: bytes, timeout_s: float) -> str:
    """Writes the line and waits for the end. Returns the beginning of the command's stderr; the rest is discarded, so
    that a full pipe does not block the command. Raises TimeoutError.
    """
    assert child.stdin is not None
    assert child.stderr is not None
    until, stderr, ended = time.monotonic() + timeout_s, b"", os.pidfd_open(child.pid)
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
                stderr += piece[: _STDERR_BYTES - len(stderr)]
                if not piece:
                    waiting = [ended]
    finally:
        os.close(ended)
    return printable(b" ".join(stderr.split()))


class Hook:
    """The child's side: sends lines from the notice socket in the current directory to ``deliver``, and counts to
    ``report``.
    """

    def __init__(self, report: socket.socket, deliver: Deliver) -> None:
        self._report, self._deliver = report, deliver
        self._notices, self._rest = _connect(), b""
        self._last: int | None = None  # id of the newest notice
        self._waiting: deque[bytes] = deque()
        self._counts: dict[str, object] = {"delivered": 0, "failed": 0, "dropped": 0, "error": ""}

    def run(self) -> None:
        """Runs until the agent closes its end, that is, ends."""
        while True:
            self._gather()
            line = self._waiting.popleft()
            try:
                self._deliver(line)
                self._count("delivered")
            except Exception as error:  # noqa: BLE001 - an unexpected error fails this notice, not the hook
                self._counts["error"] = (
                    str(error) if isinstance(error, HookFailed) else f"{type(error).__name__}: {error}"
                )[:200]
                self._count("failed")

    def _count(self, what: str, more: int = 1) -> None:
        number = self._counts[what]
        assert isinstance(number, int)
        self._counts[what] = number + more
        with contextlib.suppress(BlockingIOError):  # the next report has the same counts
            self._report.send(json.dumps(self._counts).encode())

    def _gather(self) -> None:
        """Reads notices; waits if there are none."""
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
                self._reconnect()
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        number = int(json.loads(line)["id"])
        if self._last is not None and number > self._last + 1:  # the watch disconnected this process for being slow
            self._count("dropped", number - self._last - 1)
        self._last = number
        if len(self._waiting) == QUEUE:
            self._waiting.popleft()
            self._count("dropped")
        self._waiting.append(line)

    def _reconnect(self) -> None:
        """Connects again after the clock watch was restarted or disconnected this process."""
        self._notices.close()
        while True:
            time.sleep(_AGAIN_S)
            try:
                self._notices, self._rest = _connect(), b""
                return
            except OSError:
                continue


def _connect() -> socket.socket:
    """A read-only connection to the notice socket in the current directory. Raises OSError."""
    notices = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        notices.connect(_SOCKET)
        notices.shutdown(socket.SHUT_WR)
    except OSError:
        notices.close()
        raise
    return notices


class HookProcess:
    """The agent's side. ``reports`` is the socket with the child's counts."""

    def __init__(self, pid: int, reports: socket.socket) -> None:
        self.pid, self.reports = pid, reports
        self.child = Supervised("notice exec", "runs the hook's command")
        self.child.adopt(Forked(pid))

    def close(self) -> None:
        """Ends the process, also during a delivery, and waits for it."""
        self.reports.close()
        self.child.close()


def start(config: HookSettings, run_fd: int, uid: int, gid: int) -> HookProcess | None:
    """Forks the hook's process, if a command is configured. run_fd: the directory of the notice socket.
    Raises OSError.
    """
    if not config.exec:
        return None
    reports, report = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent, pid = os.getpid(), os.fork()
    if pid:
        report.close()
        reports.setblocking(False)
        return HookProcess(pid, reports)
    try:
        os.fchdir(run_fd)
        privilege.keep_only(report.fileno())
        privilege.set_name("tickscope-exec")
        privilege.drop(uid, gid)
        privilege.die_with_parent(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        report.setblocking(False)
        Hook(report, execute(config.exec, config.timeout_s)).run()
    finally:
        os._exit(0)
