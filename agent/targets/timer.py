"""A timer that the loop polls: a timerfd of CLOCK_BOOTTIME, which also runs while the machine is suspended."""

from __future__ import annotations

import contextlib
import ctypes as ct
import os
import struct

_CLOCK_BOOTTIME, _FLAGS, _ABSTIME = 7, 0o2004000, 1


class Timer:
    """Raises OSError if no timer can be created."""

    def __init__(self) -> None:
        self._libc = ct.CDLL(None, use_errno=True)
        self.fd = self._libc.timerfd_create(_CLOCK_BOOTTIME, _FLAGS)
        if self.fd < 0:
            raise OSError(ct.get_errno(), "timerfd_create")

    def set(self, due_ns: int) -> None:
        """Makes ``fd`` readable from this time on, CLOCK_BOOTTIME."""
        self._libc.timerfd_settime(
            self.fd, _ABSTIME, struct.pack("<qqqq", 0, 0, due_ns // 1_000_000_000, due_ns % 1_000_000_000), None
        )

    def read_events(self) -> None:
        """Makes ``fd`` unreadable until it is set again."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 8)

    def close(self) -> None:
        os.close(self.fd)
