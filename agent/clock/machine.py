"""What the machine did to its clocks: it was paused, restored from an image, or changed its clocksource. Standard
library only.

After a pause (the hypervisor gave the machine no CPU time, a stopped emulator) the clocks are right: time passed and
nothing ran. These rules tell a pause from a busy machine and from a stopped agent:

* Two processes, the clock watch and the agent, both could not run when they wanted to.
* The CPUs were not busy meanwhile (/proc/stat; stolen time is not busy time).
* The machine made no more context switches than an idle one. Otherwise only the two processes were stopped.

Not detected: a machine that is stopped together with its clocks (a virtual machine monitor's ``stop``, a snapshot) and
has neither VMClock nor its host's clock. Its wall clock is late from then on.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from agent.clock.host_clock import HostClock, clock_of

CLOCKSOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
STAT = "/proc/stat"
VMCLOCK = "/dev/vmclock0"
#: include/uapi/linux/vmclock-abi.h, little endian: magic, sequence count at 12, disruption marker at 16, flags at 24;
#: generation at 104.
_VMCLOCK = struct.Struct("<I8xIQQ72xQ")
_VMCLOCK_MAGIC = 0x4B4C4356
_HAS_GENERATION = 1 << 8
_TRIES = 5
#: A shorter pause cannot be told from a slow machine.
PAUSE_NS = 350_000_000
#: The agent never sleeps longer (agent/service/loop.py), so a pause began at most this long after its last run.
_SLEEP_NS = 100_000_000


def clocksource() -> str:
    """The kernel's current clocksource; empty if unknown."""
    try:
        with open(CLOCKSOURCE) as file:
            return file.read().strip()
    except OSError:
        return ""


class Work(NamedTuple):
    """Work since boot: busy time of all CPUs together, context switches."""

    t_ns: int
    busy_ns: int
    stolen_ns: int
    switches: int


class Gap(NamedTuple):
    """A pause that ended at t_ns, CLOCK_BOOTTIME."""

    t_ns: int
    size_ns: int
    err_ns: int
    stolen_ns: int


def open_kept(path: str) -> int | None:
    """A descriptor that ``Watcher`` reads repeatedly; None if the machine has no such file."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def work(t_ns: int, stat: bytes) -> Work:
    """From the text of /proc/stat (proc_stat(5)), read at t_ns."""
    first = [int(x) for x in stat[: stat.index(b"\n")].split()[1:]]
    user, nice, system, _, _, irq, softirq, stolen = (first + [0] * 8)[:8]
    tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    at = stat.index(b"\nctxt ") + 6
    return Work(
        t_ns, (user + nice + system + irq + softirq) * tick, stolen * tick, int(stat[at : stat.index(b"\n", at)])
    )


def paused(agent: tuple[int, int], late: tuple[int, int], earlier: Work, before: Work, after: Work) -> Gap | None:
    """The pause of the machine, or None.

    agent: when the agent last ran, and ran again. late: when the watch wanted to run, and could. All CLOCK_BOOTTIME ns.
    earlier, before: two measurements before the pause; after: one after it.
    """
    length, window = agent[1] - agent[0] - _SLEEP_NS // 2, after.t_ns - before.t_ns
    if agent[1] - agent[0] < PAUSE_NS or min(agent[1], late[1]) - max(agent[0], late[0]) < PAUSE_NS // 2:
        return None
    if after.busy_ns - before.busy_ns > (window - length) * (os.cpu_count() or 1) + length // 2:
        return None
    pace = (before.switches - earlier.switches) / max(before.t_ns - earlier.t_ns, 1)
    if after.switches - before.switches > pace * (window - length / 2):
        return None
    return Gap(agent[1], length, _SLEEP_NS // 2, after.stolen_ns - before.stolen_ns)


def vm_life(page: bytes) -> tuple[int, int] | None:
    """(disruption marker, generation) of a VMClock page; both change when the machine is restored or moved. None while
    the page is being written.
    """
    if len(page) < _VMCLOCK.size:
        page = page.ljust(_VMCLOCK.size, b"\0")
    magic, sequence, marker, flags, generation = _VMCLOCK.unpack_from(page)
    if magic != _VMCLOCK_MAGIC or sequence & 1:
        return None
    return marker, generation if flags & _HAS_GENERATION else 0


class Restored(NamedTuple):
    """The evidence that the machine was restored or moved. size_ns: how far the host's clock moved against ours, 0 if
    unknown.
    """

    how: str
    size_ns: int = 0
    err_ns: int = 0


class Watcher:
    """Checks the machine about once a second. vmclock, host: descriptors of /dev/vmclock0 and of the host's clock, or
    None. Opening them needs privilege.
    """

    def __init__(self, t_ns: int, vmclock: int | None, host: int | None = None) -> None:
        self._stat, self._source, self._vmclock = open_kept(STAT), open_kept(CLOCKSOURCE), vmclock
        self._host_fd, self._host = host, None if host is None else HostClock(clock_of(host))
        self.clocksource, self.life = self._current(), self._life()
        self._work_before = self._work = self._worked(t_ns)

    def check(self, t_ns: int) -> None:
        """Stores the CPUs' work until now, for later comparison."""
        self._work_before, self._work = self._work, self._worked(t_ns)

    def paused(self, now_ns: int, agent: tuple[int, int], late: tuple[int, int]) -> Gap | None:
        """The function ``paused``, with the work until now."""
        after = self._worked(now_ns)
        if self._work is None or self._work_before is None or after is None:
            return None
        return paused(agent, late, self._work_before, self._work, after)

    def switched(self) -> tuple[str, str] | None:
        """The clocksources before and after, if it changed since the last call."""
        before, self.clocksource = self.clocksource, self._current()
        return None if before == self.clocksource else (before, self.clocksource)

    def restored(self) -> Restored | None:
        """VMClock's markers before and after, and the host clock's move, if one of them changed since the last call."""
        before, now = self.life, self._life()
        self.life = now or before
        moved = self._host.moved() if self._host else None
        how = (
            f"marker {before[0]} > {now[0]} generation {before[1]} > {now[1]}"
            if before and now and before != now
            else ""
        )
        if not how and moved is None:
            return None
        return Restored(" ".join([how] * bool(how) + ["host clock"] * bool(moved)), *(moved or ()))

    def _worked(self, t_ns: int) -> Work | None:
        return None if self._stat is None else work(t_ns, os.pread(self._stat, 1 << 20, 0))

    def _current(self) -> str:
        return "" if self._source is None else os.pread(self._source, 64, 0).decode().strip()

    def _life(self) -> tuple[int, int] | None:
        if self._vmclock is None:
            return None
        for _ in range(_TRIES):
            found = vm_life(os.pread(self._vmclock, _VMCLOCK.size, 0))
            if found is not None:
                return found
        return None

    def close(self) -> None:
        for fd in (self._stat, self._source, self._vmclock, self._host_fd):
            if fd is not None:
                os.close(fd)
