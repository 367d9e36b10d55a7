"""Decisions that fail, brokers that refuse service, and servers that answer with errors.

One second, or five, are bad if the number of failed decisions would occur by chance once in 10^8 such times, given the
share that failed before (Chernoff's bound of the binomial, with one failure more than was seen), and if it is at least
three, and a fifth of the decisions. Of answers, each error counts separately; a twentieth of five seconds' answers is
enough if it is three times the usual number. One broker's poll is enough if it reports more refusals than any before,
or an alarm for which it blocks its publishers.
Regular bursts of errors are no chance, but a recurrence.
"""

from __future__ import annotations

import math

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.series import quantile
from agent.correlate.services import READS, ServiceWatch
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Second
from agent.correlate.words import Words, opening, render, value, when

_LEAST, _SHARE, _CHANCE = 3, 0.2, math.log(1e-8)
_WINDOWS = (1, 5)
_ANSWERED = (
    (1, 3, 0.2),
    (5, 5, 0.05),
    # seconds, errors of one kind, their share beyond the usual one: a server has many clients, and perhaps only one of
    # them is impacted
)
_REPLIES, _TIMES = 2, 3.0
#: Of an episode's facts: with a code after it, the errors of that code in the history at the beginning.
_BEFORE = "before"


def judge(watch: ServiceWatch, second: Second) -> None:
    if watch.first_ns:
        _decisions(watch, second)
        _brokers(watch, second)
        _alarmed(watch, second)
    _answers(watch, second)


def _decisions(watch: ServiceWatch, second: Second) -> None:
    lately = watch.series.recent("errors", second.slots, second.at, max(_WINDOWS))
    slots, skip = second.slots[np.nansum(lately, axis=1) >= _LEAST], max(_WINDOWS)
    if not len(slots):
        return
    before, failed = (
        np.nansum(watch.series.history(metric, slots, second.at, skip), axis=1) for metric in ("n", "errors")
    )
    warm = watch.series.seen("n", slots, second.at, skip) >= watch.config.warm_s
    usual = (failed + 1) / (before + 1)
    for s in _WINDOWS:
        n, errors = (np.nansum(watch.series.recent(metric, slots, second.at, s), axis=1) for metric in ("n", "errors"))
        share = errors / np.maximum(n, 1)
        bad = warm & (errors >= _LEAST) & (share >= usual + _SHARE) & (_chance(share, usual, n) < _CHANCE)
        bad &= ~np.isnan(watch.series.last("errors", slots, second.at)) & np.isin(slots, list(watch.first_ns))
        for i in np.flatnonzero(bad):
            _open(watch, int(slots[i]), "share", second.at, float(share[i]), float(failed[i] / max(before[i], 1)))


def _answers(watch: ServiceWatch, second: Second) -> None:
    """The most unusual error of each server."""
    lately = watch.series.recent("errors", second.slots, second.at, max(_WINDOWS))
    for slot in second.slots[np.nansum(lately, axis=1) >= _LEAST].tolist():
        at, skip = np.array([slot]), max(_WINDOWS)
        history = watch.series.history("n", at, second.at, skip)
        before, known_s = float(np.nansum(history)), int(np.count_nonzero(~np.isnan(history)))
        if known_s < watch.config.warm_s:
            continue
        lasts = watch.active.get((SYMPTOM.name, slot))
        facts = lasts.facts if lasts is not None and lasts.metric == "answers" else None
        for s, least, much in _ANSWERED:
            n = float(np.nansum(watch.series.recent("n", at, second.at, s)))
            for one in watch.codes.lately(slot, second.at, s):
                usually_n = one.before if facts is None else facts.get(f"{_BEFORE} {one.code}", 0.0)
                share, usual = one.n / max(n, 1), (usually_n + 1) / (before + 1)
                chance = _chance(np.array([share]), np.array([usual]), np.array([n]))[0]
                more = one.n >= max(
                    least, _TIMES * s * usually_n / known_s
                )  # if everything else stops, the usual errors are a larger share
                if more and share >= usual + much and chance < _CHANCE:
                    watch.first_ns[slot] = one.first_ns
                    usually = usually_n / max(before, 1)
                    worse = lasts is not None and share > lasts.value
                    _open(watch, slot, "answers", second.at, share, usually)
                    episode = watch.active[SYMPTOM.name, slot]
                    if worse or lasts is None:
                        episode.words, episode.base = one.code, usually
                    if lasts is None:
                        counts = watch.codes.before(slot, second.at - s)
                        episode.facts |= {f"{_BEFORE} {code}": float(count) for code, count in counts.items()}
                    break


def _chance(share: np.ndarray, usual: np.ndarray, n: np.ndarray) -> np.ndarray:
    """An upper bound of the logarithm of the probability of such a share or a larger one."""
    q = np.clip(share, 1e-9, 1 - 1e-9)
    p = np.clip(usual, 1e-9, 1 - 1e-9)
    apart = q * np.log(q / p) + (1 - q) * np.log((1 - q) / (1 - p))
    return np.where(q > p, -n * apart, 0.0)


def _brokers(watch: ServiceWatch, second: Second) -> None:
    slots = second.slots[watch.series.last("replies", second.slots, second.at) >= _REPLIES]
    if not len(slots):
        return
    replies = watch.series.last("replies", slots, second.at)
    before = watch.series.history("replies", slots, second.at, 1)
    seen = np.count_nonzero(~np.isnan(before), axis=1) >= watch.config.warm_s
    most = np.nan_to_num(quantile(before, 1.0))
    for i in np.flatnonzero(seen & (replies > _TIMES * most)):
        _open(watch, int(slots[i]), "replies", second.at, float(replies[i]), float(most[i]))


def _alarmed(watch: ServiceWatch, second: Second) -> None:
    """An alarm needs no usual value: without one, a broker has none."""
    alarms = watch.series.last("alarms", second.slots, second.at)
    for i in np.flatnonzero(alarms > 0):
        _open(watch, int(second.slots[i]), "alarms", second.at, float(alarms[i]), 0.0)


def _open(watch: ServiceWatch, slot: int, metric: str, second: int, worst: float, usual: float) -> None:
    if watch.extended(SYMPTOM.name, slot, second, worst):
        return
    at = watch.first_ns[slot]
    start_ns = at - SECOND if metric == "replies" else at  # a poll reports the time since the previous one
    its = {"metric": metric, "base": usual, "recurs_by": metric, "start_ns": start_ns}
    watch.begin(SYMPTOM.name, slot, second, worst, 1, **its)


def clause(episode: Episode) -> Words:
    if episode.metric == "replies":
        return render(
            "{broker} refused {n} within a second {when}",
            broker=opening(episode.subject),
            n=value(episode.value, "command"),
            when=when(episode),
        )
    if episode.metric == "alarms":
        return render("{broker} blocked its publishers {when}", broker=opening(episode.subject), when=when(episode))
    if episode.metric == "answers":
        return render(
            "Up to {share} of the answers of {server} were errors ({code}) (usually {base}) {when}",
            share=value(episode.value, "ratio"),
            server=episode.subject,
            code=episode.words,
            base=value(episode.base, "ratio") if episode.base else "none",
            when=when(episode),
        )
    return render(
        "{limiter} failed in up to {share} of decisions (usually {base}) {when}",
        limiter=opening(episode.subject),
        share=value(episode.value, "ratio"),
        base=value(episode.base, "ratio") if episode.base else "none",
        when=when(episode),
    )


SYMPTOM = Symptom(
    "service_errors",
    25,
    "decisions of a limiter fail, a broker refuses service, or a server answers with errors, more often than usual",
    "a limiter of a process, a broker, or a server's ip:port",
    "",
    "limiter_decision",
    READS,
    clause,
    "see the errors: the program's log; tickscope queues; tickscope query service_answer --group-by code",
    ServiceWatch,
    judge,
    measured={"share": "result", "answers": "count", "replies": "errors", "alarms": "errors"},
    tables={"answers": "service_answer", "replies": "queue_lag", "alarms": "queue_lag"},
    adopted=False,
)
