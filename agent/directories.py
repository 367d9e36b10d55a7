"""The directories that the agent's own user writes in, made or taken over while there still is privilege to do so."""

from __future__ import annotations

import os
import re

from agent.errors import UNREACHABLE, AgentError

#: Whatever a directory of another owner may hold for it to be taken over: what this package put there, and a new file system's own.
_OURS = re.compile(r"hot-\d+\.tsl|sealed-\d+|seal-\d+\.tmp|(seal\.)?lock|clock\.last|(control|intake|notices)\.sock")
_NOBODYS = {"lost+found"}


def prepare(path: str, mode: int, uid: int, gid: int) -> int:
    """Makes a directory, owned by uid:gid, and returns its descriptor. What root put into it becomes theirs too.

    The descriptor outlives a change of user, so the directories above need not be searchable. Raises AgentError (exit code 4),
    also where it is somebody else's and holds something else: a slip like ``--store /var/lib`` must not change its owner.
    """
    try:
        os.makedirs(path, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        entries = [entry for entry in os.scandir(fd) if entry.name not in _NOBODYS]
        foreign = next((entry.name for entry in entries if not _OURS.fullmatch(entry.name)), None)
        if os.fstat(fd).st_uid != uid:
            if foreign is not None:
                raise AgentError(f"{path} is not tickscope's", why=f"it holds {foreign!r}, and using it would change its owner",
                                 remedy="name a new or an empty directory", exit_code=UNREACHABLE)  # fmt: skip
            os.fchown(fd, uid, gid)
        os.fchmod(fd, mode)
        for entry in entries:
            if _OURS.fullmatch(entry.name) and entry.stat(follow_symlinks=False).st_uid == 0:
                os.chown(entry.name, uid, gid, dir_fd=fd, follow_symlinks=False)
    except OSError as error:
        os.close(fd)
        raise _unusable(path, error) from error
    except AgentError:
        os.close(fd)
        raise
    return fd


def _unusable(path: str, error: OSError) -> AgentError:
    return AgentError(f"cannot use {path}", why=str(error.strerror),
                      remedy="choose another with --store or TICKSCOPE_STORE, the sockets' with TICKSCOPE_RUN_DIR", exit_code=UNREACHABLE)  # fmt: skip
