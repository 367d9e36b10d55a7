"""Which processes' long waits the syscalls family's programs tell, whatever they wait for: those that report decisions
(agent/correlate/reported.py).
"""

from __future__ import annotations

import errno
import struct

from agent.kernel import bpf
from agent.kernel.load import Family


class WatchedProcesses:
    """The kernel's ``syscalls_watched``, of 1,024 entries; where there is none, nothing is done."""

    def __init__(self, family: Family) -> None:
        self._fd = family.maps.get("syscalls_watched", -1)

    def add(self, pid: int, now_ns: int) -> bool:
        """False where there is no room. Raises OSError where the kernel refuses the map."""
        try:
            if self._fd >= 0:
                bpf.update(self._fd, struct.pack("<I", pid), struct.pack("<Q", now_ns))
        except OSError as error:
            if error.errno in (errno.E2BIG, errno.ENOSPC):
                return False
            raise
        return True

    def drop(self, pid: int) -> None:
        """Raises OSError where the kernel refuses the map."""
        if self._fd >= 0:
            bpf.delete(self._fd, struct.pack("<I", pid))
