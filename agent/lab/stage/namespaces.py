"""A pid and a mount namespace for the run: when its first process ends, everything in it is killed, and its mounts go.

The first process ends with the director (PR_SET_PDEATHSIG), so that a killed director leaves no process. The director
itself stays outside: it forks into the namespaces and knows its children by the host's pids.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from agent.demo.processes import child, end_with_parent, set_name
from agent.errors import AgentError
from agent.lab.stage.netns import checked

_FS, _NEWNS, _NEWPID = 0x00000200, 0x00020000, 0x20000000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
ENDED_S = 10.0
_libc = ctypes.CDLL(None, use_errno=True)


def reap(pids: Iterable[int], limit_s: float) -> list[int]:
    """Waits for these children of the calling process, in any order. Returns those that still run after ``limit_s``."""
    until, left = time.monotonic() + limit_s, list(pids)
    while left := [pid for pid in left if not _ended(pid)]:
        if time.monotonic() > until:
            break
        time.sleep(0.005)
    return left


def _ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # it was waited for already
        return True


class Namespaces:
    """first: the host's pid of the first process. Raises AgentError if the kernel refuses."""

    def __init__(self, set_up: Callable[[], None] = lambda: None) -> None:
        """set_up: called in the first process, in the new namespaces (mounts are private)."""
        self._home = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        ready_r, ready_w = os.pipe()
        try:
            checked(_libc.unshare(_NEWPID), "unshare")
        except OSError as error:
            raise AgentError(
                "the laboratory cannot make a pid namespace",
                why=str(error),
                remedy="run it as root, outside an unprivileged container",
                exit_code=5,
            ) from error
        try:
            self.first = child(lambda: _reap(ready_w, set_up), signal.SIGHUP)
        finally:
            checked(_libc.setns(self._home, _NEWPID), "setns")
        os.close(ready_w)
        with os.fdopen(ready_r, "rb") as ready:
            if not ready.read(1):
                reap([self.first], ENDED_S)
                raise AgentError("the laboratory's namespaces could not be set up", why="see the message above")
        self._pids = os.open(f"/proc/{self.first}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._root = os.open(f"/proc/{self.first}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    @contextmanager
    def forking(self) -> Iterator[None]:
        """Processes forked within the block are in this pid namespace."""
        checked(_libc.setns(self._pids, _NEWPID), "setns")
        try:
            yield
        finally:
            checked(_libc.setns(self._home, _NEWPID), "setns")

    def enter_mounts(self) -> None:
        """Moves the calling thread of a child of ``forking`` for good. The first process has pid 1 there, even if our
        descriptors are closed.
        """
        checked(_libc.unshare(_FS), "unshare")  # libraries may start threads after a fork, which keep their root
        first = os.pidfd_open(1)
        # Together with its pid namespace, which is ours already. For mounts alone the kernel demands an unshared root,
        # and any short-lived thread would cause EINVAL.
        checked(_libc.setns(first, _NEWNS | _NEWPID), "setns")
        os.close(first)
        os.fchdir(self._root)  # keeps our own root, which may be a directory of the namespace's (chroot)
        os.chroot(".")

    def close(self) -> None:
        """Closes the descriptors: mounts last as long as a process holds their namespace, or a directory of it."""
        for fd in (self._home, self._pids, self._root):
            os.close(fd)


def _reap(ready: int, set_up: Callable[[], None]) -> None:
    """The first process: it waits for orphans and does nothing else."""
    parent_gone = os.getppid() != 0  # 0: our parent is outside the namespace
    end_with_parent()
    if parent_gone:
        return
    set_name("lab-first")
    checked(_libc.unshare(_NEWNS), "unshare")
    checked(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "mount")
    checked(_libc.mount(b"proc", b"/proc", b"proc", 0, None), "mount")
    set_up()
    os.write(ready, b"x")
    os.closerange(3, 1 << 16)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        signal.sigwait({signal.SIGCHLD})
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            continue
