"""Limits of cgroups on block I/O and on processes, and how near to them their processes are. By files that everybody may read, both versions.

The kernel does not count how long a limit made anybody wait. But who is made to wait does just as much as he may.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.resources.cgroups import numbers, one, read

#: From which share of what it may do in an interval on a cgroup is at its limit.
AT_LIMIT = 0.7

_V1 = {
    "read_bps": ("io", "Read"), "write_bps": ("io", "Write"), "read_iops": ("iops", "Read"), "write_iops": ("iops", "Write"),
}  # fmt: skip
_V2 = {"rbps": ("io", "Read"), "wbps": ("io", "Write"), "riops": ("iops", "Read"), "wiops": ("iops", "Write")}
_COUNTED = {"rbytes": ("io", "Read"), "wbytes": ("io", "Write"), "rios": ("iops", "Read"), "wios": ("iops", "Write")}
#: Of a device (major:minor): "io" bytes or "iops" requests, "Read" or "Write".
Of = tuple[str, str, str]


class Used(NamedTuple):
    """kind: of the table ``resource``. used, limit: bytes or requests a second, or processes; events: processes that could not be started."""

    kind: str
    used: int
    limit: int
    events: int = -1


@dataclass
class CgroupLimits:
    """One directory of the tree of a controller: "blkio" or "pids"; of version 2 it is both."""

    place: str
    _limits: dict[Of, int] = field(default_factory=dict)
    _done: dict[Of, int] = field(default_factory=dict)
    _read_ns: int = 0
    _failed: int = -1

    def io(self, now_ns: int) -> Iterator[Used]:
        """What it does as much of as it may, since the last time it was asked."""
        self._limits = self._read_limits()
        if not self._limits:
            self._done, self._read_ns = {}, 0
            return
        before, since_ns = self._done, now_ns - self._read_ns
        self._done, self._read_ns = self._read_done(), now_ns
        for of, limit in self._limits.items() if before and since_ns > 0 else ():
            each_s = (self._done.get(of, 0) - before.get(of, 0)) * 1_000_000_000 // since_ns
            if each_s >= AT_LIMIT * limit > 0:
                yield Used(of[1], each_s, limit)

    def _read_limits(self) -> dict[Of, int]:
        found: dict[Of, int] = {}
        for line in read(f"{self.place}/io.max").splitlines():
            device, *words = line.split()
            for name, _, value in (word.partition("=") for word in words):
                if name in _V2 and value.isdigit():
                    found[(device, *_V2[name])] = int(value)
        for name, of in _V1.items():
            for line in read(f"{self.place}/blkio.throttle.{name}_device").splitlines():
                device, _, value = line.partition(" ")
                if value.isdigit():
                    found[(device, *of)] = int(value)
        return found

    def _read_done(self) -> dict[Of, int]:
        done: dict[Of, int] = {}
        for line in read(f"{self.place}/io.stat").splitlines():
            device, *words = line.split()
            for name, _, value in (word.partition("=") for word in words):
                if name in _COUNTED and value.isdigit():
                    done[(device, *_COUNTED[name])] = int(value)
        for kind, name in (("io", "io_service_bytes"), ("iops", "io_serviced")):
            for line in read(f"{self.place}/blkio.throttle.{name}").splitlines():
                words = line.split()
                if len(words) == 3 and words[2].isdigit():
                    done[words[0], kind, words[1]] = int(words[2])
        return done

    def pids(self) -> Iterator[Used]:
        """Processes that could not be started since the last time, by its limit."""
        now = numbers(read(f"{self.place}/pids.events")).get("max", -1)
        before, self._failed = self._failed, now
        if 0 <= before < now:
            yield Used("pids", one(f"{self.place}/pids.current"), one(f"{self.place}/pids.max"), now - before)
