"""A process that answers on a port takes longer than usual, whoever asks it, and whatever it is.

From outside nobody knows which requests are alike, so one that is slow may just be another kind: it is told where it is
known what held it up. Without that it takes
several: half of a second's requests, or one in ten for seconds, are slow where they never
were, or several wait at once (and did not so all the time), for which it is enough that it is twice the third longest
of two minutes where nothing at all is answered.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from agent.correlate.answers import AnswerWatch
from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.outliers import bars
from agent.correlate.served import READS
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Rise, Second
from agent.correlate.words import Words, measured, render, when

_NOTED_S = 10  # an answer that is noted later (the client kept quiet) is no news
_SEEN = 100  # requests in the last two minutes, from which it is known what is usual
_SLOW, _LAST_S = (
    5,
    3,
)  # so many requests of so many seconds, where half of each second's were slow; or so many that wait at once
_BEFORE_S = 60
_RARE_S, _RARELY, _RARE_LEAST = (
    5,
    0.3,
    3,
    # ... or in so many seconds so few of the usual requests are answered, and the slowest of so many seconds were slow:
    # who asks waits for each
)


def judge(watch: AnswerWatch, second: Second) -> list[Episode]:
    opened = _held(watch, second)
    for metric, least, ratio in (
        ("med_ns", watch.config.latency_rise_ns, 3.0),
        ("high_ns", watch.config.tail_rise_ns, 5.0),
    ):
        rise = Rise(SYMPTOM.name, metric, SYMPTOM.unit, float(least), ratio, instead="max_ns")
        opened += watch.rises(rise, second, partial(_worse, watch, second, _known(watch, second)))
    return opened


def _worse(watch: AnswerWatch, second: Second, known: np.ndarray, some: np.ndarray) -> np.ndarray:
    """Of which of the second's ports a lasting rise is one."""
    slots, lasts = second.slots[some], watch.config.persist_s
    longest = np.nanmax(watch.series.recent("max_ns", slots, second.at, lasts), axis=1, initial=0)
    since = second.at - lasts + 1 - longest // SECOND  # what is answered had waited before
    return np.asarray(known[some] & ~watch.by_design(slots, second.at, since))


def _known(watch: AnswerWatch, second: Second) -> np.ndarray:
    before = watch.series.history("n", second.slots, second.at, 1)
    return np.asarray(np.nansum(before, axis=1) >= _SEEN)


def _held(watch: AnswerWatch, second: Second) -> list[Episode]:
    worst = watch.series.recent("max_ns", second.slots, second.at, 1)[:, 0]
    opened = []
    for i in np.flatnonzero((worst > watch.config.stall_ns) & _known(watch, second)):
        opened += _one(watch, second, int(second.slots[i]), float(worst[i]))
    return opened


def _one(watch: AnswerWatch, second: Second, slot: int, value: float) -> list[Episode]:
    """The slowest answer of a port in that second, or the longest wait for one."""
    begun, over = watch.when(slot)
    if over < (second.at - _NOTED_S) * SECOND:
        return []
    at, series = np.array([slot]), watch.series
    skip = min(max(_LAST_S, second.at - begun // SECOND + 1), _BEFORE_S)  # a wait that grows must not raise its own bar
    usual = series.baseline("max_ns", at, second.at, skip)
    if usual.seen[0] < watch.config.warm_s:
        return []
    bar = bars(series.history("max_ns", at, second.at, skip))
    n, halves, waiting = (series.recent(metric, at, second.at, _LAST_S)[0] for metric in ("n", "med_ns", "waiting"))
    rate = series.baseline("n", at, second.at, skip).median[0]
    # Of those that wait only some are looked at: who usually answers all the time, and for two seconds nobody, keeps
    # all waiting.
    nobody = bool((n[-2:] == 0).all()) and np.nanmax(waiting[-2:]) >= 2
    still = n[-1] == 0 and rate >= _SLOW and (waiting[-1] >= _SLOW or (waiting[-1] > 0 and nobody))
    least = max(float(watch.config.stall_ns), float((bar.often if still else bar.sure)[0]))
    if not value > least:
        return []
    slow = float(n[halves > least].sum()) if halves[-1] > least else 0.0
    held, n = (series.recent(metric, at, second.at, _RARE_S)[0] for metric in ("max_ns", "n"))
    rare = (
        rate >= _SLOW
        and np.nansum(n) <= _RARELY * rate * _RARE_S
        and np.count_nonzero((held > least) & (n > 0)) >= _RARE_LEAST
    )
    metric = "half_ns" if still or rare or waiting[-1] >= _SLOW or slow >= _SLOW else "max_ns"
    if metric == "half_ns" and watch.by_design(at, second.at, np.array([begun // SECOND]))[0]:
        metric = "max_ns"
    episode = watch.active.get((SYMPTOM.name, slot))
    if episode is not None:
        if episode.metric in ("max_ns", "half_ns"):
            watch.extend(episode, second.at, value, over)
            episode.metric = max(episode.metric, metric, key=("max_ns", "half_ns").index)
        return []
    episode = watch.describe(SYMPTOM.name, slot)
    episode.metric, episode.unit, episode.recurs_by = metric, SYMPTOM.unit, "max_ns"
    episode.start_ns, episode.end_ns = begun, over
    episode.base, episode.bar = float(np.nan_to_num(usual.median[0])), least
    watch.open(episode, second.at, value, 1)
    return [episode]


def clause(e: Episode) -> Words:
    return render(
        "{who} took {share}{took} to answer{base} {when}",
        who=e.subject,
        share={"med_ns": "for half of the requests ", "high_ns": "for one request in ten "}.get(e.metric, "up to "),
        took=measured(e.value, e.unit),
        base=render(" (usually {base})", base=measured(e.base, e.unit)) if e.base else " (usually next to nothing)",
        when=when(e),
    )


SYMPTOM = Symptom(
    "service_latency",
    48,
    "a process takes far longer than usual to answer on a port; a single slow answer is reported"
    " only with a known cause",
    "a port that a process serves",
    "ns",
    "service_latency",
    READS,
    clause,
    "see what it waits for: tickscope query slow_syscall, cpu_wait; how long it takes: tickscope query service_latency",
    AnswerWatch,
    judge,
    inside=True,
    alone=("max_ns",),
    shared=True,
    measured={"max_ns": "max_ns", "half_ns": "max_ns", "med_ns": "p50_ns", "high_ns": "p90_ns"},
)
