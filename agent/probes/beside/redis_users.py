"""Processes that talk to a Redis, or are one: what is kept of each, and who may have how many of the places for
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from agent.common.clocks import boot_ns
from agent.targets.asked import FileId
from agent.targets.looks import owner_of
from agent.targets.shares import Owner

#: At a time: in all, of all users but root, of each of them, and of these such as are called like a server.
MOST, OTHERS, A_USER, SERVERS_A_USER = 64, 48, 16, 4
_REMEMBERED = 4096
#: In the place of a uid: all users but root together.
ALL = 0xFFFFFFFF


@dataclass
class RedisUser:
    """birth: as in /proc/PID/stat; since_ns: what it ran then is what is known of it. probed: files whose probes it has
    or is given; links: by file.
    """

    owner: Owner
    server: bool
    birth: bytes
    since_ns: int
    tries: int = 0
    next_ns: int = 0
    why: str = ""
    links: dict[FileId, list[int]] = field(default_factory=dict)
    probed: set[FileId] = field(default_factory=set)

    @property
    def pid(self) -> int:
        return self.owner.pid


@dataclass
class LeftOut:
    """Processes for which there was no place: each counts once, however often it is seen."""

    n: int = 0
    _known: dict[int, bytes] = field(default_factory=dict)

    def note(self, one: RedisUser) -> None:
        self.n += self._known.pop(one.pid, b"") != one.birth
        self._known[one.pid] = one.birth
        if len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]


def seen(pid: int, server: bool) -> RedisUser | None:
    """None where it is gone, or nothing but its number is left of it."""
    since_ns, born = boot_ns(), birth(pid)
    try:
        owner = owner_of(pid)
    except (OSError, ValueError, IndexError):
        return None
    return RedisUser(owner, server, born, since_ns) if born and birth(pid) == born else None


def room(users: Collection[RedisUser], one: RedisUser) -> bool:
    """Whether there is a place for one more."""
    uid = one.owner.uid
    if len(users) >= MOST or not uid:
        return len(users) < MOST
    mine = [other for other in users if other.owner.uid == uid]
    servers = one.server and sum(other.server for other in mine) >= SERVERS_A_USER
    return len(mine) < A_USER and sum(other.owner.uid != 0 for other in users) < OTHERS and not servers


def owned(pids: np.ndarray, users: Mapping[int, RedisUser]) -> Counter[int]:
    """How many connections each user has, and all but root together. pids: one for each connection."""
    counts: Counter[int] = Counter()
    for pid, n in zip(*(part.tolist() for part in np.unique(pids, return_counts=True)), strict=True):
        uid = users[pid].owner.uid if pid in users else 0
        for of in (uid, ALL) if uid else ():
            counts[of] += n
    return counts


def birth(pid: int) -> bytes:
    """Empty for a process that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read(1024).rpartition(b")")[2].split()
        return b"" if fields[0] in (b"Z", b"X") else fields[19]
    except (OSError, IndexError):
        return b""
