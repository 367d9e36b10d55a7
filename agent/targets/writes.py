"""Files with probes that somebody writes to. Programs started from such a file afterwards would get breakpoints at the
instructions of the former content.
"""

from __future__ import annotations

import contextlib
import ctypes as ct
import os
import struct

_FLAGS = 0o2004000  # IN_NONBLOCK | IN_CLOEXEC
# IN_MODIFY, which also reports truncation, and IN_ONESHOT: a file that is written again and again cannot fill the queue
_MODIFY = 0x80000002
_OVERFLOW = -1
_EVENT = struct.Struct("iIII")


class Writes:
    """``fds`` is readable when a file was written to. Files that the agent may not read are not watched; without
    inotify none are.
    """

    def __init__(self) -> None:
        self._libc = ct.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(_FLAGS)
        self._watched: dict[int, int] = {}  # by watch number: one inode has one number, however often it is watched

    def fds(self) -> list[int]:
        return [self._fd] if self._fd >= 0 else []

    def watch(self, file: int) -> int:
        """Watches a file from now on; returns its number, or -1."""
        path = f"/proc/self/fd/{file}".encode()
        number = int(self._libc.inotify_add_watch(self._fd, path, ct.c_uint32(_MODIFY)))
        if number >= 0:
            self._watched[number] = self._watched.get(number, 0) + 1
        return number

    def forget(self, number: int) -> None:
        left = self._watched.pop(number, 0) - 1
        if left > 0:
            self._watched[number] = left
        elif left == 0:
            self._libc.inotify_rm_watch(self._fd, number)

    def read_events(self) -> set[int]:
        """Numbers of the files that were written to, each once; all numbers if the queue overflowed."""
        found = set[int]()
        with contextlib.suppress(BlockingIOError):
            while self._fd >= 0 and (data := os.read(self._fd, 4096)):
                at = 0
                while at < len(data):
                    number, _, _, length = _EVENT.unpack_from(data, at)
                    found.add(number)
                    at += _EVENT.size + length
        return self._watched.keys() & found if _OVERFLOW not in found else set(self._watched)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
