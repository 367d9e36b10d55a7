"""The run directory with the sockets of the agent.

It belongs to the service's user, whose processes may swap any name in it at any time. So root does nothing in it: from
the first start on, all work in it is done as that user (``privilege.acting_as``), relative to the directory's
descriptor. A socket has its owner and mode from its creation on: bind(2) gives its file the mode of the socket's own
inode, less the umask (net/unix/af_unix.c, unix_bind_bsd).

A socket or directory that is removed comes back only with a restart of the agent.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable

from agent.errors import UNREACHABLE, AgentError
from agent.log import log_message
from agent.posix import directories, privilege

MODE = 0o755


class RunDirectory:
    """``path``, created if missing, owned by uid:gid. ``fd``: the directory. Raises AgentError (exit code 4)."""

    def __init__(self, path: str, uid: int, gid: int) -> None:
        self.path, self._uid, self._gid = path, uid, gid
        self.fd = directories.prepare(path, MODE, uid, gid)
        self._bound: dict[str, os.stat_result] = {}

    def bind(self, name: str, mode: int, make: Callable[[], socket.socket], backlog: int = 0) -> socket.socket:
        """Binds the socket that ``make`` returns to that name, and listens if ``backlog`` is set. Replaces a socket
        that an earlier agent left. Raises AgentError (exit code 4), also if a running agent uses the name.
        """
        before = os.umask(0)
        try:
            sock = make()
            try:
                sock.setblocking(False)
                if stat.S_IMODE(os.fstat(sock.fileno()).st_mode) != mode:  # a socket that root made has it already
                    os.fchmod(sock.fileno(), mode)
                with privilege.acting_as(self._uid, self._gid):
                    self._make_room(name)
                    sock.bind(self._at(name))
                    self._bound[name] = self._stat(name)
                if backlog:
                    sock.listen(backlog)
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            raise AgentError(
                f"cannot make {self.path}/{name}",
                why=str(error.strerror),
                exit_code=UNREACHABLE,
                remedy="set TICKSCOPE_RUN_DIR to a directory that can be written",
            ) from error
        finally:
            os.umask(before)
        return sock

    def listen(self, name: str, mode: int, kind: int, backlog: int) -> socket.socket:
        """As ``bind``, for connections of that kind."""
        return self.bind(name, mode, lambda: socket.socket(socket.AF_UNIX, kind), backlog)

    def clear(self) -> None:
        """Removes the sockets that this agent bound."""
        for name, bound in self._bound.items():
            try:
                if os.path.samestat(self._stat(name), bound):
                    os.unlink(name, dir_fd=self.fd)
            except FileNotFoundError:
                continue
            except OSError as error:
                log_message(f"tickscope: cannot remove {name}: {error.strerror}")

    def _make_room(self, name: str) -> None:
        """Removes a socket that no process reads. Raises AgentError if a process does, or it is no socket; OSError."""
        try:
            found = self._stat(name)
        except FileNotFoundError:
            return
        path = f"{self.path}/{name}"
        if not stat.S_ISSOCK(found.st_mode):
            raise AgentError(
                f"{path} is not a socket", why="something else has its name", remedy=f"rm {path}", exit_code=UNREACHABLE
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)  # a full backlog means that a process has it
            owner = ""
            try:
                probe.connect(self._at(name))
                owner = (
                    " (pid"
                    f" {int.from_bytes(probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], 'little')})"
                )
            except ConnectionRefusedError:
                os.unlink(name, dir_fd=self.fd)
                return
            except PermissionError as error:
                raise AgentError(
                    f"{path} is another user's socket",
                    why="its owner lets nobody else connect",
                    remedy=f"rm {path}",
                    exit_code=UNREACHABLE,
                ) from error
            except OSError:  # of another type, and in use
                pass
        raise AgentError(
            f"another agent is running{owner}",
            why=f"it holds {path}",
            exit_code=UNREACHABLE,
            remedy="stop it, or set TICKSCOPE_RUN_DIR and --store for a second one",
        )

    def _stat(self, name: str) -> os.stat_result:
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False)

    def _at(self, name: str) -> str:
        """A path to the name through the descriptor, because bind and connect take no directory descriptor."""
        return f"/proc/self/fd/{self.fd}/{name}"
