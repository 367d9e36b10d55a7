"""What one process uses, from files of /proc that every user may read."""

from __future__ import annotations

import os
from typing import NamedTuple

_TICK_NS = 10_000_000  # of /proc/PID/stat


def read(path: str, most: int = 4096) -> str:
    """The first ``most`` bytes of a kernel file; empty if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, most).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


class Stat(NamedTuple):
    state: str
    faults: int  # major page faults since it started
    user_ns: int  # CPU time of its threads, ended ones included, since it started
    system_ns: int
    start_tick: int
    parent: int
    comm: str

    @classmethod
    def parse(cls, text: str) -> Stat | None:
        """From the text of /proc/PID/stat; None if the text is empty because the process has ended."""
        head, _, tail = text.rpartition(")")
        fields = tail.split()
        if len(fields) <= 19:
            return None
        user_ns, system_ns = int(fields[11]) * _TICK_NS, int(fields[12]) * _TICK_NS
        comm = head.partition("(")[2]
        return cls(fields[0], int(fields[9]), user_ns, system_ns, int(fields[19]), int(fields[1]), comm)


def stat(pid: int) -> Stat | None:
    return Stat.parse(read(f"/proc/{pid}/stat"))


def is_it(now: Stat | None, start_ns: int) -> bool:
    """Whether this is the process that started then and still runs, not a later one with the same pid."""
    return now is not None and now.state not in "ZX" and now.start_tick == start_ns // _TICK_NS


def children(pid: int) -> list[int]:
    """The children of its first thread, the oldest first. Empty without CONFIG_PROC_CHILDREN."""
    return [int(one) for one in read(f"/proc/{pid}/task/{pid}/children").split()]


def uid(pid: int) -> int | None:
    """Its real user. /proc/PID belongs to root if the process is not dumpable."""
    for line in read(f"/proc/{pid}/status").split("\n"):
        if line.startswith("Uid:"):
            return int(line.split()[1])
    return None


def descriptors(pid: int) -> int | None:
    """The number of its open files. None before Linux 6.2, where counting them means listing the directory."""
    try:
        return os.stat(f"/proc/{pid}/fd").st_size or None
    except OSError:
        return None


def most_descriptors(limits: str) -> int | None:
    """The soft limit, from the text of /proc/PID/limits."""
    for line in limits.splitlines():
        if line.startswith("Max open files"):
            words = line.split()
            return int(words[3]) if words[3].isdigit() else None
    return None
