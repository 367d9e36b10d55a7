"""The files of hot segments: begun, written in small pieces, ended."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable

from agent.batch import Batch
from agent.store import segments
from agent.store.frames import Encoder, Head
from agent.store.index import Index

#: Bytes: 60 us or so. A kernel without preemption lets nobody else have the processor during a write.
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
    """A segment of one batch, ended. Raises OSError."""
    encoder = Encoder()
    pieces, _ = encoder.batches([batch])
    fd = segments.open_at(dir_fd, segments.hot_name(seq), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
    try:
        os.write(fd, b"".join([encoder.head(head), *pieces, encoder.end()]))
    finally:
        os.close(fd)


def total_bytes(dir_fd: int) -> int:
    """Of all hot segments."""
    total = 0
    for seq in segments.hot_files(dir_fd):
        with contextlib.suppress(FileNotFoundError):  # sealed meanwhile
            total += os.stat(segments.hot_name(seq), dir_fd=dir_fd).st_size
    return total


def sizes(dir_fd: int, measured: tuple[list[int], int]) -> tuple[tuple[list[int], int], tuple[int, int]]:
    """Which segments are sealed and their bytes, ``measured`` anew where they changed; then bytes and segments of the
    whole store. Raises OSError.
    """
    listed = segments.listing(dir_fd)
    if listed.sealed != measured[0]:
        measured = listed.sealed, sum(segments.tree_bytes(dir_fd, segments.sealed_name(s)) for s in listed.sealed)
    return measured, (measured[1] + total_bytes(dir_fd), len(listed.hot) + len(listed.sealed))


def cut_back(fd: int, size: int) -> int:
    """Remove a half-written frame; a segment that cannot be mended is left as it is, torn, and closed. Its descriptor,
    or -1.
    """
    try:
        os.ftruncate(fd, size)
    except OSError:
        os.close(fd)
        return -1
    return fd


def shed(dir_fd: int, max_bytes: float) -> None:
    """Where sealing does not work, or not fast enough, retention is the store's own: closed hot segments beyond
    ``max_bytes`` go, oldest first.
    """
    closed = segments.hot_files(dir_fd)[:-1]
    while closed and total_bytes(dir_fd) > max_bytes:
        with contextlib.suppress(FileNotFoundError):  # sealed meanwhile
            os.unlink(segments.hot_name(closed.pop(0)), dir_fd=dir_fd)


def write_all(fd: int, pieces: Iterable[bytes | memoryview]) -> int:
    """Returns the bytes written. Raises OSError, with some of them written."""
    total = 0
    for piece in pieces:
        rest = memoryview(piece)
        total += len(rest)
        while rest:
            rest = rest[os.write(fd, rest[:_AT_ONCE]) :]
    return total


def write_end(fd: int, index: Index) -> None:
    """Mark a clean close, with the index where there is room. On a disk that refuses it the mark is missing, which the
    next start reports as a possible gap.
    """
    size = os.fstat(fd).st_size
    for end in (index.end(), Encoder.end()):
        with contextlib.suppress(OSError):
            if write_all(fd, [end]) == len(end):
                return
        with contextlib.suppress(OSError):
            os.ftruncate(fd, size)
