"""Moves the wall clock by an exact, small amount."""

from __future__ import annotations

import ctypes
import os
import struct
import time

LIMIT_US = 500
_ADJ_SETOFFSET = 0x0100
_libc = ctypes.CDLL(None, use_errno=True)


def step(size_us: int) -> None:
    """Adds ``size_us`` to CLOCK_REALTIME; at most 0.5 ms either way. Raises OSError.

    By clock_adjtime, whose offset the kernel adds itself: clock_settime would also take away the time between reading
    and setting the clock, which is milliseconds when we are preempted there. Layout: struct timex,
    include/uapi/linux/timex.h (64 bit).
    """
    if abs(size_us) > LIMIT_US:
        raise ValueError(f"{size_us} us is more than a demo may step")
    seconds, micros = divmod(size_us, 1_000_000)
    timex = ctypes.create_string_buffer(struct.pack("@I4l i3l 2l", _ADJ_SETOFFSET, *[0] * 8, seconds, micros), 256)
    if _libc.clock_adjtime(time.CLOCK_REALTIME, timex) < 0:
        raise OSError(ctypes.get_errno(), f"clock_adjtime: {os.strerror(ctypes.get_errno())}")
