"""The clock of a VM's host, which some hypervisors lend as a PTP device: it goes on while the VM lies in an image.
Standard library only.

A VM that was stopped together with its clocks and set going again finds the host's clock ahead of its own by what it
missed; one that was moved may find another host's. (The host's clock being stepped looks the same from inside.)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from agent.common.clocks import apart

CLASS = Path("/sys/class/ptp")
#: clock_name of the devices that are a host's clock: KVM's (drivers/ptp/ptp_kvm_common.c), Hyper-V's
#: (drivers/hv/hv_util.c).
NAMES = ("KVM virtual PTP", "hyperv")
#: What a host's discipline does meanwhile is no move: chrony slews by a twelfth at most.
_LEAST_NS = 100_000_000
_SLEW = 10


class Moved(NamedTuple):
    """How far the host's clock moved against our CLOCK_BOOTTIME, beyond the time that went by."""

    size_ns: int
    err_ns: int


def open_host_clock(devices: Path = CLASS, dev: Path = Path("/dev")) -> int | None:
    """A descriptor of the host's clock, or None where there is none. It takes privilege to open."""
    for device in sorted(devices.glob("ptp*")):
        try:
            if (device / "clock_name").read_text().strip() in NAMES:
                return os.open(dev / device.name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
    return None


def clock_of(fd: int) -> int:
    """The clock id of an open clock device: FD_TO_CLOCKID of clock_getres(2)."""
    return ~fd << 3 | 3


class HostClock:
    """The host's clock, compared with our own each time that ``moved`` is called. clock: its id."""

    def __init__(self, clock: int, read: Callable[[int], int] = time.clock_gettime_ns) -> None:
        self._clock, self._read = clock, read
        self._before = self._ahead()

    def moved(self) -> Moved | None:
        """Since the last call that could read it; None where it went as clocks do."""
        before, self._before = self._before, self._ahead() or self._before
        if before is None or self._before is None or self._before is before:
            return None
        size, err = self._before[1] - before[1], self._before[2] + before[2]
        went_by = self._before[0] - before[0]
        return Moved(size, err) if abs(size) > _LEAST_NS + went_by // _SLEW + err else None

    def _ahead(self) -> tuple[int, int, int] | None:
        """(CLOCK_BOOTTIME, the host's clock against it, error bound); None where it cannot be read."""
        try:
            (there,) = apart(time.CLOCK_BOOTTIME, (self._clock,), read=self._read)
        except OSError:
            return None
        return there.after_ns, there.offset_ns, there.err_ns
