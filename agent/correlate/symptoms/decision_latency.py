"""Decisions that take longer."""

from __future__ import annotations

from functools import partial

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.limiters import READS, Hung, LimiterWatch, at_work, seen, took
from agent.correlate.outliers import bars
from agent.correlate.watch import Rise, Second
from agent.correlate.words import Words, measured, render, when


def judge(watch: LimiterWatch, second: Second) -> None:
    """Decisions far outside their limiter's baseline: one for long, or several soon after each other; lasting rises of
    the median, and of the 90th percentile.
    """
    _hung(watch, second)
    for metric, least, ratio in (
        ("med_ns", watch.config.latency_rise_ns, 3.0),
        ("high_ns", watch.config.tail_rise_ns, 5.0),
    ):
        watch.rises(Rise(SYMPTOM.name, metric, SYMPTOM.unit, float(least), ratio), second, partial(watch.warm, second))


def _hung(watch: LimiterWatch, second: Second) -> None:
    config, series = watch.config, watch.series
    worst = series.last("max_ns", second.slots, second.at)
    some = worst > config.held_least_ns
    if not some.any():
        return
    slots, worst = second.slots[some], worst[some]
    usual, medians = (series.baseline(metric, slots, second.at, config.held_s) for metric in ("max_ns", "med_ns"))
    bar = bars(series.history("max_ns", slots, second.at, config.held_s))
    few = np.where(usual.seen < config.warm_s, config.stall_ratio * medians.median, 0.0)  # a program that just started
    stall = np.fmax(np.fmax(config.stall_ns, bar.sure), few)
    slow = np.minimum(stall, np.fmax(bar.slow, usual.median + config.held_least_ns))
    suspects = np.flatnonzero((worst > slow) & (usual.seen >= 3))
    found = {i: lately for i in map(int, suspects) if (lately := _slow(watch, second, int(slots[i]), float(slow[i])))}
    series.put(second.at, slots[list(found)], held_ns=np.array([lately[-1].held_ns for lately in found.values()]))
    for i, lately in found.items():
        slot, known = int(slots[i]), bool(usual.seen[i] >= config.warm_s)
        several = known and sum(s.count for s in lately) >= config.held_least
        several = several and sum(s.held_ns for s in lately) > _enough(watch, second, slot)
        if not several and not worst[i] > stall[i]:
            continue
        level, since = float(slow[i] if several else stall[i]), lately if several else lately[-1:]
        episode = watch.extended(SYMPTOM.name, slot, second.at, float(worst[i]), lately[-1].end_ns)
        if episode is not None:
            episode.bar, episode.count = min(episode.bar, level), episode.count + lately[-1].count
            continue
        episode = watch.describe(SYMPTOM.name, slot)
        episode.metric, episode.unit, episode.count = "max_ns", SYMPTOM.unit, sum(s.count for s in since)
        episode.recurs_by = "max_ns"
        episode.start_ns, episode.end_ns = min(s.start_ns for s in since), lately[-1].end_ns
        episode.base, episode.bar = float(medians.median[i]), level
        watch.open(episode, second.at, max(s.worst_ns for s in since), second.at - since[0].second + 1)


def _slow(watch: LimiterWatch, second: Second, slot: int, bar: float) -> list[Hung]:
    """The last seconds with decisions of a limiter that took longer than ``bar``, up to this one; empty if this one has
    none.
    """
    decisions = second.rows["limiter_decision"][watch.of == slot]
    ns = took(decisions)
    decisions, ns = decisions[ns > bar], ns[ns > bar]
    if not len(decisions):
        return []  # the series has the worst value rounded
    begun = at_work(decisions)[0]
    lately = [s for s in watch.hung.get(slot, ()) if s.second > second.at - watch.config.held_s]
    order = np.argsort(begun, kind="stable")
    start, end = begun[order], (begun + ns.astype(np.int64))[order]
    until = np.maximum.accumulate(np.append(max((s.end_ns for s in lately), default=0), end))
    held = np.maximum(end - np.maximum(start, until[:-1]), 0).sum()  # overlapping times count once
    now = Hung(second.at, int(start[0]), int(until[-1]), float(held), float(ns.max()), len(decisions))
    watch.hung[slot] = [*lately, now]
    return watch.hung[slot]


def _enough(watch: LimiterWatch, second: Second, slot: int) -> float:
    """How long decisions must hang within a few seconds: far longer than usual, where one or two earlier events do not
    count.
    """
    n = watch.config.held_s
    usual = watch.series.history("held_ns", np.array([slot]), second.at, n)[0]
    sums = np.nansum(usual[len(usual) % n :].reshape(-1, n), axis=1)
    return max(float(watch.config.held_ns), float(bars(sums[None, :]).often[0]))


def clause(episode: Episode) -> Words:
    if episode.metric == "high_ns":
        template = "One in ten decisions{seen} of {limiter} took {took} or more (usually {base}) {when}"
    else:
        template = (
            "Decisions of {limiter} took up to {took} (usually {base}) {when}"
            if episode.count > 1
            else "Decisions of {limiter} took {took} (usually {base}) {when}"
        )
    return render(
        template,
        seen=seen(episode),
        limiter=episode.subject,
        took=measured(episode.value, episode.unit),
        base=measured(episode.base, episode.unit),
        when=when(episode),
    )


SYMPTOM = Symptom(
    "decision_latency",
    20,
    "decisions of a limiter take far longer than usual",
    "a limiter of a process",
    "ns",
    "limiter_decision",
    READS,
    clause,
    "see where the time went: tickscope explain last, then the slow calls of that process: tickscope query"
    " slow_syscall",
    LimiterWatch,
    judge,
    inside=True,
    measured=dict.fromkeys(("max_ns", "med_ns", "high_ns"), "duration_ns"),
)
