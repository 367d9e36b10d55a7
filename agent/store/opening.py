"""Opens a store for writing: the directory, its lock, and the state that the previous writer left."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from agent.columns import NULL_I64
from agent.common import remedy
from agent.common.ownfiles import LOCK
from agent.errors import UNREACHABLE, AgentError
from agent.store import segments
from agent.store.frames import FrameDecoder, FrameKind, Head


def make_dir(path: str | Path) -> int:
    """A descriptor of the directory, created if missing. Raises AgentError (exit 4)."""
    try:
        os.makedirs(path, 0o750, exist_ok=True)
    except OSError as error:
        raise AgentError(
            f"cannot create the store at {path}: {error.strerror}",
            remedy="name another place: --store DIR",
            exit_code=UNREACHABLE,
        ) from error
    return segments.open_dir(path)


def lock(dir_fd: int) -> int:
    """Takes the writer's lock; returns its descriptor. Raises AgentError (exit 4) that names the process
    with the lock.
    """
    try:
        fd = segments.open_at(dir_fd, LOCK, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise AgentError(
            f"cannot write the store: {error.strerror}", remedy=remedy.of_write(error), exit_code=UNREACHABLE
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = (os.read(fd, 64).decode("ascii", "replace").split() or ["unknown"])[0]
        os.close(fd)
        raise AgentError(
            f"another agent writes this store: pid {holder}",
            remedy=f"stop it (kill {holder}), or name another place: --store DIR",
            exit_code=UNREACHABLE,
        ) from error
    os.ftruncate(fd, 0)
    try:
        os.pwrite(fd, f"{segments.signature(os.getpid())}\n".encode(), 0)
    except OSError as error:
        if error.errno != errno.ENOSPC:  # full disk: the lock holds, without the pid in it
            raise
    return fd


def crash(dir_fd: int, seq: int) -> tuple[Head | None, int] | None:
    """The head and the last time (CLOCK_BOOTTIME ns) of a segment without an END; None if it has one."""
    decoder = FrameDecoder()
    last = NULL_I64
    with open(segments.open_at(dir_fd, segments.hot_name(seq)), "rb") as file:
        while data := file.read(1 << 20):
            for frame in decoder.feed(data):
                if frame.kind == FrameKind.ROWS:
                    last = max(last, int(frame.rows["t_ns"].max()))
                elif frame.kind == FrameKind.TICK:
                    last = max(last, frame.t_ns)
    if decoder.ended:
        return None
    if last == NULL_I64 and decoder.head is not None:
        last = decoder.head.created_ns
    return decoder.head, last
