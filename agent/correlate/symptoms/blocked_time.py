"""A process is held up in system calls for far longer than it usually is, though it may have no limiter, no queue and
no client.

Who does more of the same is held up for longer, too: so each time must be longer as well. It is told where a call, a
lock, a disk or the like explains it.
"""

from __future__ import annotations

import numpy as np

from agent.correlate.blocking import READS, BlockedWatch
from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.outliers import bars
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Rise, Second
from agent.correlate.words import Words, measured, render, when

_LEAST_NS, _RATIO, _LAST_S = 300_000_000.0, 5.0, 3  # a second, of a lasting rise
_AT_ONCE_NS = 1_000_000_000.0  # told in one second
_EACH_NS, _LONGER = 20_000_000.0, 3.0


def judge(watch: BlockedWatch, second: Second) -> list[Episode]:
    slots, series, at = second.slots, watch.series, second.at
    now = series.recent("blocked_ns", slots, at, 1)[:, 0]
    if not (now > _LEAST_NS).any():
        return []
    longer = _longer(watch, second)
    opened = _at_once(watch, second, now, longer)
    rise = Rise(SYMPTOM.name, "blocked_ns", SYMPTOM.unit, _LEAST_NS, _RATIO, _LAST_S)
    return opened + watch.rises(rise, second, longer.__getitem__)


def _longer(watch: BlockedWatch, second: Second) -> np.ndarray:
    """Of whom each time that it was held up lasted longer, too."""
    each = watch.series.recent("each_ns", second.slots, second.at, 1)[:, 0]
    usual = watch.series.baseline("each_ns", second.slots, second.at, _LAST_S).median
    with np.errstate(invalid="ignore"):
        return np.asarray((each > _EACH_NS) & ~(each <= _LONGER * usual))


def _at_once(watch: BlockedWatch, second: Second, now: np.ndarray, longer: np.ndarray) -> list[Episode]:
    slots, series = second.slots, watch.series
    usual = series.baseline("blocked_ns", slots, second.at, 1)
    bar = np.fmax(bars(series.history("blocked_ns", slots, second.at, 1)).sure, _AT_ONCE_NS)
    opened = []
    for i in np.flatnonzero(longer & (now > bar) & (usual.seen >= watch.config.warm_s)):
        slot, value = int(slots[i]), float(now[i])
        episode = watch.active.get((SYMPTOM.name, slot))
        if episode is not None:
            continue
        episode = watch.describe(SYMPTOM.name, slot)
        episode.metric, episode.unit, episode.recurs_by = "blocked_ns", SYMPTOM.unit, "blocked_ns"
        lasted = min(value, float(series.recent("each_ns", slots[i : i + 1], second.at, 1)[0, 0]))
        episode.start_ns = second.at * SECOND - int(lasted)  # a call is told at its end
        episode.base, episode.bar = float(usual.median[i]), float(bar[i])
        watch.open(episode, second.at, value, 1)
        opened.append(episode)
    return opened


def clause(e: Episode) -> Words:
    return render(
        "{who} was blocked in system calls{how}{took}{threads} ({base}) {when}",
        who=e.subject,
        how=" for up to " if e.value <= SECOND else " for ",
        threads="" if e.value <= SECOND else ", the sum of its threads",
        took=measured(e.value, e.unit),
        base=render("usually {base}", base=measured(e.base, e.unit)) if e.base else "usually hardly ever",
        when=when(e),
    )


SYMPTOM = Symptom(
    "blocked_time",
    90,
    "the threads of a process are blocked in system calls for far longer than usual, in total;"
    " reported only with a known cause",
    "a process",
    "ns",
    "syscall_latency",
    READS,
    clause,
    "see in which calls: tickscope query slow_syscall --group-by syscall; in which state: ps -o stat,wchan",
    BlockedWatch,
    judge,
    bare=False,
    shared=True,
    measured={"blocked_ns": "sum_ns"},
)
