"""A process takes longer than usual to answer on a port, whatever its clients and its protocol.

It is not visible which requests are alike, so a single slow one may just be of another kind: it is reported only with a
known cause. Without a cause several are needed: half of a second's requests, or one in ten for seconds, are slow where
they never were; or several wait at the same time (and did not do so all the time). If nothing at all is answered, a
wait of twice the third longest of two minutes is enough. If nothing was answered in these minutes, as where the agent
is started during the fault, there is no usual time: a wait of seconds counts, with a known cause only, since a long
poll looks alike; connections that nobody accepts count without one, too.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from agent.correlate.answers import POLLS, AnswerWatch
from agent.correlate.catalogue import Symptom
from agent.correlate.episode import UNACCEPTED, UNANSWERED, UNTAKEN, Episode
from agent.correlate.outliers import bars
from agent.correlate.served import READS
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Rise, Second
from agent.correlate.words import Words, measured, render, when

_UNUSUAL_NS, _KNOWN_S = 5 * SECOND, 120  # a wait on a port where nothing was answered for so long
_NOTED_S = 10  # an answer that is recorded later (the client was idle) is ignored
_SEEN = 100  # requests in the last two minutes that a baseline needs
_SLOW, _LAST_S = (
    5,
    3,
)  # so many requests in so many seconds, if the median of each second was slow; or so many that wait at the same time
_BEFORE_S = 60
_RARE_S, _RARELY, _RARE_LEAST = (
    5,
    0.3,
    3,
    # ... or in so many seconds less than this share of the usual requests is answered, and so many of the seconds have
    # slow answers: the clients wait for each answer
)

_DID = {UNANSWERED: "answered nothing for", UNACCEPTED: "accepted no connection for"}


def judge(watch: AnswerWatch, second: Second) -> None:
    _held(watch, second)
    _nothing(watch, second)
    for metric, least, ratio in (
        ("med_ns", watch.config.latency_rise_ns, 3.0),
        ("high_ns", watch.config.tail_rise_ns, 5.0),
    ):
        rise = Rise(SYMPTOM.name, metric, SYMPTOM.unit, float(least), ratio, instead="max_ns")
        watch.rises(rise, second, partial(_worse, watch, second, _known(watch, second)))


def _worse(watch: AnswerWatch, second: Second, known: np.ndarray, some: np.ndarray) -> np.ndarray:
    """The ports of this second with a lasting rise that counts."""
    slots, lasts = second.slots[some], watch.config.persist_s
    longest = np.nanmax(watch.series.recent("max_ns", slots, second.at, lasts), axis=1, initial=0)
    since = second.at - lasts + 1 - longest // SECOND  # answered requests had waited before
    return np.asarray(known[some] & ~watch.by_design(slots, second.at, since))


def _known(watch: AnswerWatch, second: Second) -> np.ndarray:
    before = watch.series.history("n", second.slots, second.at, 1)
    return np.asarray(np.nansum(before, axis=1) >= _SEEN)


def _held(watch: AnswerWatch, second: Second) -> None:
    worst = watch.series.recent("max_ns", second.slots, second.at, 1)[:, 0]
    for i in np.flatnonzero((worst > watch.config.stall_ns) & _known(watch, second)):
        _one(watch, second, int(second.slots[i]), float(worst[i]))


def _nothing(watch: AnswerWatch, second: Second) -> None:
    """Ports on which requests wait, and none was answered as far back as is known."""
    at, series = second.at, watch.series
    slots = second.slots[series.recent("max_ns", second.slots, at, 1)[:, 0] >= _UNUSUAL_NS]
    for slot in slots[np.nansum(series.recent("n", slots, at, _KNOWN_S), axis=1) == 0].tolist():
        begun, over = watch.when(slot)
        episode = watch.active.get((SYMPTOM.name, slot))
        metric = UNACCEPTED if watch.unaccepted(slot) else UNANSWERED
        if episode is None:
            if not watch.by_design(np.array([slot]), at, np.array([begun // SECOND]))[0]:
                its = {"metric": metric, "unit": SYMPTOM.unit, "start_ns": begun, "end_ns": over}
                watch.begin(SYMPTOM.name, slot, at, float(over - begun), 1, bar=float(_UNUSUAL_NS), **its)
        elif episode.stuck:
            watch.extend(episode, at, float(over - begun), over)
            episode.metric = metric if metric == UNACCEPTED else episode.metric


def _one(watch: AnswerWatch, second: Second, slot: int, value: float) -> None:
    """The slowest answer of a port in that second, or the longest wait for one."""
    begun, over = watch.when(slot)
    if over < (second.at - _NOTED_S) * SECOND:
        return
    at, series = np.array([slot]), watch.series
    # a growing wait must not raise its own threshold
    skip = min(max(_LAST_S, second.at - begun // SECOND + 1), _BEFORE_S)
    usual = series.baseline("max_ns", at, second.at, skip)
    if usual.seen[0] < watch.config.warm_s:
        return
    bar = bars(series.history("max_ns", at, second.at, skip))
    n, halves, waiting = (series.recent(metric, at, second.at, _LAST_S)[0] for metric in ("n", "med_ns", "waiting"))
    rate = series.baseline("n", at, second.at, skip).median[0]
    # Only some waiting requests are sampled. If a server that answers all the time answers nothing for two seconds, all
    # its clients wait.
    nobody = bool((n[-2:] == 0).all()) and np.nanmax(waiting[-2:]) >= 2
    still = n[-1] == 0 and rate >= _SLOW and (waiting[-1] >= _SLOW or (waiting[-1] > 0 and nobody))
    least = max(float(watch.config.stall_ns), float((bar.often if still else bar.sure)[0]))
    if not value > least:
        return
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
        return
    its = {"metric": metric, "unit": SYMPTOM.unit, "recurs_by": "max_ns", "start_ns": begun, "end_ns": over}
    base = float(np.nan_to_num(usual.median[0]))
    watch.begin(SYMPTOM.name, slot, second.at, value, 1, base=base, bar=least, **its)


def clause(episode: Episode) -> Words:
    if episode.stuck:
        return render(
            "{who} {did} {took} {when}",
            who=episode.subject,
            did=_DID[episode.metric],
            took=measured(episode.value, episode.unit),
            when=when(episode),
        )
    return render(
        "{who} took {share}{took} to answer{base} {when}",
        who=episode.subject,
        share={"med_ns": "for half of the requests ", "high_ns": "for one request in ten "}.get(
            episode.metric, "up to "
        ),
        took=measured(episode.value, episode.unit),
        base=render(" (usually {base})", base=measured(episode.base, episode.unit))
        if episode.base
        else " (usually next to nothing)",
        when=when(episode),
    )


SYMPTOM = Symptom(
    "service_latency",
    48,
    "a process takes far longer than usual to answer on a port; a single slow answer is reported"
    " only with a known cause",
    "a port that a process serves",
    "ns",
    "service_latency",
    {**READS, **POLLS},
    clause,
    "see what it waits for: tickscope query slow_syscall, cpu_wait; how long it takes: tickscope query service_latency",
    AnswerWatch,
    judge,
    inside=True,
    alone=("max_ns", UNANSWERED, UNTAKEN),
    shared=True,
    tables={UNACCEPTED: "socket_queue"},
    measured={
        UNACCEPTED: "queue",
        UNANSWERED: "max_ns",
        "max_ns": "max_ns",
        "half_ns": "max_ns",
        "med_ns": "p50_ns",
        "high_ns": "p90_ns",
    },
)
