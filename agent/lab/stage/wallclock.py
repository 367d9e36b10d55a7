"""Moves the wall clock by harmful amounts: only on a machine that its owner has marked as throwaway at boot."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from pathlib import Path

from agent.clock.timex import FREQUENCY, NOMINAL_TICK_US, SETOFFSET, TICK
from agent.errors import USAGE, AgentError

#: On the kernel's command line: no host has it by accident, and a running kernel cannot get it.
WORD = "tickscope.throwaway_vm"
CMDLINE = Path("/proc/cmdline")
#: The kernel refuses rates further from the nominal one.
MOST_PPM = 100_000
_PPM_PER_TICK = 1_000_000 // NOMINAL_TICK_US
_libc = ctypes.CDLL(None, use_errno=True)


def is_throwaway() -> bool:
    return WORD in CMDLINE.read_text().split()


def require_throwaway() -> None:
    """Raises AgentError on any machine that is not a throwaway one."""
    if not is_throwaway():
        raise AgentError(
            "the clock of this host is not moved",
            why=f"its kernel's command line has no word {WORD}",
            remedy="boot a virtual machine that can be thrown away with that word",
            exit_code=USAGE,
        )


def step(seconds: float) -> None:
    """Adds ``seconds`` to CLOCK_REALTIME, as one call. Raises AgentError if that is not allowed, and OSError."""
    whole, micros = divmod(round(seconds * 1e6), 1_000_000)
    _adjust(SETOFFSET, seconds=whole, micros=micros)


def slew(ppm: float) -> None:
    """Makes all clocks but CLOCK_MONOTONIC_RAW run that much faster, in steps of 100 ppm; 0 is the nominal rate. Raises
    AgentError, and OSError.
    """
    _adjust(TICK | FREQUENCY, tick=NOMINAL_TICK_US + round(ppm / _PPM_PER_TICK))


def _adjust(modes: int, seconds: int = 0, micros: int = 0, tick: int = 0) -> None:
    """Layout: struct timex, include/uapi/linux/timex.h (64 bit); its frequency is 0."""
    require_throwaway()
    timex = ctypes.create_string_buffer(struct.pack("@I4l i3l 3l", modes, *[0] * 8, seconds, micros, tick), 256)
    if _libc.clock_adjtime(time.CLOCK_REALTIME, timex) < 0:
        raise OSError(ctypes.get_errno(), f"clock_adjtime: {os.strerror(ctypes.get_errno())}")
