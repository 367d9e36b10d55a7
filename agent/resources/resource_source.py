"""Polls what watched processes use. A row is made where something is near its limit or is withheld, and for each object
from time to time, as a baseline.

Watched are processes that report decisions, serve others, or talk to a broker that is polled, at most ``MOST``. All
files can be read by every user and take 10 us each.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agent.batch import Batch, make
from agent.common import process_stat
from agent.common.fairness import Places, UpperBound
from agent.common.table import Table
from agent.contracts import Pending
from agent.resources import cgroups
from agent.resources.limits import CgroupLimits, Used
from agent.tables import TABLES

TABLE, USE = TABLES["resource"], TABLES["cpu_use"]
POLL_NS, AGAIN_NS, FORGET_NS, WORKS_NS = 500_000_000, 10_000_000_000, 600_000_000_000, 120_000_000_000
MOST, CHILDREN = 64, 8
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "rows",
        "processes with limiter decisions, with clients, or at a polled broker, that are polled for quotas, memory,"
        " descriptors and disks",
        f"{MOST}, {MOST // 2} per user",
        "the others are not polled",
        "-",
    ),
)
#: From this share of a limit on, each change makes a row.
NEAR = 0.8
#: Number of processes with a cached uid.
_USERS = 4096
#: Major page faults within one poll that make a row.
FAULTS = 16
#: CPU time within one poll that makes a row.
RAN_NS = 20_000_000
_SERVER, _ACCEPT = TABLES["tcp_rtt"].code("role", "server"), TABLES["socket_queue"].code("kind", "accept")
_POLLER = b"tickscope-poll"


@dataclass
class Watched:
    """One process. cgroup: the last text of its cgroup file. reported: by kind, (time of the last row, its numbers).
    ran: (user, kernel) CPU time since it started, ns. works_ns: when its children were last known to work for it, as
    those of a broker's client, or of a process for which connections wait; child: of such one.
    """

    pid: int
    start_ns: int
    comm: bytes
    seen_ns: int
    uid: int = -1
    cgroup: str = ""
    cpu: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()
    io: tuple[str, ...] = ()
    pids: tuple[str, ...] = ()
    faults: int = -1
    ran: tuple[int, int] | None = None
    works_ns: int = -WORKS_NS
    child: bool = False
    reported: dict[str, tuple[int, tuple[int, int]]] = field(default_factory=dict)


class Resources(Pending):
    """A source, and a filter that learns of processes from rows."""

    name = "resources"

    def __init__(self) -> None:
        self.watched: dict[tuple[int, int], Watched] = {}
        self._places = Places(MOST, a_user=MOST // 2)
        self._users: dict[tuple[int, int], int] = {}
        self._mounts = cgroups.mounts()
        self._groups: dict[str, cgroups.Group] = {}
        self._limits: dict[tuple[str, str], CgroupLimits] = {}
        self._met: dict[str, list[Used]] = {}  # by directory, in this poll
        self._next_ns = 0
        self._brokers: set[bytes] = set()  # that are polled: their clients are consumers
        self._whole = False  # every other poll; the others read only descriptors, of processes near their limit
        self._near: set[tuple[int, int]] = set()
        self._polled_ns = 0
        self._own = os.getpid()
        self._steal = self._pressed = -1

    def pending(self, now_ns: int) -> bool:
        """Descriptors near their limit are polled twice a second, the rest once."""
        return bool(self._near) and now_ns >= self._next_ns

    def close(self) -> None: ...

    def __call__(self, batch: Batch, now_ns: int) -> Iterable[Batch]:
        self.watch(batch, now_ns)
        return (batch,)

    def watch(self, batch: Batch, now_ns: int) -> None:
        """Watches the processes of these rows."""
        rows = batch.rows
        if batch.table == "queue_lag" and len(self._brokers) < MOST:
            self._brokers.update(raw for raw in rows["peer"].tolist() if any(raw))
        if batch.table not in ("tcp_rtt", "socket_queue", "limiter_decision"):
            return
        which = (rows["pid"] > 0) & (rows["pid"] != self._own) & (rows["proc_start_ns"] > 0)
        works = np.zeros(len(rows), np.bool_)
        if batch.table == "tcp_rtt":
            if self._brokers:
                works[:] = [peer in self._brokers for peer in rows["peer"].tolist()]
            which &= (rows["role"] == _SERVER) | (works & (rows["comm"] != _POLLER))
        elif batch.table == "socket_queue":
            which &= rows["kind"] == _ACCEPT
            works = rows["queue"] > 0
        works = np.isin(rows["pid"], rows["pid"][which & works])
        which = np.flatnonzero(which)
        who = zip(which.tolist(), rows["pid"][which].tolist(), rows["proc_start_ns"][which].tolist(), strict=True)
        for at, pid, start_ns in {pid: (at, pid, start_ns) for at, pid, start_ns in who}.values():
            one = self._seen(pid, start_ns, bytes(rows["comm"][at]), now_ns)
            if one is not None and works[at]:
                one.works_ns = now_ns

    def _seen(self, pid: int, start_ns: int, comm: bytes, now_ns: int) -> Watched | None:
        """The process, which is watched from now on, if there is a place for it."""
        key = pid, start_ns // 10_000_000
        known = self.watched.get(key)
        if known is not None:
            known.seen_ns = now_ns
        elif self._enter(key, now_ns):
            known = self.watched[key] = Watched(pid, start_ns, comm, now_ns, self._user(key))
        return known

    def _see_children(self, now_ns: int) -> None:
        """Consumers, and servers for which connections wait, may have children that do the work (Celery, nginx)."""
        for one in [one for one in self.watched.values() if one.works_ns > now_ns - WORKS_NS]:
            for pid in process_stat.children(one.pid)[:CHILDREN]:
                stat = process_stat.stat(pid)
                if stat is not None and stat.state not in "ZX":
                    child = self._seen(pid, stat.start_tick * 10_000_000, os.fsencode(stat.comm), now_ns)
                    if child is not None:
                        child.child = True

    def _user(self, key: tuple[int, int]) -> int:
        if key not in self._users:
            if len(self._users) >= _USERS:
                self._users.clear()
            uid = process_stat.uid(key[0])
            self._users[key] = -1 if uid is None else uid
        return self._users[key]

    def _enter(self, key: tuple[int, int], now_ns: int) -> bool:
        """Whether this process may be watched. It may replace one that had no rows for a while."""
        uid = self._user(key)
        if self._places.refusal(uid) and self.watched:
            oldest = min(self.watched, key=lambda key: self.watched[key].seen_ns)
            if self.watched[oldest].seen_ns <= now_ns - 2 * AGAIN_NS:
                self._leave(oldest)
        if self._places.refusal(uid):
            return False
        self._places.take(uid)
        return True

    def _leave(self, key: tuple[int, int]) -> None:
        self._places.give_back(self.watched.pop(key).uid)

    def drain(self, now_ns: int) -> Iterable[Batch]:
        if now_ns < self._next_ns:
            return
        self._next_ns, self._whole = now_ns + POLL_NS, not self._whole or not self._near
        if not self._whole:
            near = [self.watched[key] for key in self._near & self.watched.keys()]
            rows = [row for one in near for row in self._files(one, now_ns)]
            if rows:
                yield batch_of(rows, now_ns, POLL_NS)
            return
        since_ns, self._polled_ns = self._polled_ns or now_ns, now_ns
        rows, used = [*self._stolen(), *self._pressure()], list[dict[str, Any]]()
        self._read_groups()
        self._read_limits(now_ns)
        self._near &= self.watched.keys()
        self._see_children(now_ns)
        for key, one in list(self.watched.items()):
            # before the stat file: version 1 gives no cgroup of an ended process
            cgroup = cgroups.of_process(one.pid)
            now = process_stat.stat(one.pid)
            gone = not process_stat.is_it(now, one.start_ns)
            rows += self._withheld(one, now, gone)
            if now is not None and not gone:
                used += ran(one, now, now_ns)
            if gone or one.seen_ns < now_ns - FORGET_NS:
                self._leave(key)
            else:
                self._moves(one, cgroup)
                rows += self._files(one, now_ns)
        if rows:
            yield batch_of(rows, now_ns, now_ns - since_ns)
        if used and now_ns > since_ns:
            yield batch_of(used, now_ns, now_ns - since_ns, USE)

    def _read_groups(self) -> None:
        wanted: dict[str, str] = {}
        for one in self.watched.values():
            if one.faults < 0:
                self._moves(one, cgroups.of_process(one.pid))
            wanted.update(dict.fromkeys(one.cpu, "cpu"))
            for place in one.memory:
                wanted[place] = "both" if place in wanted and wanted[place] != "memory" else "memory"
        self._groups = {place: self._groups.get(place) or cgroups.Group(place) for place in wanted}
        for place, what in wanted.items():
            if what != "memory":
                self._groups[place].read_cpu()
            if what != "cpu":
                self._groups[place].read_memory()

    def _moves(self, one: Watched, cgroup: str) -> None:
        if cgroup != one.cgroup:
            one.cgroup = cgroup
            one.cpu, one.memory, one.io, one.pids = self._mounts.groups(cgroup)

    def _read_limits(self, now_ns: int) -> None:
        wanted = {
            (what, place)
            for one in self.watched.values()
            for what, places in (("io", one.io), ("pids", one.pids))
            for place in places
        }
        self._limits = {key: self._limits.get(key) or CgroupLimits(key[1]) for key in sorted(wanted)}
        self._met = {}
        for (what, place), limits in self._limits.items():
            if met := list(limits.io(now_ns) if what == "io" else limits.pids()):
                self._met.setdefault(place, []).extend(met)

    def _withheld(self, one: Watched, now: process_stat.Stat | None, gone: bool) -> Iterable[dict[str, Any]]:
        """CPU, memory, block I/O and processes, limited by its cgroups; and its end, if the kernel killed it for lack
        of memory.
        """
        mine = who(one)
        for place in one.cpu:
            group = self._groups[place]
            if group.throttled_ns or group.throttled:
                yield {
                    **mine,
                    "kind": "cpu",
                    "object": place,
                    "events": group.throttled,
                    "limit": group.periods,
                    "waited_ns": group.throttled_ns,
                }
        faults = now.faults - one.faults if now is not None and not gone and one.faults >= 0 else 0
        one.faults = now.faults if now is not None and not gone else one.faults
        met = next((self._groups[place] for place in one.memory if self._groups[place].met), None)
        if met is not None or faults >= FAULTS:
            used, limit = met.memory() if met is not None else (-1, -1)
            yield {
                **mine,
                "kind": "memory",
                "object": met.place if met else "",
                "events": met.met if met else 0,
                "faults": faults,
                "used": used,
                "limit": limit,
            }
        for place in dict.fromkeys((*one.io, *one.pids)):
            for at in self._met.get(place, ()):
                yield {**mine, "object": place, **at._asdict()}
        if gone and (killed := self._killed(one)) is not None:
            yield {**mine, "kind": "oom", "object": killed[0], "events": killed[1]}

    def _killed(self, one: Watched) -> tuple[str, int] | None:
        """(cgroup, number of processes) that the kernel killed where the process was. If its cgroup was removed with
        it, only the counter of a cgroup above has them, together with those of all its other descendants.
        """
        groups = [self._groups[place] for place in one.memory]
        own = next((group for group in groups if group.killed), None)
        if own is not None or not groups or groups[0].there:
            return (own.place, own.killed) if own is not None else None
        left = next((group for group in groups if group.there), None)
        return (left.place, left.killed_below) if left is not None and left.killed_below else None

    def _files(self, one: Watched, now_ns: int) -> Iterable[dict[str, Any]]:
        used = process_stat.descriptors(one.pid)
        limit = process_stat.most_descriptors(process_stat.read(f"/proc/{one.pid}/limits"))
        if used is None or limit is None:
            return
        (self._near.add if used > limit / 4 else self._near.discard)((one.pid, one.start_ns // 10_000_000))
        if due(one.reported, "fd", used, limit, now_ns):
            yield {**who(one), "kind": "fd", "used": used, "limit": limit}

    def _stolen(self) -> list[dict[str, Any]]:
        """CPU time that a hypervisor took from this host."""
        ticks = int(process_stat.read("/proc/stat").partition("\n")[0].split()[8])
        stolen, self._steal = (ticks - self._steal if self._steal >= 0 else 0), ticks
        waited_ns = stolen * 10_000_000
        return [{"kind": "cpu", "object": "steal", "waited_ns": waited_ns}] if waited_ns >= POLL_NS // 10 else []

    def _pressure(self) -> list[dict[str, Any]]:
        """How long some task of this host waited for a CPU (PSI)."""
        ns, before = cgroups.pressure_ns(process_stat.read("/proc/pressure/cpu")), self._pressed
        self._pressed = ns
        waited_ns = ns - before if min(ns, before) >= 0 else 0
        return [{"kind": "cpu", "object": "pressure", "waited_ns": waited_ns}] if waited_ns >= POLL_NS // 10 else []


def due(reported: dict[str, tuple[int, tuple[int, int]]], kind: str, used: int, limit: int, now_ns: int) -> bool:
    """Whether to make a row: the use is near the limit and has changed or is at it, has crossed the mark since the last
    row, or the last row is AGAIN_NS old.
    """
    at_ns, (before, most) = reported.get(kind, (0, (0, 0)))
    near, was_near = used >= NEAR * limit, before >= NEAR * most
    changed = (used, limit) != (before, most)
    if (near and (changed or used >= limit)) or near != was_near or now_ns - at_ns >= AGAIN_NS:
        reported[kind] = now_ns, (used, limit)
        return True
    return False


def ran(one: Watched, now: process_stat.Stat, now_ns: int) -> Iterable[dict[str, Any]]:
    """Its CPU time since the last poll, if that is at least RAN_NS; of a child, a row from time to time, too."""
    before, one.ran = one.ran, (now.user_ns, now.system_ns)
    if before is not None:
        user_ns, system_ns = (max(0, after - was) for after, was in zip(one.ran, before, strict=True))
        again = one.child and now_ns - one.reported.get("cpu", (0, (0, 0)))[0] >= AGAIN_NS
        if user_ns + system_ns >= RAN_NS or again:
            one.reported["cpu"] = now_ns, (0, 0)
            mine = who(one)
            del mine["uid"]
            yield {**mine, "parent_pid": now.parent, "user_ns": user_ns, "system_ns": system_ns}


def who(one: Watched) -> dict[str, Any]:
    return {"pid": one.pid, "proc_start_ns": one.start_ns, "comm": one.comm, "uid": one.uid}


def batch_of(rows: list[dict[str, Any]], t_ns: int, interval_ns: int, table: Table = TABLE) -> Batch:
    """Negative numbers are unknown."""
    batch = make(table.name, len(rows), t_ns=t_ns, interval_ns=interval_ns)
    for i, row in enumerate(rows):
        for name, value in row.items():
            if value == "":
                continue
            if name in ("kind", "direction"):
                value = table.code(name, value)
            elif isinstance(value, str):
                value = value.encode("utf-8", "surrogateescape")[: table.by_name[name].width]
            if isinstance(value, bytes) or value >= 0:
                batch.rows[name][i] = value
    return batch
