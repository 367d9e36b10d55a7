"""A process that answers on a port takes longer than usual, whoever asks it, and whatever it is.

From outside nobody knows which requests are alike, so one that is slow may just be another kind: it is told where it is known what held it up. Without that it takes
several: half of a second's requests, or one in ten for seconds, are slow where they never
were, or several wait at once.
"""

from __future__ import annotations

import numpy as np

from agent.correlate.answers import AnswerWatch
from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.outliers import bars
from agent.correlate.served import READS
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Rise, Second
from agent.correlate.words import Words, capital, measured, tell, when

_NOTED_S = 10  # an answer that is noted later (the client kept quiet) is no news
_SEEN = 100  # requests in the last two minutes, from which it is known what is usual
_SLOW, _LAST_S = 5, 3  # so many requests of so many seconds, where half of each second's were slow


def judge(watch: AnswerWatch, second: Second) -> list[Episode]:
    opened = _held(watch, second)
    for metric, least, ratio in (
        ("med_ns", watch.config.latency_rise_ns, 3.0),
        ("high_ns", watch.config.tail_rise_ns, 5.0),
    ):
        allowed = _known(watch, second)
        rise = Rise(SYMPTOM.name, metric, SYMPTOM.unit, float(least), ratio, instead="max_ns")
        opened += watch.rises(rise, second, allowed)
    return opened


def _known(watch: AnswerWatch, second: Second) -> np.ndarray:
    before = watch.series.history("n", second.slots, second.at, 1)
    return np.asarray(np.nansum(before, axis=1) >= _SEEN)


def _held(watch: AnswerWatch, second: Second) -> list[Episode]:
    config, slots, series = watch.config, second.slots, watch.series
    worst, half = (series.recent(metric, slots, second.at, 1)[:, 0] for metric in ("max_ns", "med_ns"))
    if not (worst > config.stall_ns).any():
        return []
    usual = series.baseline("max_ns", slots, second.at, _LAST_S)
    bar = np.fmax(bars(series.history("max_ns", slots, second.at, _LAST_S)).sure, float(config.stall_ns))
    n, halves = (series.recent(metric, slots, second.at, _LAST_S) for metric in ("n", "med_ns"))
    with np.errstate(invalid="ignore"):
        many = (half > bar) & (np.where(halves > bar[:, None], n, 0.0).sum(axis=1) >= _SLOW)
        many |= series.recent("waiting", slots, second.at, 1)[:, 0] >= _SLOW
    opened = []
    for i in np.flatnonzero((worst > bar) & (usual.seen >= config.warm_s) & _known(watch, second)):
        slot, value = int(slots[i]), float(worst[i])
        begun, over = watch.when(slot)
        if over < (second.at - _NOTED_S) * SECOND:
            continue
        habit = watch.habits.has(slot, "max_ns", second.at, value)
        episode = watch.active.get((SYMPTOM.name, slot))
        if episode is not None:
            if episode.metric in ("max_ns", "half_ns"):
                watch.extend(episode, second.at, value, over)
                episode.metric = "half_ns" if many[i] else episode.metric
            continue
        if habit:
            continue
        episode = watch.describe(SYMPTOM.name, slot)
        episode.metric, episode.unit = "half_ns" if many[i] else "max_ns", SYMPTOM.unit
        episode.start_ns, episode.end_ns = begun, over
        episode.base, episode.bar = float(np.nan_to_num(usual.median[i])), float(bar[i])
        watch.open(episode, second.at, value, 1)
        opened.append(episode)
    return opened


def clause(e: Episode) -> Words:
    return tell(
        "{who} took {share}{took} to answer{base} {when}",
        who=capital(e.subject),
        share={"med_ns": "for half of the requests ", "high_ns": "for one request in ten "}.get(e.metric, "up to "),
        took=measured(e.value, e.unit),
        base=tell(" instead of {base}", base=measured(e.base, e.unit)) if e.base else ", and usually next to nothing,",
        when=when(e),
    )


SYMPTOM = Symptom(
    "service_latency",
    48,
    "a process takes far longer than usual to answer on a port; a single answer is told where it is known why it took so long",
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
