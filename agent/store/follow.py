"""Follows a store as it grows: new frames of the hot segments, across rotation and sealing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from agent.store import segments
from agent.store.frames import Frame, FrameDecoder, Head


class Follower:
    """Reads frames written to a store from now on.

    dir_fd: the store's directory; the caller closes it. tables: only rows of these (None: all). missed: segments that
    were sealed before they could be read, because the follower was stopped for that long. Raises AgentError (exit 4) if
    the store cannot be read, also from ``poll``.
    """

    def __init__(self, dir_fd: int, tables: frozenset[str] | None = None) -> None:
        self._dir_fd, self._tables = dir_fd, tables
        self._fd = -1
        self._seq = max(segments.listing(dir_fd).sealed, default=0)
        self._decoder = FrameDecoder(tables)
        self.missed = 0
        newest = max(segments.hot_files(dir_fd), default=0)
        with self._reading():
            if newest > self._seq and self._open(newest):
                for _ in self._read():
                    pass  # older rows; their schemas are needed to decode what follows

    @property
    def head(self) -> Head | None:
        """The head of the segment being read."""
        return self._decoder.head

    def poll(self) -> list[Frame]:
        """The complete frames since the last call, in order; empty when there is nothing new."""
        with self._reading():
            return self._poll()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise segments.unreadable(os.readlink(f"/proc/self/fd/{self._dir_fd}"), error) from error

    def _poll(self) -> list[Frame]:
        frames: list[Frame] = []
        while True:
            later = [seq for seq in segments.hot_files(self._dir_fd) if seq > self._seq]
            sealed = max(segments.listing(self._dir_fd).sealed, default=0) if later or self._fd < 0 else 0
            if self._fd >= 0:
                frames += self._read()
                if not later:
                    return frames
                self.close()
            elif not later:
                self.missed += max(0, sealed - self._seq)
                self._seq = max(self._seq, sealed)
                return frames
            self.missed += max(0, later[0] - self._seq - 1) if self._seq else 0
            self._open(later[0])

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self, seq: int) -> bool:
        try:
            self._fd = segments.open_at(self._dir_fd, segments.hot_name(seq))
        except FileNotFoundError:
            return False  # sealed between listing and opening: the next poll counts it
        self._seq, self._decoder = seq, FrameDecoder(self._tables)
        return True

    def _read(self) -> list[Frame]:
        """Frames up to the end of the file. A torn tail is read again, because the writer may have cut it off."""
        self._decoder.rewind()
        at = self._decoder.offset
        data = os.pread(self._fd, max(0, os.fstat(self._fd).st_size - at), at)
        return list(self._decoder.feed(data))
