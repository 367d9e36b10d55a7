"""The keeper: a process that makes the run directory again where somebody removed it, since the agent may not (/run
belongs to root), and nothing else.

It is the service's user with CAP_DAC_OVERRIDE, so the directory is that user's from the first. Its system call filter
lets it make directories and open directories for reading: no file, whatever made it try. A request is a number, the
reply that number, an errno and the directory by SCM_RIGHTS.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import struct

from agent.posix import privilege
from agent.posix.child import Child

_REQUEST, _REPLY = struct.Struct("<I"), struct.Struct("<Ii")
#: uid, gid, mode; then the directory's name, and by SCM_RIGHTS the one that it is in.
_BEGIN = struct.Struct("<III")
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Looks without an answer (one a second) until it counts as one that cannot answer.
_PATIENCE = 5
#: close fstat mmap mprotect munmap brk rt_sigaction rt_sigreturn mremap madvise sendmsg recvmsg exit futex exit_group
#: mkdirat newfstatat getrandom
_X86_CALLS = (3, 5, 9, 10, 11, 12, 13, 15, 25, 28, 46, 47, 60, 202, 231, 258, 262, 318)
_X86_OPENAT = 257


def open_own(path: str, mode: int, uid: int, above: int | None = None) -> int:
    """A directory of this user's, made where there is none. above: the directory that a relative path starts at. Raises
    OSError.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode, dir_fd=above)
    fd = os.open(path, _OPEN, dir_fd=above)
    if os.fstat(fd).st_uid != uid:
        os.close(fd)
        raise PermissionError(errno.EPERM, "another user's directory has its name")
    return fd


class Keeper:
    """The agent's side. ``directory`` never waits."""

    def __init__(self, sock: socket.socket, pid: int) -> None:
        sock.setblocking(False)
        self._sock, self.pid, self.alive = sock, pid, True
        self._number = self._looks = 0

    def directory(self) -> int | None:
        """The directory, or None where the answer is still to come. Raises OSError."""
        try:
            if not self._looks:
                self._number += 1
                self._sock.send(_REQUEST.pack(self._number))
            self._looks += 1
            status, fds = self._answer()
        except BlockingIOError:
            if self._looks > _PATIENCE:
                self._looks = 0
                raise TimeoutError(errno.ETIMEDOUT, "the keeper does not answer") from None
            return None
        except OSError:
            self.alive, self._looks = False, 0
            raise BrokenPipeError(errno.EPIPE, "the keeper is gone") from None
        self._looks = 0
        if status:
            raise OSError(
                status, "another user's directory has its name" if status == errno.EPERM else os.strerror(status)
            )
        return fds[0]

    def forget(self) -> None:
        """The directory is there: an answer that is still to come is not for the next time."""
        self._looks = 0

    def _answer(self) -> tuple[int, list[int]]:
        """The one to the last request: others came too late, when the directory was there already. Raises OSError."""
        while True:
            data, fds, _, _ = socket.recv_fds(self._sock, _REPLY.size, 1, socket.MSG_CMSG_CLOEXEC)
            if len(data) != _REPLY.size:
                raise BrokenPipeError
            number, status = _REPLY.unpack(data)
            if number == self._number:
                return status, fds
            for fd in fds:
                os.close(fd)

    def close(self) -> None:
        """Ends it, and waits for it."""
        self._sock.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def start(child: Child, path: str, mode: int, uid: int, gid: int) -> Keeper:
    """Has a child that runs ``serve`` keep the directory at ``path``. As root. Raises OSError."""
    above, name = os.path.split(os.path.abspath(path))
    above_fd = os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        socket.send_fds(child[0], [_BEGIN.pack(uid, gid, mode), os.fsencode(name)], [above_fd])
    finally:
        os.close(above_fd)
    return Keeper(*child)


def serve(sock: socket.socket, parent: int) -> None:
    """The keeper's whole life: gives up all but what it needs, then answers until the other end closes."""
    message, fds, _, _ = socket.recv_fds(sock, _BEGIN.size + 255, 1, socket.MSG_CMSG_CLOEXEC)
    if not message:
        return
    uid, gid, mode = _BEGIN.unpack_from(message)
    os.umask(0o022)
    privilege.drop(uid, gid, (privilege.CAP_DAC_OVERRIDE,))
    privilege.die_with_parent(parent)
    if os.uname().machine == "x86_64":
        privilege.allow_only(_X86_CALLS, {_X86_OPENAT: (2, _OPEN)})
    _answer_all(sock, fds[0], os.fsdecode(message[_BEGIN.size :]), mode, uid)


def _answer_all(sock: socket.socket, above: int, name: str, mode: int, uid: int) -> None:
    while request := sock.recvmsg(_REQUEST.size)[0]:
        fds, status = [], 0
        try:
            fds = [open_own(name, mode, uid, above)]
        except OSError as error:
            status = error.errno or errno.EIO
        socket.send_fds(sock, [_REPLY.pack(*_REQUEST.unpack(request), status)], fds)
        for fd in fds:
            os.close(fd)
