"""Limits of cgroups on block I/O and on processes, and how near to them the cgroups are. Read from files that every
user may read, both versions.

The kernel does not count how long a limit made a process wait. But a cgroup that is made to wait uses about as much as
its limit allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.common.process_stat import read
from agent.resources.cgroups import numbers, one
from agent.resources.disks import names

#: A cgroup is at its limit from this share of the limit on.
AT_LIMIT = 0.7
_MOST = 1 << 16

_V1 = {
    "read_bps": ("io", "Read"),
    "write_bps": ("io", "Write"),
    "read_iops": ("iops", "Read"),
    "write_iops": ("iops", "Write"),
}
_V2 = {"rbps": ("io", "Read"), "wbps": ("io", "Write"), "riops": ("iops", "Read"), "wiops": ("iops", "Write")}
_COUNTED = {"rbytes": ("io", "Read"), "wbytes": ("io", "Write"), "rios": ("iops", "Read"), "wios": ("iops", "Write")}
#: Of a device (major:minor): "io" bytes or "iops" requests, "Read" or "Write".
Of = tuple[str, str, str]


class Used(NamedTuple):
    """kind: of the table ``resource``. used, limit: bytes or requests a second, or processes; events: processes that
    could not be started; device: the names of the disk and of the devices on it; direction: read or write.
    """

    kind: str
    used: int
    limit: int
    events: int = -1
    device: str = ""
    direction: str = ""


@dataclass
class CgroupLimits:
    """One directory in the tree of a controller, "blkio" or "pids"; in version 2 it is both."""

    place: str
    _limits: dict[Of, int] = field(default_factory=dict)
    _done: dict[Of, int] = field(default_factory=dict)
    _read_ns: int = 0
    _failed: int = -1

    def io(self, now_ns: int) -> Iterator[Used]:
        """The I/O limits that it has met since the last call."""
        self._limits = self._read_limits()
        if not self._limits:
            self._done, self._read_ns = {}, 0
            return
        before, since_ns = self._done, now_ns - self._read_ns
        self._done, self._read_ns = self._read_done(), now_ns
        for of, limit in self._limits.items() if before and since_ns > 0 else ():
            each_s = (self._done.get(of, 0) - before.get(of, 0)) * 1_000_000_000 / since_ns
            if each_s >= AT_LIMIT * limit > 0:
                yield Used(of[1], round(each_s), limit, device=names(of[0]), direction=of[2].lower())

    def _read_limits(self) -> dict[Of, int]:
        found = {(device, *_V2[name]): n for device, name, n in _named(f"{self.place}/io.max") if name in _V2}
        for name, of in _V1.items():
            for words in _lines(f"{self.place}/blkio.throttle.{name}_device"):
                if len(words) == 2 and words[1].isdigit():
                    found[(words[0], *of)] = int(words[1])
        return found

    def _read_done(self) -> dict[Of, int]:
        done = {(device, *_COUNTED[name]): n for device, name, n in _named(f"{self.place}/io.stat") if name in _COUNTED}
        for kind, name in (("io", "io_service_bytes"), ("iops", "io_serviced")):
            for words in _lines(f"{self.place}/blkio.throttle.{name}"):
                if len(words) == 3 and words[2].isdigit():
                    done[words[0], kind, words[1]] = int(words[2])
        return done

    def pids(self) -> Iterator[Used]:
        """Processes that could not be started since the last call because of its limit. Before Linux 6.11 those that
        met a limit above it count, too.
        """
        # In newer kernels pids.events counts all cgroups below, too: their events would be attributed to their
        # neighbours.
        now = numbers(read(f"{self.place}/pids.events.local") or read(f"{self.place}/pids.events")).get("max", -1)
        before, self._failed = self._failed, now
        if 0 <= before < now:
            yield Used("pids", one(f"{self.place}/pids.current"), one(f"{self.place}/pids.max"), now - before)


def _lines(path: str) -> list[list[str]]:
    """The words of each line that was read completely."""
    text = read(path, _MOST)
    return [line.split() for line in (text if len(text) < _MOST else text.rpartition("\n")[0]).splitlines()]


def _named(path: str) -> Iterator[tuple[str, str, int]]:
    """(device, name, number) of lines that name a device and its values. Some kernels do not end the line of a device
    without values.
    """
    for words in _lines(path):
        device = ""
        for word in words:
            name, there, value = word.partition("=")
            if not there:
                device = word
            elif value.isdigit():
                yield device, name, int(value)
