"""The agent's side of the clock watch: forked in the agent's first lines (agent/start.py, agent/clock/first.py),
started once the kernel programs are loaded, supervised from then on.

The agent keeps both ends of its sockets, so a watch that ended is replaced (agent/clock/watch_restart.py) without a
change for programs that poll or connect. Its subscribers are disconnected and must reconnect. A watch without a
heartbeat is reported, and ended after a delay.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from agent.clock.first import BEGIN
from agent.clock.heartbeat import Heartbeat
from agent.clock.host_clock import open_host_clock
from agent.clock.machine import VMCLOCK, open_kept
from agent.clock.watch import LATE, MESSAGE
from agent.posix.child import Child
from agent.posix.supervisor import ChildProcess, Forked, OfChild, Restarts, Supervised, spawn

#: Without a heartbeat for this long (there are four a second) it counts as silent.
SILENT_S = 2.0
_FIRST_S = 0.001
_OUTAGES = 16
_MEANWHILE = "steps are found by comparison, and no notices are sent"


class WatchMessage(NamedTuple):
    """A message of the watch. actor: pid, -1 unknown. dropped: number of subscribers disconnected so far."""

    t_ns: int
    real_mono_before_ns: int
    real_mono_after_ns: int
    err_ns: int
    actor: int
    dropped: int


@dataclass
class Unwatched:
    """An interval without a watch: from the last heartbeat of one to the first of the next; 0 while there is no next
    one.
    """

    from_ns: int
    to_ns: int = 0


class _Ends(NamedTuple):
    """The watch's ends of its sockets, kept for the next one."""

    agent: socket.socket
    report: socket.socket


class WatchProcess(OfChild):
    """The agent's side. ``sock`` is readable when the watch has sent a message. ``alive`` is false once it has ended.
    ``silent`` is true while it sends no heartbeat.

    vmclock, host_clock: descriptors of VMClock's page and of the host's clock if the machine has them, opened while the
    agent had the privilege. reports: the socket with the notice socket's state, read by agent/clock/notices.py, which
    keeps ``counts`` for the next watch. outages: the last intervals without a watch.
    """

    def __init__(
        self,
        pid: int,
        sock: socket.socket,
        reports: socket.socket,
        ends: _Ends,
        notices: socket.socket,
        heartbeat: Heartbeat,
    ) -> None:
        self.vmclock, self.host_clock = open_kept(VMCLOCK), open_host_clock()
        self.pid, self.sock, self.reports, self.dropped = pid, sock, reports, 0
        self.counts: dict[str, int] = {}
        self.outages: deque[Unwatched] = deque(maxlen=_OUTAGES)
        self.child = Supervised(
            "clock watch",
            "watches the clock",
            self._start,
            self._over,
            silent_s=SILENT_S,
            restarts=Restarts(),
            meanwhile=_MEANWHILE,
        )
        self.child.adopt(Forked(pid))
        self._ends, self._notices, self._heartbeat, self._steps = ends, notices, heartbeat, -1
        self._late: list[tuple[int, int]] = []
        self._report_pid: Callable[[int], None] = lambda _: None
        self._beat_ns = 0

    def begin(self, steps_fd: int) -> None:
        """Starts it and waits for its first heartbeat; from then on every step has its waker. steps_fd: the map
        ``clock_last``, or -1. Must be called as root: only then can a later watch get real-time priority. Raises
        OSError if the watch has ended.
        """
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_RTPRIO, (1, 1))
        self._steps = os.dup(steps_fd) if steps_fd >= 0 else -1
        socket.send_fds(self.sock, [b"go"], [steps_fd] if steps_fd >= 0 else [])
        self.sock.setblocking(False)
        end_s = time.monotonic() + SILENT_S
        while not self._heartbeat.last_ns and time.monotonic() < end_s:
            time.sleep(_FIRST_S)
        self.child.beat()

    @property
    def restarts(self) -> Restarts:
        return self.child.restarts

    def follow(self, report_pid: Callable[[int], None]) -> None:
        """Calls ``report_pid`` with the watch's pid, now and after each restart."""
        self._report_pid = report_pid
        report_pid(self.pid)

    def messages(self) -> list[WatchMessage]:
        """Its messages since the last call."""
        if self.child.due():
            self._check()
        out: list[WatchMessage] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                data = self.sock.recv(MESSAGE.size)
                if len(data) == MESSAGE.size:
                    out.append(WatchMessage(*MESSAGE.unpack(data)))
                    self.dropped = out[-1].dropped
                elif len(data) == LATE.size:
                    self._late.append(LATE.unpack(data))
                else:
                    break
        return out

    def late(self) -> list[tuple[int, int]]:
        """Intervals since the last call, as of the last ``messages``: when it wanted to run and when it could,
        CLOCK_BOOTTIME ns.
        """
        found, self._late = self._late, []
        return found

    def _check(self) -> None:
        beat_ns = self._heartbeat.last_ns
        if self.alive and beat_ns != self._beat_ns:
            self._beat_ns = beat_ns
            self.child.beat()
            if self.outages and not self.outages[-1].to_ns:
                self.outages[-1].to_ns = beat_ns
        self.child.check()
        if self.restarts.given_up:
            self._notices.close()  # new clients are refused

    def _over(self) -> None:
        self._beat_ns = self._heartbeat.last_ns
        if not self.outages or self.outages[-1].to_ns:
            self.outages.append(Unwatched(self._beat_ns))

    def _start(self) -> tuple[ChildProcess, None]:
        """Starts another watch. Unread messages to the previous one are discarded."""
        with contextlib.suppress(BlockingIOError):
            while True:
                _, fds, _, _ = socket.recv_fds(self._ends.agent, 16, 1, socket.MSG_DONTWAIT)
                for fd in fds:
                    os.close(fd)
        ends = (self._ends.agent, self._notices, self._ends.report)
        given = [*(end.fileno() for end in ends), self._heartbeat.fd, self._steps]
        process = spawn(
            "agent.clock.watch_restart",
            *given,
            os.getpid(),
            json.dumps(self.counts),
            fds=[fd for fd in given if fd >= 0],
        )
        self.pid = process.pid
        self._report_pid(self.pid)
        return process, None

    def state(self) -> dict[str, object]:
        """For ``status``."""
        how = self.child.state()
        if how == "running" and not self._has_priority():
            why = (
                "CAP_SYS_NICE, or cpu.rt_runtime_us of its cgroup, version 1"
                if not self.restarts.count
                else "RLIMIT_RTPRIO, which takes CAP_SYS_RESOURCE; restart tickscope"
            )
            how = f"running without real-time priority ({why}): notices may be late on a busy host"
        if self.restarts.count:
            how += (
                f"; restarted {self.restarts.count} times, last {time.monotonic() - self.restarts.last_s:.0f} s ago"
                f" ({self.restarts.why})"
            )
        return {"subscribers_dropped": self.dropped, "watch": how, "watch_restarts": self.restarts.count}

    def _has_priority(self) -> bool:
        try:
            return any(os.sched_getscheduler(int(tid)) == os.SCHED_RR for tid in os.listdir(f"/proc/{self.pid}/task"))
        except (FileNotFoundError, ProcessLookupError):  # it is ending
            return False

    def close(self) -> None:
        """Ends the watch, even if it is stopped, and waits for it."""
        self.child.close(kill=True)
        for one in (self.sock, self.reports, *self._ends, self._notices):
            one.close()
        self._heartbeat.close()
        if self._steps >= 0:
            os.close(self._steps)


def start(child: Child, notices: socket.socket, uid: int, gid: int) -> WatchProcess:
    """Makes a child that runs ``first.serve`` the watch, which drops all privileges. notices: the listening socket,
    owned by the WatchProcess from then on. Raises OSError.
    """
    agent_end, watch_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reports, report = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reports.setblocking(False)
    heartbeat = Heartbeat.new()
    sock, pid = child
    with sock:
        socket.send_fds(
            sock, [BEGIN.pack(uid, gid)], [watch_end.fileno(), notices.fileno(), report.fileno(), heartbeat.fd]
        )
    return WatchProcess(pid, agent_end, reports, _Ends(watch_end, report), notices, heartbeat)
