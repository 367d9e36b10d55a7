"""Symptoms of limiters: decisions refused more often, decisions that take longer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from agent.common.alike import least
from agent.common.recent import Recent
from agent.correlate.episode import Episode
from agent.correlate.rows import OfSecond, columns_of, groups, known, shared
from agent.correlate.thresholds import SECOND, CorrelatorConfig
from agent.correlate.watch import Second, Watch
from agent.correlate.words import process, text
from agent.tables import TABLES

_REFUSED, _DELAYED, ERROR, _CANCELLED = (
    TABLES["limiter_decision"].code("result", name) for name in ("refused", "delayed", "error", "cancelled")
)

#: Columns that a symptom of limiters reads.
READS = {
    "limiter_decision": (
        "tid",
        "limiter_id",
        "library",
        "result",
        "cost",
        "limit_per_s",
        "burst",
        "window_ns",
        "wait_ns",
        "duration_ns",
        "step_immune",
        "goroutine",
        "unlimited",
        "sample_rate",
        "member",
    ),
    "process_event": ("kind",),
}
_ENDS = [TABLES["process_event"].code("kind", kind) for kind in ("killed", "exited", "oom_killed")]
_PLACES, _OF_ONE = 1024, 16  # that are remembered: processes, and places that ended; limiters of one process


def took(rows: np.ndarray) -> np.ndarray:
    """Nanoseconds that each decision itself took, NaN if unknown.

    A delay that the limiter imposed is its answer, not a symptom, so it is subtracted. A delayed decision with an
    unknown delay is unknown. So is a cancelled one, since the part of the delay that had passed is unknown.
    """
    duration = np.where(known(rows["duration_ns"]), rows["duration_ns"], np.nan)
    wait = np.where(known(rows["wait_ns"]), rows["wait_ns"], np.nan)
    delayed, cancelled = rows["result"] == _DELAYED, rows["result"] == _CANCELLED
    return np.where(
        delayed | (cancelled & ~(wait <= 0)),
        np.where(cancelled | np.isnan(wait), np.nan, np.maximum(duration - wait, 0)),
        duration,
    )


def at_work(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(from, to) of each decision, CLOCK_BOOTTIME ns, without the sleep that follows it if one is known to follow (a Go
    program's Wait).
    """
    begun = rows["t_ns"] - np.where(known(rows["duration_ns"]), rows["duration_ns"], 0)
    slept = np.isin(rows["result"], (_DELAYED, _CANCELLED)) & known(rows["goroutine"])
    return begun, np.where(slept, begun + np.nan_to_num(took(rows)).astype(np.int64), rows["t_ns"])


_Key = tuple[bytes, int | None, int]  # a subject: limiter, process, its start in units of 10 ms


@dataclass(frozen=True)
class Hung:
    """One second's decisions of a limiter that took too long. start, end: of these, CLOCK_BOOTTIME; held_ns: time in
    which one of them hung, and none of the seconds before did.
    """

    second: int
    start_ns: int
    end_ns: int
    held_ns: float
    worst_ns: float
    count: int


class LimiterWatch(Watch):
    """One subject is one limiter of one process, or all limiters that one place uses: those have no common limit.

    A process of the same name that uses the limiter after another one has ended takes that one's place: a deployment.
    """

    metrics: tuple[str, ...] = (
        "n",
        "refused",
        "errors",
        "share",
        "cost",
        "others",
        "med_ns",
        "high_ns",
        "max_ns",
        "held_ns",
        "limit",
        "burst",
        "watched",
    )

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self.names: dict[int, tuple[str, str, int, int, str]] = {}
        self.of = np.empty(0, np.int64)  # the slot of each decision of the second
        self.hung: dict[int, list[Hung]] = {}
        self._need: dict[int, int] = {}
        self._several: set[int] = set()  # slots with decisions of several members in one second
        self._places = Recent[int, list[tuple[_Key, bytes]]](_PLACES)  # by process, with its name
        self._vacant = Recent[tuple[bytes, bytes], _Key](_PLACES)  # by limiter and name
        self._takers: dict[int, str] = {}  # by slot: the other place that took most of the same limiter

    def fill(self, second: int, rows: OfSecond) -> np.ndarray:
        decisions, events = rows["limiter_decision"], rows["process_event"]
        for pid in events["pid"][np.isin(events["kind"], _ENDS)].tolist() if len(events) else ():
            for place, comm in self._places.pop(pid, ()):
                self._vacant[place[0], comm] = place
        self.of = np.empty(0, np.int64)
        if not len(decisions):
            return self.of
        first, group = shared(rows, "limiter_decision", "limiter_id", "pid", "proc_start_ns")
        who = columns_of(decisions, first, "limiter_id", "pid", "proc_start_ns", "comm", "library", "window_ns")
        slots = np.array([self._slot(second, *its) for its in who], np.int64)
        self.of = slots[group]
        n = np.bincount(group).astype(np.float64)
        errors = np.bincount(group, decisions["result"] == ERROR)
        refused = np.bincount(group, decisions["result"] == _REFUSED)
        cost = np.bincount(group, np.where(np.isnan(decisions["cost"]), 1.0, decisions["cost"]))
        ns = took(decisions)
        order = np.lexsort((ns, group))
        timed = np.bincount(group, ~np.isnan(ns)).astype(np.int64)
        begin = np.cumsum(n).astype(np.int64) - n.astype(np.int64)
        has = timed > 0
        last = len(ns) - 1
        med, high, top = (
            np.where(has, ns[order][np.minimum(begin + rank, last)], np.nan)
            for rank in ((timed - 1) // 2, 9 * (timed - 1) // 10, timed - 1)
        )
        values = {
            "n": n,
            "refused": refused,
            "errors": errors,
            "share": (refused + errors) / n,
            "cost": cost,
            "others": self._others(decisions, group, slots),
            "med_ns": med,
            "high_ns": high,
            "max_ns": top,
            "limit": _last(np.where(decisions["unlimited"] == 1, np.inf, decisions["limit_per_s"]), group, len(n)),
            "burst": _last(decisions["burst"], group, len(n)),
        }
        if (decisions["member"] != decisions["member"][0]).any():
            of_member, _ = groups([group, decisions["member"]])
            several = np.bincount(group[of_member], minlength=len(n)) > 1
            self._several.update(slots[several & (slots >= 0)].tolist())
        if self._several:
            apart = np.isin(slots, list(self._several))
            values["limit"] = np.where(apart, np.nan, values["limit"])
            values["burst"] = np.where(apart, np.nan, values["burst"])
        share = np.where((decisions["sample_rate"] > 0) & (decisions["sample_rate"] < 1), decisions["sample_rate"], 1.0)
        values["watched"] = least(np.ones(len(n)), group, share)
        return self.put(second, slots, **values)

    def _others(self, decisions: np.ndarray, group: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Units that other places took of the same limiters, by place. A limiter that is used at several places is one
        member of one process.
        """
        out = np.zeros(len(slots))
        mine = np.flatnonzero(known(decisions["member"]))
        if not len(mine):
            return out
        _, member = groups([decisions[name][mine] for name in ("pid", "proc_start_ns", "member")])
        cost = np.where(np.isnan(decisions["cost"][mine]), 1.0, decisions["cost"][mine])
        first, pair = groups([group[mine], member])
        at, member_of, units = group[mine][first], member[first], np.bincount(pair, cost)
        for shared_member in np.flatnonzero(np.bincount(member_of) > 1).tolist():
            askers = np.flatnonzero(member_of == shared_member)
            for place in askers.tolist():
                rest = askers[askers != place]
                out[at[place]] += units[rest].sum()
                most, slot = rest[np.argmax(units[rest])], int(slots[at[place]])
                if slot >= 0 and slots[at[most]] >= 0:
                    self._takers[slot] = self.names[int(slots[at[most]])][0]
        return out

    def _slot(
        self, second: int, limiter: bytes, pid: int, start_ns: int, comm: bytes, library: bytes, window_ns: int
    ) -> int:
        tick = start_ns // 10_000_000
        key = (limiter, pid if pid > 0 else None, tick)
        if key not in self.series:
            old = self._vacant.pop((limiter, comm), None)
            if old is not None and old in self.series:
                self.series.pass_on(old, key)
            self._places[pid] = [*self._places.get(pid, ())[-_OF_ONE:], (key, comm)]
        slot = self.series.slot(key, second)
        if slot >= 0:
            name = text(limiter), text(library), pid if pid > 0 else -1, tick, text(comm)
            if self.names.get(slot) != name:
                self.names[slot] = name
                self.hung.pop(slot, None)
                self._several.discard(slot)
                self._takers.pop(slot, None)
            self._need[slot] = max(self.config.warm_s, min(100, 2 * window_ns // SECOND))
        return slot

    def describe(self, symptom: str, slot: int) -> Episode:
        limiter, _, pid, tick, comm = self.names[slot]
        known_pid = pid if pid > 0 else None
        subject, scope = f"limiter {limiter} ({process(comm, known_pid)})", f"{pid}/{tick}"
        episode = Episode(symptom, (limiter, pid, tick), slot, subject, scope, keys={"limiter_id": limiter})
        episode.pid, episode.start_tick, episode.comm = known_pid, tick, comm
        return episode

    def warm(self, second: Second, some: np.ndarray) -> np.ndarray:
        """Which of its subjects have been seen for long enough to evaluate a lasting rise."""
        slots = second.slots[some]
        seen = self.series.seen("n", slots, second.at, self.config.persist_s)
        return np.asarray(seen >= np.array([self._need[int(s)] for s in slots]))

    def settle(self, episode: Episode, second: int, lasted: int) -> None:
        """Rate, limit, burst and failures, before and during; watched: the share of its decisions that were seen."""
        slot = np.array([episode.slot])
        episode.taker = self._takers.get(episode.slot, "")
        for metric in ("n", "cost", "others", "limit", "burst", "errors", "refused", "watched"):
            now = self.series.recent(metric, slot, second, lasted)[0]
            now = now[~np.isnan(now)]
            if not len(now):
                continue
            episode.facts[metric] = float(
                now.sum()
                if metric in ("errors", "refused")
                else now.min()
                if metric == "watched"
                else now.mean()  # others may take much at once
                if metric == "others"
                else np.median(now)
            )
            before = float(self.series.baseline(metric, slot, second, lasted).median[0])
            if not math.isnan(before):
                episode.facts[f"{metric}_base"] = before
                if metric == "cost":
                    deficit = self.series.deficit(metric, episode.slot, second, lasted, before)
                    episode.facts["cost_owed"], episode.facts["cost_more"] = deficit


def seen(episode: Episode) -> str:
    """ " that were seen" if only a share of its decisions was watched."""
    return " that were seen" if episode.facts.get("watched", 1.0) < 1 else ""


def _last(values: np.ndarray, group: np.ndarray, n: int) -> np.ndarray:
    """The last known value of each group, NaN if there is none."""
    out = np.full(n, np.nan)
    has = ~np.isnan(values)
    out[group[has]] = values[has]
    return out
