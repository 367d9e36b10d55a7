"""Use of resources by processes, second by second: descriptors, disk space, memory, CPU time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from agent.common.alike import most
from agent.common.copies import only, pick
from agent.correlate.cpu_starvation import HOSTS
from agent.correlate.episode import Episode
from agent.correlate.limiters import took
from agent.correlate.resource_rules import CPU, DISK, FD, OOM, PIDS, full
from agent.correlate.rows import OfSecond, among, columns_of, groups, start_ticks, union
from agent.correlate.thresholds import SECOND, CorrelatorConfig
from agent.correlate.watch import Watch
from agent.correlate.words import process, text

#: Columns that a symptom of resources reads.
READS = {
    "resource": ("kind", "object", "interval_ns", "used", "limit", "events", "waited_ns", "uid"),
    "cpu_delay": ("duration_ns",),
    "cpu_wait": ("interval_ns", "wait_ns", "max_ns"),
    "limiter_decision": ("result", "wait_ns", "duration_ns"),
}
_NAMES = {FD: "fd", DISK: "disk", OOM: "oom", PIDS: "pids"}
#: Without rows the sums are 0, but the length of decisions is unknown.
_UNKNOWN_SUMS = dict.fromkeys(("throttled_ns", "periods", "delay_ns", "longest_ns", "sum_ns"), 0.0) | {
    "high_ns": np.nan
}
#: Decisions of a second that are enough for a 90th percentile.
_ENOUGH = 2048
Key = tuple[int, int, str, bytes]
_Process = tuple[int, int, bytes]


class ResourceWatch(Watch):
    """One subject is one resource of one process: its descriptors, a file system that it writes to, its memory;
    ``cpu``: its CPU time.

    none: 1 if nothing is left. throttled_ns, periods: time throttled by a quota, and the share of the quota's periods
    with throttling. delay_ns: waits for a CPU of some milliseconds, longest_ns: the longest; high_ns: 90th percentile
    of its decisions, sum_ns: their sum.
    """

    metrics = ("none", "used", "limit", "throttled_ns", "periods", "delay_ns", "longest_ns", "sum_ns", "high_ns")

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self.names: dict[int, tuple[Key, str]] = {}
        self._mine: set[tuple[int, int]] = set()  # the watched processes; waits for a CPU of others do not count
        self.has_room: set[int] = set()  # slots of resources that had some left when last seen

    def fill(self, second: int, rows: OfSecond) -> np.ndarray:
        return union(self._limits(second, rows["resource"]), self._processors(second, rows))

    def _slot(self, second: int, pid: int, start_ns: int, comm: bytes, what: str, where: bytes, uid: int = 0) -> int:
        key = pid, start_ns // 10_000_000, what, where
        # A disk is one subject for all processes of a user; another user may have a mount of the same name.
        slot = self.series.slot((0, uid, what, where) if what == "disk" else key, second)
        if slot >= 0:
            if what == "cpu":
                self._mine.add(key[:2])
            if slot in self.names and self.names[slot][0][2:] != (what, where):
                self.has_room.discard(slot)  # another subject had it
            self.names[slot] = key, text(comm)
        return slot

    def _limits(self, second: int, rows: np.ndarray) -> np.ndarray:
        rows = rows[np.isin(rows["kind"], tuple(_NAMES))]
        if not len(rows):
            return np.empty(0, np.int64)
        rows = rows[np.argsort(rows["t_ns"], kind="stable")][
            ::-1
        ]  # groups give the first of each: the last one in time
        gone = full(rows) | (rows["kind"] == OOM)
        first, group = groups([rows["pid"], start_ticks(rows), rows["kind"], rows["object"]])
        none = most(np.zeros(len(first)), group, gone)
        who = columns_of(rows, first, "pid", "proc_start_ns", "comm", "kind", "object", "uid")
        slots = np.array(
            [self._slot(second, pid, start_ns, comm, _NAMES[kind], *of) for pid, start_ns, comm, kind, *of in who],
            np.int64,
        )
        used = np.where(rows["kind"] == PIDS, rows["events"], rows["used"])[first].astype(float)
        return self.put(second, slots, none=none, used=used, limit=rows["limit"][first].astype(float))

    def _processors(self, second: int, rows: OfSecond) -> np.ndarray:
        resource, delays, waits, decisions = (rows[table] for table in READS)
        sums: dict[int, dict[str, float]] = {}

        def of(who: _Process) -> dict[str, float]:
            return sums.setdefault(self._slot(second, *who, "cpu", b""), {})

        known = pick(resource, resource["pid"] > 0)
        for who, _ in _each(known, []):  # a process without such a row here was not throttled
            sums[self._slot(second, *who, "cpu", b"")] = {}
        withheld = pick(resource, (resource["kind"] == CPU) & ~np.isin(resource["object"], HOSTS))
        for who, group in _each(withheld, [withheld["object"]]):
            its, ns = of(who), float(withheld["waited_ns"][group].sum())
            if ns > its.get("throttled_ns", 0.0):
                periods = max(1.0, float(withheld["limit"][group].clip(0).sum()))
                its.update(throttled_ns=ns, periods=float(withheld["events"][group].sum()) / periods)
        for preempted, column, longest in ((delays, "duration_ns", "duration_ns"), (waits, "wait_ns", "max_ns")):
            preempted = only(preempted, among(preempted["pid"], (pid for pid, _ in self._mine)))
            lengths, worst = preempted[column].astype(np.float64), preempted[longest].copy()
            if column == "wait_ns":  # the interval is long if the agent itself gets too little CPU
                lengths *= SECOND / np.maximum(preempted["interval_ns"], SECOND)
            order, parts = _parts(preempted)
            lengths, worst = lengths[order], worst[order]
            for who, part in parts:
                if (who[0], who[1] // 10_000_000) in self._mine:
                    its = of(who)
                    its["delay_ns"] = max(its.get("delay_ns", 0.0), float(np.add.reduce(lengths[part])))
                    its["longest_ns"] = max(its.get("longest_ns", 0.0), float(np.maximum.reduce(worst[part])))
        every = 1 + len(decisions) // _ENOUGH
        some = decisions[::every]
        lasted = took(some)
        timed = (some["pid"] > 0) & ~np.isnan(lasted)
        some, lasted = only(some, timed), lasted[timed]
        order, parts = _parts(some, lasted)
        lasted = lasted[order]
        for who, part in parts:
            ordered, its = lasted[part], of(who)
            its["sum_ns"] = float(np.add.reduce(ordered)) * every
            its["high_ns"] = float(ordered[9 * (len(ordered) - 1) // 10])
        sums.pop(-1, None)
        slots = sorted(sums)
        if len(self._mine) > 4 * self.config.subjects:
            self._mine = {name[0][:2] for name in self.names.values()}
        at = np.array(slots, np.int64)
        if slots:
            sums_of = [sums[slot] for slot in slots]
            values = {
                name: np.array([one.get(name, _UNKNOWN_SUMS[name]) for one in sums_of]) for name in self.metrics[3:]
            }
            self.series.put(second, at, **values)
        return at

    def describe(self, symptom: str, slot: int) -> Episode:
        (pid, tick, what, where), comm = self.names[slot]
        who = process(comm, pid)
        subject = f"file system {text(where)} ({who} writes there)" if what == "disk" else who
        episode = Episode(symptom, (pid, tick, what, where), slot, subject, f"{pid}/{tick}", metric=what)
        episode.pid, episode.start_tick, episode.comm = pid, tick, comm
        episode.keys = {"kind": what, "object": where}
        return episode


def _each(rows: np.ndarray, more: list[np.ndarray]) -> list[tuple[_Process, np.ndarray]]:
    """(process by its first row, all its rows) of each process."""
    order, parts = _parts(rows, None, more)
    return [(who, order[part]) for who, part in parts]


def _parts(
    rows: np.ndarray, by: np.ndarray | None = None, more: Sequence[np.ndarray] = ()
) -> tuple[np.ndarray, list[tuple[_Process, slice]]]:
    """The order that sorts rows by their process, and within it by ``by``; (process by its first row, its part of the
    rows) of each process.
    """
    if not len(rows):
        return np.empty(0, np.int64), []
    first, group = groups([rows["pid"], start_ticks(rows), *more])
    order = np.argsort(group, kind="stable") if by is None else np.lexsort((by, group))
    parts = [slice(begin, end) for begin, end in pairwise([0, *np.cumsum(np.bincount(group)).tolist()])]
    return order, list(zip(columns_of(rows, first, "pid", "proc_start_ns", "comm"), parts, strict=True))
