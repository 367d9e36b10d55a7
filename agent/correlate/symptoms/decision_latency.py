"""Decisions that take longer."""

from __future__ import annotations

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.limiters import READS, LimiterWatch, seen, took
from agent.correlate.watch import Rise, Second
from agent.correlate.words import measured, when


def judge(watch: LimiterWatch, second: Second) -> list[Episode]:
    """Single decisions far outside their limiter's baseline at once; lasting rises of the median, and of what one in ten exceeds."""
    opened = _stalls(watch, second)
    for metric, least, ratio in (("med_ns", watch.config.latency_rise_ns, 3.0), ("high_ns", watch.config.tail_rise_ns, 5.0)):
        opened += watch.rises(Rise(SYMPTOM.name, metric, SYMPTOM.unit, float(least), ratio), second, watch.warm(second))
    return opened


def _stalls(watch: LimiterWatch, second: Second) -> list[Episode]:
    slots, d = second.slots, second.rows["limiter_decision"]
    worst = watch.series.recent("max_ns", slots, second.at, 1)[:, 0]
    usual, tops = watch.series.baseline("med_ns", slots, second.at, 1), watch.series.baseline("max_ns", slots, second.at, 1)
    bar = np.maximum(watch.config.stall_ns, np.maximum(watch.config.stall_ratio * usual.median, 2 * tops.top))
    opened = []
    for i in np.flatnonzero((worst > bar) & (usual.seen >= 3)):
        slot = int(slots[i])
        slow = d[(watch.of == slot) & (took(d) > bar[i])]
        start, end = int((slow["t_ns"] - slow["duration_ns"]).min()), int(slow["t_ns"].max())
        episode = watch.active.get((SYMPTOM.name, slot))
        if episode is not None:
            watch.extend(episode, second.at, float(worst[i]), end)
        else:
            episode = watch.describe(SYMPTOM.name, slot)
            episode.metric, episode.unit, episode.start_ns, episode.end_ns = "max_ns", SYMPTOM.unit, start, end
            episode.base, episode.bar = float(usual.median[i]), float(bar[i])
            watch.open(episode, second.at, float(worst[i]), 1)
            opened.append(episode)
        episode.count += len(slow)
    return opened


def clause(e: Episode) -> str:
    value, base = measured(e.value, e.unit), measured(e.base, e.unit)
    if e.metric == "high_ns":
        return f"One in ten decisions{seen(e)} of {e.subject} took {value} or more instead of {base} {when(e)}"
    return f"Decisions of {e.subject} took {'up to ' if e.count > 1 else ''}{value} instead of {base} {when(e)}"


SYMPTOM = Symptom(
    "decision_latency", 20, "decisions of a limiter take far longer than it usually does", "a limiter of a process", "ns", "limiter_decision",
    READS, clause, "see where the time went: tickscope explain last, then the slow calls of that process: tickscope query slow_syscall",
    LimiterWatch, judge, inside=True, measured=dict.fromkeys(("max_ns", "med_ns", "high_ns"), "duration_ns"))
