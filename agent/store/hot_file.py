"""The files of hot segments: creates them, writes them in small pieces, ends them."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable

from agent.batch import Batch
from agent.store import segments
from agent.store.frames import Encoder, Head
from agent.store.index import Index

#: Bytes per write, about 60 us. A kernel without preemption runs nothing else on that CPU during a write.
_AT_ONCE = 256 << 10


def begin(dir_fd: int, seq: int, head: bytes) -> int:
    """The descriptor of a new segment with its head. Raises OSError; then there is no such file."""
    name = segments.hot_name(seq)
    fd = segments.open_at(dir_fd, name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
    try:
        if os.write(fd, head) < len(head):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.close(fd)
        os.unlink(name, dir_fd=dir_fd)
        raise
    return fd


def whole(dir_fd: int, seq: int, head: Head, batch: Batch) -> None:
    """Writes a segment with one batch and ends it. Raises OSError."""
    encoder = Encoder()
    pieces, _ = encoder.batches([batch])
    fd = segments.open_at(dir_fd, segments.hot_name(seq), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
    try:
        os.write(fd, b"".join([encoder.head(head), *pieces, encoder.end()]))
    finally:
        os.close(fd)


def total_bytes(dir_fd: int) -> int:
    """Bytes of all hot segments."""
    total = 0
    for seq in segments.hot_files(dir_fd):
        with contextlib.suppress(FileNotFoundError):  # sealed meanwhile
            total += os.stat(segments.hot_name(seq), dir_fd=dir_fd).st_size
    return total


def sizes(dir_fd: int, measured: tuple[list[int], int]) -> tuple[tuple[list[int], int], tuple[int, int]]:
    """The sealed segments with their bytes (``measured`` again if they changed), then bytes and number of all segments.
    Raises OSError.
    """
    listed = segments.listing(dir_fd)
    if listed.sealed != measured[0]:
        measured = listed.sealed, sum(segments.tree_bytes(dir_fd, segments.sealed_name(s)) for s in listed.sealed)
    return measured, (measured[1] + total_bytes(dir_fd), len(listed.hot) + len(listed.sealed))


def cut_back(fd: int, size: int) -> int:
    """Removes a half-written frame. If that fails, the segment is left torn and closed. Returns its
    descriptor, or -1.
    """
    try:
        os.ftruncate(fd, size)
    except OSError:
        os.close(fd)
        return -1
    return fd


def shed(dir_fd: int, max_bytes: float) -> None:
    """Removes the oldest closed hot segments beyond ``max_bytes``, for when sealing fails or is too slow."""
    closed = segments.hot_files(dir_fd)[:-1]
    while closed and total_bytes(dir_fd) > max_bytes:
        with contextlib.suppress(FileNotFoundError):  # sealed meanwhile
            os.unlink(segments.hot_name(closed.pop(0)), dir_fd=dir_fd)


def write_all(fd: int, pieces: Iterable[bytes | memoryview]) -> int:
    """Returns the bytes written. Raises OSError, possibly after a partial write."""
    total = 0
    for piece in pieces:
        rest = memoryview(piece)
        total += len(rest)
        while rest:
            rest = rest[os.write(fd, rest[:_AT_ONCE]) :]
    return total


def write_end(fd: int, index: Index) -> None:
    """Marks a clean close, with the index if there is room. If the disk refuses, the mark is missing, and the next
    start reports a possible gap.
    """
    size = os.fstat(fd).st_size
    for end in (index.end(), Encoder.end()):
        with contextlib.suppress(OSError):
            if write_all(fd, [end]) == len(end):
                return
        with contextlib.suppress(OSError):
            os.ftruncate(fd, size)
