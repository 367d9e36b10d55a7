"""What the receiver's process counts, in memory that stays when it ends: nothing of its last moment is lost. The agent
reads it as a file: what the process does to it does no harm.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections import Counter

from agent.receiver.wire import COUNTS

_FORM = struct.Struct(f"<{len(COUNTS)}Q")
_MOST = 1 << 62


class LastCounts(Counter[str]):
    """The process's side. fd: what ``made`` gave."""

    def __init__(self, fd: int) -> None:
        super().__init__(dict.fromkeys(COUNTS, 0))
        self._words = memoryview(mmap.mmap(fd, _FORM.size)).cast("Q")
        self._places = {name: at for at, name in enumerate(COUNTS)}

    def __setitem__(self, name: str, count: int) -> None:
        super().__setitem__(name, count)
        self._words[self._places[name]] = count


def made() -> int:
    """A descriptor. Raises OSError."""
    fd = os.memfd_create("tickscope-otlp-counts", os.MFD_CLOEXEC)
    os.ftruncate(fd, _FORM.size)
    return fd


def read(fd: int) -> Counter[str]:
    """What it says by now; of what is no count, nothing. fd: negative where there is none."""
    told = os.pread(fd, _FORM.size, 0) if fd >= 0 else b""
    if len(told) != _FORM.size:
        return Counter()
    return Counter({name: n for name, n in zip(COUNTS, _FORM.unpack(told), strict=True) if n < _MOST})
