"""Whether a process that occurs in rows still exists."""

from __future__ import annotations

import os

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_ROUNDED_NS = 2 * _TICK_NS


def gone(pid: int, start_ns: int | None) -> bool:
    """Whether the process with this pid and start time has ended, or its pid belongs to another process now. start_ns:
    CLOCK_BOOTTIME, exact or rounded as in /proc; None: unknown.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            status = file.read(1024)
        words = status[status.rindex(b")") + 2 :].split()
        if words[0] in (b"Z", b"X"):
            return True
        return start_ns is not None and abs(int(words[19]) * _TICK_NS - start_ns) > _ROUNDED_NS
    except (OSError, ValueError, IndexError):
        pass  # ended, or hidden by hidepid
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return False
