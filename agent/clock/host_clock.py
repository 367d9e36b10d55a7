"""The clock of a VM's host, which some hypervisors offer as a PTP device. It runs on while the VM is saved in an image.
Standard library only.

After a VM was stopped together with its clocks and resumed, the host's clock is ahead by the missed time. After a
migration the new host's clock may differ. (A step of the host's clock looks the same to the guest.)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from agent.common.clocks import apart

CLASS = Path("/sys/class/ptp")
#: clock_name of devices that are a host's clock: KVM's (drivers/ptp/ptp_kvm_common.c), Hyper-V's
#: (drivers/hv/hv_util.c).
NAMES = ("KVM virtual PTP", "hyperv")
#: A slew on the host is not a move: chrony slews by a twelfth at most.
_LEAST_NS = 100_000_000
_SLEW = 10


class Moved(NamedTuple):
    """How far the host's clock moved against our CLOCK_BOOTTIME."""

    size_ns: int
    err_ns: int


def open_host_clock(devices: Path = CLASS, dev: Path = Path("/dev")) -> int | None:
    """A descriptor of the host's clock, or None if there is none. Opening it needs privilege."""
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
    """Compares the host's clock with our own at each call of ``moved``. clock: its id."""

    def __init__(self, clock: int, read: Callable[[int], int] = time.clock_gettime_ns) -> None:
        self._clock, self._read = clock, read
        self._before = self._ahead()

    def moved(self) -> Moved | None:
        """The move since the last call that could read the clock; None if there was none."""
        before, self._before = self._before, self._ahead() or self._before
        if before is None or self._before is None or self._before is before:
            return None
        size, err = self._before[1] - before[1], self._before[2] + before[2]
        went_by = self._before[0] - before[0]
        return Moved(size, err) if abs(size) > _LEAST_NS + went_by // _SLEW + err else None

    def _ahead(self) -> tuple[int, int, int] | None:
        """(CLOCK_BOOTTIME, host's clock - CLOCK_BOOTTIME, error bound); None if it cannot be read."""
        try:
            (there,) = apart(time.CLOCK_BOOTTIME, (self._clock,), read=self._read)
        except OSError:
            return None
        return there.after_ns, there.offset_ns, there.err_ns
