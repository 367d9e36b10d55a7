"""The run directory: the sockets by which others reach the agent, and their return where somebody removed them.

It belongs to the service's user, whose processes may swap any name in it at any time. So root does nothing in it: from
the first start on, what is done there is done as that user (``privilege.acting_as``), below the directory's descriptor,
and gains nobody anything. A socket has its owner and its mode from the moment that it has a name: bind(2) makes its
file with the mode of the socket's own inode, less the umask (net/unix/af_unix.c, unix_bind_bsd).
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass

from agent.errors import UNREACHABLE, AgentError
from agent.log import say
from agent.posix import directories, privilege
from agent.posix.keeper import Keeper, open_own

MODE = 0o755
Make = Callable[[], socket.socket]
Inode = tuple[int, int]


@dataclass
class Place:
    """A name in the directory. make: its socket, not bound yet; backlog: 0 for one that does not listen; inode: of the
    file that was bound. moved: told of the socket that takes the place of the first. unbound: one that could not be
    bound, for the next try: another may not get as long a queue.
    """

    name: str
    mode: int
    make: Make
    backlog: int
    inode: Inode = (0, 0)
    moved: Callable[[socket.socket], None] | None = None
    unbound: socket.socket | None = None

    def close(self) -> None:
        if self.unbound is not None:
            self.unbound.close()


class RunDirectory:
    """``path``, made where it is missing. uid, gid: whose it is. ``fd``: the directory. Raises AgentError (exit code
    4).

    ``keeper``: has the directory made again where this process may not (agent/posix/keeper.py). ``failures``: what is
    missing now -> why.
    """

    def __init__(self, path: str, uid: int, gid: int) -> None:
        self.path, self._uid, self._gid = path, uid, gid
        self.keeper: Keeper | None = None
        self.fd = directories.prepare(path, MODE, uid, gid)
        self._places: list[Place] = []
        self.failures: dict[str, str] = {}

    def bind(self, name: str, mode: int, make: Make, backlog: int = 0) -> socket.socket:
        """A socket of that name, which listens where there is a backlog; what an agent that is gone left there is
        replaced. Raises AgentError (exit code 4), also where a live one holds it.
        """
        place = Place(name, mode, make, backlog)
        try:
            sock = self._bind(place)
        except AgentError:
            place.close()
            raise
        self._places.append(place)
        return sock

    def listen(self, name: str, mode: int, kind: int, backlog: int) -> socket.socket:
        """As ``bind``, for connections of that kind."""
        return self.bind(name, mode, lambda: socket.socket(socket.AF_UNIX, kind), backlog)

    def moved(self, name: str, to: Callable[[socket.socket], None]) -> None:
        """Who is told of the socket that takes the place of ``name``'s."""
        next(place for place in self._places if place.name == name).moved = to

    def mend(self) -> None:
        """Makes what somebody removed again, where this can be done."""
        try:
            if not self._in_place():
                if not self._find():
                    return
                say(f"tickscope: {self.path} was removed, and is there again")
        except OSError as error:
            self._fails(
                self.path,
                f"{self.path} was removed, and cannot be made again: {error.strerror}",
                f"install -d -o {privilege.USER} -g {privilege.USER} -m {MODE:o} {self.path}",
            )
            return
        self.failures.pop(self.path, None)
        for place in self._places:
            if not self._holds(place):
                self._replace(place)

    def clear(self) -> None:
        """Removes what this agent made, and nothing else; the keeper ends."""
        if self.keeper is not None:
            self.keeper.close()
        for place in self._places:
            place.close()
        for place in filter(self._holds, self._places):
            try:
                os.unlink(place.name, dir_fd=self.fd)
            except OSError as error:
                say(f"tickscope: cannot remove {place.name}: {error.strerror}")

    def _in_place(self) -> bool:
        """Whether the path still leads here, as far as this user can see."""
        here = os.fstat(self.fd)
        try:
            return os.path.samestat(os.stat(self.path), here)
        except FileNotFoundError:
            return False
        except OSError:  # the way to it is closed to us
            return here.st_nlink > 0

    def _find(self) -> bool:
        """Takes the directory that is at the path now, or has one made; False where that is still to come. Raises
        OSError.
        """
        try:
            with privilege.acting_as(self._uid, self._gid):
                fd: int | None = open_own(self.path, MODE, self._uid)
            if self.keeper is not None:
                self.keeper.forget()
        except OSError:
            if self.keeper is None:
                raise
            fd = self.keeper.directory()
        if fd is None:
            return False
        os.dup2(fd, self.fd, inheritable=False)
        os.close(fd)
        return True

    def _replace(self, place: Place) -> None:
        try:
            sock = self._bind(place)
        except AgentError as error:
            self._fails(place.name, f"{error.what}: {error.why}", error.remedy)
            return
        self.failures.pop(place.name, None)
        say(f"tickscope: {self.path}/{place.name} was removed, and is there again")
        if place.moved is not None:
            place.moved(sock)
        else:
            sock.close()

    def _fails(self, name: str, what: str, remedy: str) -> None:
        told = f"{what}; try: {remedy}"
        if self.failures.get(name) != told:
            self.failures[name] = told
            say(f"tickscope: {told}")

    def _bind(self, place: Place) -> socket.socket:
        before = os.umask(0)
        try:
            sock, place.unbound = place.unbound or place.make(), None
            try:
                sock.setblocking(False)
                if stat.S_IMODE(os.fstat(sock.fileno()).st_mode) != place.mode:  # one that root has made has it already
                    os.fchmod(sock.fileno(), place.mode)
                with privilege.acting_as(self._uid, self._gid):
                    self._make_room(place.name)
                    sock.bind(self._at(place.name))
                    place.inode = self._inode(place.name)
                if place.backlog:
                    sock.listen(place.backlog)
            except BaseException:
                if sock.getsockname():
                    sock.close()
                else:
                    place.unbound = sock
                raise
        except OSError as error:
            raise AgentError(
                f"cannot make {self.path}/{place.name}",
                why=str(error.strerror),
                exit_code=UNREACHABLE,
                remedy="set TICKSCOPE_RUN_DIR to a directory that can be written",
            ) from error
        finally:
            os.umask(before)
        return sock

    def _make_room(self, name: str) -> None:
        """Removes a socket that nobody reads any more. Raises AgentError where somebody does, or it is no socket, and
        OSError.
        """
        try:
            found = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return
        path = f"{self.path}/{name}"
        if not stat.S_ISSOCK(found.st_mode):
            raise AgentError(
                f"{path} is not a socket", why="something else has its name", remedy=f"rm {path}", exit_code=UNREACHABLE
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)  # one whose backlog is full lives
            who = ""
            try:
                probe.connect(self._at(name))
                who = (
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
            except OSError:  # of another type, and alive
                pass
        raise AgentError(
            f"another agent is running{who}",
            why=f"it holds {path}",
            exit_code=UNREACHABLE,
            remedy="stop it, or set TICKSCOPE_RUN_DIR and --store for a second one",
        )

    def _holds(self, place: Place) -> bool:
        try:
            return self._inode(place.name) == place.inode
        except OSError:
            return False

    def _inode(self, name: str) -> Inode:
        found = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        return found.st_dev, found.st_ino

    def _at(self, name: str) -> str:
        """A way to the name that goes through the descriptor: bind and connect know no directory."""
        return f"/proc/self/fd/{self.fd}/{name}"
