"""Hooks: a command, a webhook, a Redis channel that are told of every jump. Each runs in an unprivileged process of its
own.

Such a process is a subscriber of the notice socket like any other, so nothing that it waits for can hold up the agent
or the clock watch. It delivers one notice after the other, each within ``timeout_s``; what comes faster waits, the
oldest is dropped and counted. Forked by the agent before it has loaded much; imports what its hook needs, after the
fork.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable

from agent.clock.deliveries import Deliver, HookFailed, execute, post, publish
from agent.clock.hook_settings import HookConfig
from agent.posix import privilege

#: Notices that wait for a slow hook. Older ones are of no use to anybody.
QUEUE = 32
_SOCKET = "notices.sock"
#: Before it is tried again to connect.
_AGAIN_S = 0.5


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
            except Exception as error:  # noqa: BLE001 - what else a library raises fails this notice, not the hook
                self._counts["error"] = (
                    str(error) if isinstance(error, HookFailed) else f"{type(error).__name__}: {error}"
                )[:200]
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
