"""File names in a store's directory, and how to list and read them while a writer and a sealer work there.

``hot-SEQ.tsl`` is a segment in the frame format. ``sealed-SEQ/`` holds the same rows as one Parquet file per table plus
``head.json``. ``seal-SEQ.tmp/`` is an unfinished sealing. Everything is opened relative to a directory descriptor,
since an unprivileged agent may not be able to walk the path to its own store.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import NamedTuple

from agent.common.ownfiles import HOT, LOCK, SEALED
from agent.errors import UNREACHABLE, AgentError

#: Tables that are kept when the rest of a segment is removed.
KEPT_LONG = ("finding", "verdict", "evidence", "limiter_jump")
HEAD = "head.json"


class Listing(NamedTuple):
    """Sequence numbers in order: hot segments that are not sealed, and sealed ones."""

    hot: list[int]
    sealed: list[int]


def hot_name(seq: int) -> str:
    return f"hot-{seq:08d}.tsl"


def sealed_name(seq: int) -> str:
    return f"sealed-{seq:08d}"


def sealing_name(seq: int) -> str:
    return f"seal-{seq:08d}.tmp"


def no_store(path: str | Path) -> AgentError:
    return AgentError(
        f"no store at {path}",
        why="no agent has written there yet",
        remedy="start one (sudo tickscope run), or name another place: --store DIR",
        exit_code=UNREACHABLE,
    )


def open_dir(path: str | Path) -> int:
    """A descriptor of the store's directory. Raises AgentError (exit 4) if it does not exist or may not be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise no_store(path) from error
    except OSError as error:
        raise unreadable(path, error, "open") from error
    return fd


def unreadable(path: str | Path, error: OSError, verb: str = "read") -> AgentError:
    """The error for a store that exists and cannot be read."""
    remedy = "name another place: --store DIR"
    if error.errno in (errno.EACCES, errno.EPERM):
        remedy = f"run as root or as a member of the group tickscope, or {remedy}"
    elif error.errno == errno.EIO:
        remedy = f"see the kernel log (dmesg) for its disk, or {remedy}"
    return AgentError(f"cannot {verb} the store at {path}: {error.strerror}", remedy=remedy, exit_code=UNREACHABLE)


def listing(dir_fd: int) -> Listing:
    """Hot and sealed segments. Two listings, hot first: the sealer publishes a sealed segment before it removes the hot
    one, so the second listing has what the first misses. A segment in both counts as sealed.
    """
    hot = _matching(dir_fd, HOT)
    sealed = _matching(dir_fd, SEALED)
    return Listing(sorted(hot - sealed), sorted(sealed))


def untouched(dir_fd: int) -> bool:
    """True for a directory that no agent has used: it has no file of a store."""
    return not any(name == LOCK or HOT.fullmatch(name) or SEALED.fullmatch(name) for name in os.listdir(dir_fd))


def hot_files(dir_fd: int) -> list[int]:
    """Hot segments in order, sealed or not."""
    return sorted(_matching(dir_fd, HOT))


def _matching(dir_fd: int, pattern: re.Pattern[str]) -> set[int]:
    return {int(m[1]) for m in map(pattern.fullmatch, os.listdir(dir_fd)) if m}


def open_at(dir_fd: int, name: str, flags: int = os.O_RDONLY) -> int:
    return os.open(name, flags | os.O_CLOEXEC, 0o640, dir_fd=dir_fd)


def read_bytes(dir_fd: int, name: str) -> bytes:
    """A file's bytes. Raises OSError; FileNotFoundError if it vanished."""
    with open(open_at(dir_fd, name), "rb") as file:
        return file.read()


def names_in(dir_fd: int, name: str) -> list[str]:
    """Files of one sealed segment. Raises FileNotFoundError if it does not exist."""
    fd = open_at(dir_fd, name, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return os.listdir(fd)
    finally:
        os.close(fd)


def tree_bytes(dir_fd: int, name: str) -> int:
    """Bytes of the files in one sealed segment; vanished files count as 0."""
    try:
        fd = open_at(dir_fd, name, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return 0
    try:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(fd))
    except FileNotFoundError:
        return 0
    finally:
        os.close(fd)


def signature(pid: int) -> str:
    """The content of the lock file: the writer's pid and start time, since another process may get that pid later."""
    return f"{pid} {started_ns(pid)}"


def writer(dir_fd: int) -> int | None:
    """The pid of the agent that writes this store, None if there seems to be none. For messages; it is no lock."""
    try:
        holder = read_bytes(dir_fd, LOCK).decode("ascii", "replace").strip()
    except OSError:
        return None
    pid = holder.partition(" ")[0]
    return int(pid) if pid.isdigit() and holder == signature(int(pid)) else None


def started_ns(pid: int) -> int | None:
    """CLOCK_BOOTTIME at which a process started, to a clock tick (proc_pid_stat(5), field 22); None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return int(stat.rpartition(b")")[2].split()[19]) * (10**9 // os.sysconf("SC_CLK_TCK"))
