"""A process is blocked in system calls for far longer than usual, even if it has no limiter, no queue and no client.

More work of the same kind blocks for longer in total, so each call must take longer, too. The symptom is reported only
with a known cause: a call, a lock, a disk or the like.
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
_AT_ONCE_NS = 1_000_000_000.0  # reported after one second
_EACH_NS, _LONGER = 20_000_000.0, 3.0


def judge(watch: BlockedWatch, second: Second) -> None:
    slots, series, at = second.slots, watch.series, second.at
    now = series.recent("blocked_ns", slots, at, 1)[:, 0]
    if not (now > _LEAST_NS).any():
        return
    longer = _longer(watch, second)
    _at_once(watch, second, now, longer)
    rise = Rise(SYMPTOM.name, "blocked_ns", SYMPTOM.unit, _LEAST_NS, _RATIO, _LAST_S)
    watch.rises(rise, second, longer.__getitem__)


def _longer(watch: BlockedWatch, second: Second) -> np.ndarray:
    """Subjects with longer blocked calls."""
    each = watch.series.recent("each_ns", second.slots, second.at, 1)[:, 0]
    usual = watch.series.baseline("each_ns", second.slots, second.at, _LAST_S).median
    with np.errstate(invalid="ignore"):
        return np.asarray((each > _EACH_NS) & ~(each <= _LONGER * usual))


def _at_once(watch: BlockedWatch, second: Second, now: np.ndarray, longer: np.ndarray) -> None:
    slots, series = second.slots, watch.series
    usual = series.baseline("blocked_ns", slots, second.at, 1)
    bar = np.fmax(bars(series.history("blocked_ns", slots, second.at, 1)).sure, _AT_ONCE_NS)
    for i in np.flatnonzero(longer & (now > bar) & (usual.seen >= watch.config.warm_s)):
        slot, value = int(slots[i]), float(now[i])
        if (SYMPTOM.name, slot) in watch.active:
            continue
        episode = watch.describe(SYMPTOM.name, slot)
        episode.metric, episode.unit, episode.recurs_by = "blocked_ns", SYMPTOM.unit, "blocked_ns"
        lasted = min(value, float(series.recent("each_ns", slots[i : i + 1], second.at, 1)[0, 0]))
        episode.start_ns = second.at * SECOND - int(lasted)  # a call is recorded at its end
        episode.base, episode.bar = float(usual.median[i]), float(bar[i])
        watch.open(episode, second.at, value, 1)


def clause(episode: Episode) -> Words:
    return render(
        "{who} was blocked in system calls{how}{took}{threads} ({base}) {when}",
        who=episode.subject,
        how=" for up to " if episode.value <= SECOND else " for ",
        threads="" if episode.value <= SECOND else ", all threads together",
        took=measured(episode.value, episode.unit),
        base=render("usually {base}", base=measured(episode.base, episode.unit))
        if episode.base
        else "usually hardly ever",
        when=when(episode),
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
