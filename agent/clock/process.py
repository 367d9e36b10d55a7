"""Starting the clock watch: forked early from the small privileged parent, set going once the kernel programs are loaded."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import NamedTuple

from agent import privilege
from agent.clock.host_clock import open_host_clock
from agent.clock.machine import VMCLOCK, open_kept
from agent.clock.watch import LATE, MESSAGE, listen, run_watch

_NICE = -20


class Told(NamedTuple):
    """A message of the watch. actor: pid, -1 unknown; dropped: subscribers dropped so far, for being slow or too many."""

    t_ns: int
    real_mono_before_ns: int
    real_mono_after_ns: int
    err_ns: int
    actor: int
    dropped: int


class WatchProcess:
    """The agent's side. ``pid``; ``sock`` is readable when the watch has told something; ``alive`` until it is seen to be gone.

    vmclock, host_clock: descriptors of VMClock's page and of the host's clock where the machine has them, opened while there was the
    privilege to.
    reports: the state of the notice socket comes there, see agent/clock/notices.py.
    """

    def __init__(self, pid: int, sock: socket.socket, reports: socket.socket) -> None:
        self.vmclock, self.host_clock = open_kept(VMCLOCK), open_host_clock()
        self.pid, self.sock, self.reports, self.alive, self.dropped = pid, sock, reports, True, 0
        self._late: list[tuple[int, int]] = []

    def begin(self, steps_fd: int) -> None:
        """Sets it going. steps_fd: the map ``clock_last``, or -1. Raises OSError where the watch is gone."""
        socket.send_fds(self.sock, [b"go"], [steps_fd] if steps_fd >= 0 else [])
        self.sock.setblocking(False)

    def messages(self) -> list[Told]:
        """What it told since the last call."""
        out: list[Told] = []
        while self.alive:
            try:
                data = self.sock.recv(MESSAGE.size)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if len(data) == MESSAGE.size:
                out.append(Told(*MESSAGE.unpack(data)))
                self.dropped = out[-1].dropped
            elif len(data) == LATE.size:
                self._late.append(LATE.unpack(data))
            else:
                self.alive = False
                self._quieten()
        return out

    def late(self) -> list[tuple[int, int]]:
        """Since the last call, as of the last ``messages``: when it wanted to run and when it could, CLOCK_BOOTTIME ns."""
        found, self._late = self._late, []
        return found

    def _quieten(self) -> None:
        """Puts a socket that never becomes readable in the place of the closed one, so that nobody who polls it spins."""
        self._spare = socket.socketpair()
        os.dup2(self._spare[0].fileno(), self.sock.fileno(), inheritable=False)

    def state(self) -> dict[str, object]:
        """For ``status``."""
        how = "gone: steps are found by comparing, and nobody gets notices; restart tickscope"
        if self.alive:
            how = "running" if self._goes_first() else "running, but may not go first (CAP_SYS_NICE): a busy host may hold notices up"
        return {"subscribers_dropped": self.dropped, "watch": how}

    def _goes_first(self) -> bool:
        try:
            return any(os.sched_getscheduler(int(tid)) == os.SCHED_RR for tid in os.listdir(f"/proc/{self.pid}/task"))
        except (FileNotFoundError, ProcessLookupError):  # it is ending
            return False

    def close(self) -> None:
        """Ends the watch, by its end of the socket closing, and waits for it."""
        self.sock.close()
        self.reports.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _go_first() -> None:
    """Makes this a real-time process, whose threads are such ones too (agent/clock/watch.py keeps it for those that tell of steps). They run for
    microseconds a step; a nice value alone counts only among the processes of one session (sched(7), autogroup). ``state`` says whether."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def start(path: Path, uid: int, gid: int) -> WatchProcess:
    """Forks the watch, which gives up every privilege; its notice socket is at ``path``. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reports, report = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reports.setblocking(False)
    notices = listen(str(path))
    os.chown(path, uid, gid)
    path.chmod(0o666)
    parent, pid = os.getpid(), os.fork()
    if pid:
        for end in (theirs, notices, report):
            end.close()
        return WatchProcess(pid, ours, reports)
    try:
        privilege.keep_only(theirs.fileno(), notices.fileno(), report.fileno())
        privilege.set_name("tickscope-clock")
        _go_first()
        privilege.drop(uid, gid)
        privilege.die_with_parent(parent)
        go, fds, _, _ = socket.recv_fds(theirs, 16, 1)
        if go:
            run_watch(theirs, notices, report, fds[0] if fds else -1)
    finally:
        os._exit(0)
