"""Starting the clock watch: forked early from the small privileged parent, set going once the kernel programs are loaded."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

from agent import privilege
from agent.clock.watch import listen, run_watch


class WatchProcess:
    """The agent's side: ``pid``, and ``sock`` on which the watch's messages come (agent/clock/watch.py, MESSAGE)."""

    def __init__(self, pid: int, sock: socket.socket) -> None:
        self.pid, self.sock = pid, sock

    def begin(self, steps_fd: int) -> None:
        """Sets it going. steps_fd: the map ``clock_last``, or -1. Raises OSError where the watch is gone."""
        socket.send_fds(self.sock, [b"go"], [steps_fd] if steps_fd >= 0 else [])
        self.sock.setblocking(False)

    def close(self) -> None:
        """Its end of the socket closing ends the watch."""
        self.sock.close()


def start(path: Path, uid: int, gid: int) -> WatchProcess:
    """Forks the watch, which binds the notice socket and gives up every privilege. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    notices = listen(str(path))
    os.chown(path, uid, gid)
    path.chmod(0o666)
    pid = os.fork()
    if pid:
        theirs.close()
        notices.close()
        return WatchProcess(pid, ours)
    try:
        ours.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        privilege.set_name("tickscope-clock")
        privilege.drop(uid, gid)
        _, fds, _, _ = socket.recv_fds(theirs, 16, 1)
        run_watch(theirs, notices, fds[0] if fds else -1)
    finally:
        os._exit(0)
