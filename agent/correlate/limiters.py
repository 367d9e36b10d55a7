"""Symptoms of limiters: decisions refused more often, decisions that take longer."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from agent.correlate.config import SECOND, CorrelatorConfig
from agent.correlate.episode import Episode
from agent.correlate.rows import groups, known, start_ticks
from agent.correlate.watch import Rise, Watch
from agent.correlate.words import process, text
from agent.tables import TABLES

_REFUSED, _DELAYED, _ERROR = (TABLES["limiter_decision"].code("result", name) for name in ("refused", "delayed", "error"))


def took(rows: np.ndarray) -> np.ndarray:
    """Nanoseconds that each decision itself took, NaN where unknown.

    A delay that the limiter imposed is its answer, not a symptom: it is subtracted, and a delayed decision whose delay is
    unknown counts as unknown.
    """
    duration = np.where(known(rows["duration_ns"]), rows["duration_ns"], np.nan)
    wait = np.where(known(rows["wait_ns"]), rows["wait_ns"], np.nan)
    delayed = rows["result"] == _DELAYED
    return np.where(delayed, np.where(np.isnan(wait), np.nan, np.maximum(duration - wait, 0)), duration)


class LimiterWatch(Watch):
    """One subject is one limiter of one process."""

    metrics = ("n", "refused", "errors", "share", "cost", "med_ns", "high_ns", "max_ns", "limit", "burst")

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self.names: dict[int, tuple[str, str, int, int, str]] = {}
        self._need: dict[int, int] = {}
        self._rises = (
            Rise("refusals", "share", "", config.refusal_rise, 1.0),
            Rise("decision_latency", "med_ns", "ns", float(config.latency_rise_ns), 3.0),
            Rise("decision_latency", "high_ns", "ns", float(config.tail_rise_ns), 5.0),
        )

    def fill(self, second: int, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        d = rows.get("limiter_decision")
        self._of = np.empty(0, np.int64)
        if d is None:
            return np.empty(0, np.int64)
        first, group = groups([d["limiter_id"], d["pid"], start_ticks(d)])
        slots = np.array([self._slot(d[i], second) for i in first], np.int64)
        self._of = slots[group]
        n = np.bincount(group).astype(np.float64)
        errors = np.bincount(group, d["result"] == _ERROR)
        refused = np.bincount(group, d["result"] == _REFUSED)
        cost = np.bincount(group, np.where(np.isnan(d["cost"]), 1.0, d["cost"]))
        ns = took(d)
        order = np.lexsort((ns, group))
        timed = np.bincount(group, ~np.isnan(ns)).astype(np.int64)
        begin = np.cumsum(n).astype(np.int64) - n.astype(np.int64)
        has = timed > 0
        last = len(ns) - 1
        med, high, top = (np.where(has, ns[order][np.minimum(begin + rank, last)], np.nan)
                          for rank in ((timed - 1) // 2, 9 * (timed - 1) // 10, timed - 1))
        fits = slots >= 0
        values = {"n": n, "refused": refused, "errors": errors, "share": (refused + errors) / n, "cost": cost, "med_ns": med, "high_ns": high, "max_ns": top,
                  "limit": _last(d["limit_per_s"], group, len(n)), "burst": _last(d["burst"], group, len(n))}
        self.series.put(second, slots[fits], **{k: v[fits] for k, v in values.items()})
        return slots[fits]

    def _slot(self, row: np.void, second: int) -> int:
        pid = int(row["pid"]) if row["pid"] > 0 else None
        tick = int(row["proc_start_ns"]) // 10_000_000
        slot = self.series.slot((bytes(row["limiter_id"]), pid, tick), second)
        if slot >= 0:
            self.names[slot] = (text(row["limiter_id"]), text(row["library"]), -1 if pid is None else pid, tick, text(row["comm"]))
            self._need[slot] = max(self.config.warm_s, min(100, 2 * int(row["window_ns"]) // SECOND))
        return slot

    def describe(self, symptom: str, slot: int) -> Episode:
        limiter, _, pid, tick, comm = self.names[slot]
        who = f"{limiter} ({process(comm, pid if pid > 0 else None)})"
        return Episode(symptom, (limiter, pid, tick), slot, f"limiter {who}", f"{pid}/{tick}", 0, 0, "", "", 0.0, 0.0, 0.0, 0,
                       pid=pid if pid > 0 else None, start_tick=tick, comm=comm)

    def judge(self, second: int, slots: np.ndarray, rows: Mapping[str, np.ndarray]) -> list[Episode]:
        opened = self._stalls(second, slots, rows["limiter_decision"])
        n = self.config.persist_s
        bad = self.series.recent("refused", slots, second, n) + self.series.recent("errors", slots, second, n)
        seen = self.series.baseline("n", slots, second, n).seen
        warm = seen >= np.array([self._need[int(s)] for s in slots])
        opened += self.rises(self._rises[0], second, slots, warm & (np.nansum(bad, axis=1) >= self.config.refusals_min))
        for rise in self._rises[1:]:
            opened += self.rises(rise, second, slots, warm)
        for episode in self.active.values():
            if episode.last_bad == second:  # What holds once it is over explains nothing.
                self._facts(episode, second)
        return opened

    def _stalls(self, second: int, slots: np.ndarray, d: np.ndarray) -> list[Episode]:
        """Single decisions far outside all that their limiter was seen to do."""
        worst = self.series.recent("max_ns", slots, second, 1)[:, 0]
        usual, tops = self.series.baseline("med_ns", slots, second, 1), self.series.baseline("max_ns", slots, second, 1)
        bar = np.maximum(self.config.stall_ns, np.maximum(self.config.stall_ratio * usual.median, 2 * tops.top))
        opened = []
        for i in np.flatnonzero((worst > bar) & (usual.seen >= 3)):
            slot = int(slots[i])
            slow = d[(self._of == slot) & (took(d) > bar[i])]
            start, end = int((slow["t_ns"] - slow["duration_ns"]).min()), int(slow["t_ns"].max())
            episode = self.active.get(("decision_latency", slot))
            if episode is not None:
                self.extend(episode, second, float(worst[i]), end)
            else:
                episode = self.describe("decision_latency", slot)
                episode.metric, episode.unit, episode.start_ns, episode.end_ns = "max_ns", "ns", start, end
                episode.base, episode.bar = float(usual.median[i]), float(bar[i])
                self.open(episode, second, float(worst[i]), 1)
                opened.append(episode)
            episode.count += len(slow)
        return opened

    def _facts(self, episode: Episode, second: int) -> None:
        """What causes are judged by: rate, limit, burst and failures, before and during."""
        slot = np.array([episode.slot])
        bad = max(1, min(60, second - episode.start_ns // SECOND + 1))
        for metric in ("n", "cost", "limit", "burst", "errors", "refused"):
            now = self.series.recent(metric, slot, second, bad)[0]
            now = now[~np.isnan(now)]
            if not len(now):
                continue
            episode.facts[metric] = float(now.sum() if metric in ("errors", "refused") else np.median(now))
            before = float(self.series.baseline(metric, slot, second, bad).median[0])
            if not math.isnan(before):
                episode.facts[f"{metric}_base"] = before


def _last(values: np.ndarray, group: np.ndarray, n: int) -> np.ndarray:
    """The last known value of each group, NaN where there is none."""
    out = np.full(n, np.nan)
    has = ~np.isnan(values)
    out[group[has]] = values[has]
    return out
