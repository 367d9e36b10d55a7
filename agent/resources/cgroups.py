"""What cgroups withhold from their processes, from counters that every user may read. Versions 1 and 2, also mixed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from agent.common import process_cgroup
from agent.common.process_stat import read

#: How many levels of a path are read, from the innermost: any of them may have a limit.
LEVELS = 6


@dataclass(frozen=True)
class Mounts:
    """Mount points: of version 1's controllers, and of version 2 (``two``). Empty if not mounted."""

    cpu: str = ""
    memory: str = ""
    two: str = ""
    blkio: str = ""
    pids: str = ""

    @classmethod
    def parse(cls, mounts: str) -> Mounts:
        """From the text of /proc/mounts."""
        found: dict[str, str] = {}
        for line in mounts.split("\n"):  # not splitlines(): other separators may be part of a name
            _, where, kind, options, *_ = [*line.split(" "), *[""] * 4]
            names = ("two",) if kind == "cgroup2" else set(options.split(",")) & {"cpu", "memory", "blkio", "pids"}
            for name in names if kind.startswith("cgroup") else ():
                found.setdefault(name, where)
        return cls(**found)

    def groups(self, text: str) -> tuple[tuple[str, ...], ...]:
        """(cpu's, memory's, blkio's, pids') directories of a process, the innermost first, from the text of its
        /proc/PID/cgroup. The root is left out, since it has no limit.
        """
        paths: dict[str, str] = {}
        for line in text.split("\n"):
            _, controllers, path = [*line.split(":", 2), *[""] * 3][:3]
            if not path:
                continue  # a truncated line
            paths.update(dict.fromkeys(controllers.split(","), path) if controllers else {"": path})
        out = []
        for name, tree in (("cpu", self.cpu), ("memory", self.memory), ("blkio", self.blkio), ("pids", self.pids)):
            tree, path = (tree, paths[name]) if tree and name in paths else (self.two, paths.get("", "/"))
            out.append(tuple(_levels(tree, path)) if tree else ())
        return tuple(out)


def _levels(tree: str, path: str) -> list[str]:
    parts = [part for part in path.split("/") if part]
    return [] if ".." in parts else ["/".join([tree, *parts[:n]]) for n in range(len(parts), 0, -1)][:LEVELS]


def numbers(text: str) -> dict[str, int]:
    """From lines of a name and a number."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def of_process(pid: int) -> str:
    """The text of its /proc/PID/cgroup (agent/common/process_cgroup.py); empty if it cannot be read."""
    try:
        return process_cgroup.read(pid).decode("utf-8", "replace")
    except OSError:
        return ""


@dataclass
class Group:
    """One directory, and the growth of its counters between the last two readings. periods: of its CPU quota;
    throttled: periods in which it was throttled; met: charges that failed at the limit or exceeded memory.high (v1:
    failed ones).
    """

    place: str
    modern: bool = False
    periods: int = 0
    throttled: int = 0
    throttled_ns: int = 0
    met: int = 0
    #: OOM kills in this interval and the last, since a killed process takes a while to end: of its own processes, and
    #: with those of all cgroups below.
    killed: int = 0
    killed_below: int = 0
    there: bool = True
    _killed: tuple[int, int] = (0, 0)
    _before: dict[str, int] = field(default_factory=dict)

    def _grown(self, name: str, now: int) -> int:
        before, self._before[name] = self._before.get(name, now), now
        return max(0, now - before)

    def read_cpu(self) -> None:
        now = numbers(read(f"{self.place}/cpu.stat"))
        self.periods = self._grown("all", now.get("nr_periods", 0))
        self.throttled = self._grown("periods", now.get("nr_throttled", 0))
        ns = now.get("throttled_usec", 0) * 1000 if "throttled_usec" in now else now.get("throttled_time", 0)
        self.throttled_ns = self._grown("ns", ns)

    def read_memory(self) -> None:
        # memory.events counts all cgroups below, too: their events would be attributed to their neighbours.
        below = numbers(read(f"{self.place}/memory.events"))
        now = numbers(read(f"{self.place}/memory.events.local")) or below
        self.modern = bool(now)
        if not now:
            now = {**numbers(read(f"{self.place}/memory.oom_control")), "max": one(f"{self.place}/memory.failcnt")}
        self.met = self._grown("met", max(0, now.get("max", 0) + now.get("high", 0)))
        self.there = os.path.isdir(self.place)
        before = self._killed
        self._killed = self._grown("killed", now.get("oom_kill", 0)), self._grown("below", below.get("oom_kill", 0))
        self.killed, self.killed_below = (sum(pair) for pair in zip(before, self._killed, strict=True))

    def memory(self) -> tuple[int, int]:
        """(bytes used, limit), -1 where there is none."""
        used, limit = (
            ("memory.current", "memory.max") if self.modern else ("memory.usage_in_bytes", "memory.limit_in_bytes")
        )
        return one(f"{self.place}/{used}"), one(f"{self.place}/{limit}")


def one(path: str) -> int:
    """The number in a file, -1 where there is none."""
    text = read(path).strip()
    return int(text) if text.isdigit() else -1


def pressure_ns(text: str) -> int:
    """Total time that some task waited, from the text of a pressure file (PSI); -1 where the kernel keeps no count."""
    found = next((line.rpartition("total=")[2] for line in text.splitlines() if line.startswith("some ")), "")
    return int(found) * 1000 if found.isdigit() else -1


def mounts() -> Mounts:
    return Mounts.parse(Path("/proc/mounts").read_text(encoding="utf-8", errors="surrogateescape"))
