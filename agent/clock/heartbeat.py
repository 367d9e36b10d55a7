"""A heartbeat in a memory page that two processes share: one writes the time, the other reads it, and neither is woken.
Standard library only.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time

#: Sealed, so that neither side can shrink the page that the other has mapped.
_SEALED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Heartbeat:
    """The page behind ``fd``; ``new`` creates one. Raises OSError."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._page = mmap.mmap(fd, mmap.PAGESIZE)
        self._last = memoryview(self._page).cast("q")

    @classmethod
    def new(cls) -> Heartbeat:
        fd = os.memfd_create("tickscope-pulse", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.truncate(fd, mmap.PAGESIZE)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALED)
        return cls(fd)

    def beat(self) -> None:
        self._last[0] = time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    @property
    def last_ns(self) -> int:
        """CLOCK_BOOTTIME of the last beat, 0 before the first."""
        return self._last[0]

    def close(self) -> None:
        self._last.release()
        self._page.close()
        os.close(self.fd)
