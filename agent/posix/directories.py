"""The directories of the agent's own user, created or taken over while the agent is root.

That user's processes may at any time replace a name there by another file, a symbolic link or a hard link to another
user's file. So root changes the owner of what it has opened, never of a name.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat

from agent.common import ownfiles
from agent.common.remedy import UNANSWERED
from agent.errors import UNREACHABLE, AgentError
from agent.posix.signals import sheltered

#: Created by mkfs in a new file system.
_NOBODYS = {"lost+found"}
_ANSWER_S = 5.0


def require_answer(path: str) -> None:
    """Raises AgentError (exit code 4) if the file system of a path, which need not exist yet, does not answer a write
    within ``_ANSWER_S``.

    A process that waits for a frozen file system, or one whose disk is gone, cannot be interrupted. So a child tries,
    and is abandoned. Call from a single-threaded process.
    """
    with sheltered():
        child = os.fork()
        if not child:
            try:
                os.closerange(0, os.sysconf("SC_OPEN_MAX"))
                while not os.path.exists(path):
                    path = os.path.dirname(os.path.abspath(path))
                os.chown(path, -1, -1)
            finally:
                os._exit(0)  # the real use reports any error
    ended = os.pidfd_open(child)
    try:
        if select.select([ended], [], [], _ANSWER_S)[0]:
            os.waitpid(child, 0)
            return
    finally:
        os.close(ended)
    raise AgentError(
        f"the file system of {path} does not answer",
        why=f"it took no change within {_ANSWER_S:g} s",
        remedy=f"{UNANSWERED}, or name another place: --store DIR",
        exit_code=UNREACHABLE,
    )


def prepare(path: str, mode: int, uid: int, gid: int) -> int:
    """Creates a directory, owned by uid:gid, and returns its descriptor. Existing files of the agent in it are given to
    that user too, whoever owned them: a restored backup or a recreated user has other numbers.

    The descriptor stays valid after a change of user, so the parent directories need not be searchable. Raises
    AgentError (exit code 4), also if the directory belongs to another user and has other files: a slip like ``--store
    /var/lib`` must not change its owner.
    """
    try:
        os.makedirs(path, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        entries = [entry for entry in os.scandir(fd) if entry.name not in _NOBODYS]
        foreign = next((entry.name for entry in entries if not ownfiles.is_own(entry.name)), None)
        if os.fstat(fd).st_uid != uid:
            if foreign is not None:
                raise AgentError(
                    f"{path} is not tickscope's",
                    why=f"it holds {foreign!r}, and using it would change its owner",
                    remedy="name a new or an empty directory",
                    exit_code=UNREACHABLE,
                )
            os.fchown(fd, uid, gid)
        os.fchmod(fd, mode)
        for entry in entries:
            if ownfiles.is_own(entry.name):
                _give(entry.name, fd, uid, gid)
    except OSError as error:
        os.close(fd)
        raise _unusable(path, error) from error
    except AgentError:
        os.close(fd)
        raise
    return fd


def _give(name: str, directory: int, uid: int, gid: int) -> None:
    """Gives the user a file, or a sealed segment with its files. A file with a second hard link may be another user's:
    whoever made the link need not own the file.
    """
    with contextlib.suppress(FileNotFoundError):
        if os.stat(name, dir_fd=directory, follow_symlinks=False).st_uid == uid:
            return
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:  # a link, a socket, or gone: nothing that the agent has to write to
        return
    try:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            for inner in filter(
                ownfiles.IN_SEALED.fullmatch, os.listdir(fd)
            ):  # the directory last, since it is checked first after an interruption
                _give(inner, fd, uid, gid)
        elif not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            return
        if found.st_uid != uid:
            os.fchown(fd, uid, gid)
    finally:
        os.close(fd)


def _unusable(path: str, error: OSError) -> AgentError:
    return AgentError(
        f"cannot use {path}",
        why=str(error.strerror),
        remedy="choose another with --store or TICKSCOPE_STORE, the sockets' with TICKSCOPE_RUN_DIR",
        exit_code=UNREACHABLE,
    )
