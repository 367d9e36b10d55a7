"""Consumer groups that fall behind, or stop."""

from __future__ import annotations

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import UNTAKEN, Episode
from agent.correlate.outlier_bars import bars
from agent.correlate.queues import DELIVERED, READS, QueueWatch
from agent.correlate.series import quantile
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Rise, Second
from agent.correlate.words import Words, measured, render, value, when

_LATE = {
    "age_s": "its oldest undelivered message was {value} old",
    "pending_s": "its oldest unacknowledged message was {value} old",
    "idle_s": "one of its consumers was idle for {value}",
    "lag": "its lag was {value}",
}


#: Ages, and the number of messages concerned; the first one says more: a group that reads nothing, before a message
#: that one consumer holds.
_AGES = (("age_s", "lag"), ("pending_s", "pending"))
#: A consumer that is served at random misses so many messages in a row once in 10^8 times.
_TURNS, _IDLE = 20.0, 10.0
_ALIKE_NS = 10 * SECOND  # if the waits of two messages began within this time, they have one cause
#: No message was taken for so long since a queue is known, which is at most so long; and since so soon after the start.
_UNTAKEN_S, _KNOWN_S, _AT_START_S = 10, 120, 20
_FLOOD = 3.0  # times the maximum that arrived in any remembered second


def judge(watch: QueueWatch, second: Second) -> None:
    """Messages that wait far longer than usual, at once; lasting rises of the ages of its oldest messages, of the lag
    if no age is known, no progress at all, and a queue that is deleted while clients ask for it. Where the agent is
    started meanwhile nothing is usual: that no message is taken counts with a known cause only.
    """
    _late(watch, second)
    _untaken(watch, second)
    _idle(watch, second)
    _gone(watch, second)
    _lasting(watch, second)


def _late(watch: QueueWatch, second: Second) -> None:
    config = watch.config
    least = {"age_s": min(config.flooded_s, config.later_s), "pending_s": config.later_s}
    old = [_grows(watch, metric, least[metric], second.at) for metric, _ in _AGES]  # no threshold is below that
    slots = watch.fresh[np.logical_or(*old)]
    if not len(slots):
        return
    arrived = watch.series.history("in", slots, second.at, 5)
    flooded = watch.series.recent("in", slots, second.at, 1)[:, 0] > _FLOOD * quantile(arrived, 1.0)
    took_s = watch.series.last("poll_s", slots, second.at)  # a server that takes long may make an age so much longer
    for metric, count in _AGES:
        bar = bars(watch.series, metric, count, slots, second.at, config.warm_s)
        before, now = watch.series.recent(metric, slots, second.at, 2).T
        lasting = np.where(flooded & (metric == "age_s"), config.flooded_s, config.later_s)
        at_once, soon = (np.maximum(limit, bar) + took_s for limit in (config.late_s, lasting))
        late = (now > at_once) | ((np.fmin(before, now) > soon) & (now > before))
        for i in np.flatnonzero(late):
            _open(watch, int(slots[i]), metric, second.at, float(now[i]), float(soon[i]))


def _untaken(watch: QueueWatch, second: Second) -> None:
    """Queues with consumers of which no message was taken since the agent came, while messages arrived."""
    at, series = second.at, watch.series
    slots = watch.fresh[(series.last("stuck", watch.fresh, at) > 0) & (series.last("consumers", watch.fresh, at) > 0)]
    slots = slots[[watch.known_since.get(slot, at) - watch.began < _AT_START_S for slot in slots.tolist()]]
    if not len(slots):
        return
    taken, arrived = (series.recent(metric, slots, at, _KNOWN_S) for metric in ("out", "in"))
    still = (np.nansum(taken, axis=1) == 0) & (np.nansum(arrived, axis=1) > 0) & ~np.isnan(taken).all(axis=1)
    for slot in slots[still].tolist():
        episode, lasted_s = watch.active.get(watch.place(SYMPTOM.name, slot, UNTAKEN)), at + 1 - watch.known_since[slot]
        if episode is not None:
            watch.extend(episode, at, float(lasted_s))
        elif _UNTAKEN_S <= lasted_s < _KNOWN_S:
            its = {"metric": UNTAKEN, "unit": SYMPTOM.unit, "start_ns": (at + 1 - lasted_s) * SECOND}
            watch.begin(SYMPTOM.name, slot, at, float(lasted_s), 1, bar=float(_UNTAKEN_S), **its)


def _grows(watch: QueueWatch, metric: str, least: float, at: int) -> np.ndarray:
    before, now = watch.series.recent(metric, watch.fresh, at, 2).T
    return np.asarray((now > watch.config.late_s) | ((np.fmin(before, now) > least) & (now > before)))


def _idle(watch: QueueWatch, second: Second) -> None:
    """One consumer no longer asks for messages, while others get message after message, and no other consumer replaced
    it.
    """
    at, series = second.at, watch.series
    slots = watch.fresh[series.last("idle_s", watch.fresh, at) > watch.config.idle_s]
    if not len(slots):
        return
    idle, out, count, took_s = (series.last(metric, slots, at) for metric in ("idle_s", "out", "consumers", "poll_s"))
    usual, members = (series.baseline(metric, slots, at, 5) for metric in ("idle_s", "consumers"))
    taken = series.baseline("out", slots, at, 5).median
    turns = (idle - took_s) * np.minimum(out, taken) / count
    bar = np.maximum(watch.config.idle_s, _IDLE * usual.high) + took_s
    bad = (idle > bar) & (turns >= _TURNS)
    bad &= (count > 1) & (count <= members.median) & (out > 0.5 * taken) & (usual.seen >= watch.config.warm_s)
    for i in np.flatnonzero(bad):
        _open(watch, int(slots[i]), "idle_s", at, float(idle[i]), float(bar[i]))


def _gone(watch: QueueWatch, second: Second) -> None:
    """A deleted queue has no lag, but its messages are not done: what was wrong with it goes on."""
    slots = watch.polled[watch.series.last("gone", watch.polled, second.at) > 0]
    for slot in slots.tolist():
        asked_for = bool(watch.series.last("gone", np.array([slot]), second.at)[0] > 1)
        here, one = (watch.place(SYMPTOM.name, slot, metric) for metric in ("gone", "pending_s"))
        episode = watch.active.get(here)
        if episode is None and one in watch.active:
            episode = watch.active[here] = watch.active.pop(one)
        if episode is not None:
            watch.extend(episode, second.at, episode.value)
        elif asked_for:
            episode = watch.describe(SYMPTOM.name, slot)
            episode.start_ns = second.at * SECOND
            episode.metric = "gone"
            watch.open(episode, second.at, 1.0, 1)
        if asked_for and episode is not None:
            episode.metric, episode.unit, episode.recurs_by = "gone", "", ""
            episode.value, episode.base, episode.bar = 1.0, 0.0, 0.0


def _open(watch: QueueWatch, slot: int, metric: str, second: int, age_s: float, bar: float) -> None:
    """Opens an episode that starts when the message began to wait, or extends an active one."""
    at = np.array([slot])
    polled = second + float(watch.series.recent("at_s", at, second, 1)[0, 0])
    start_ns = int((polled - age_s) * SECOND)
    here, theirs = (
        watch.place(SYMPTOM.name, slot, m) for m in (metric, "age_s" if metric in DELIVERED else "pending_s")
    )
    episode, other = watch.active.get(here), watch.active.get(theirs)
    if episode is not None and metric == episode.metric:
        watch.extend(episode, second, age_s)
    elif episode is not None and episode.metric == "pending_s" and episode.last_bad < second:
        watch.extend(episode, second, age_s)
        episode.metric, episode.value, episode.bar = metric, age_s, bar
    elif other is not None and metric not in DELIVERED and start_ns - other.start_ns < _ALIKE_NS:
        del watch.active[theirs]  # first one consumer was seen to hold a message, then all of them
        watch.active[here] = other
        watch.extend(other, second, age_s)
        other.metric, other.value, other.bar = metric, age_s, bar
    if episode is not None or (other is not None and (metric in DELIVERED or other.metric == metric)):
        return
    episode = watch.describe(SYMPTOM.name, slot)
    episode.metric, episode.unit, episode.bar, episode.recurs_by = metric, SYMPTOM.unit, bar, metric
    episode.words = (watch.idle if metric == "idle_s" else watch.holders).get(slot, "")
    usual = float(watch.series.baseline(metric, at, second, 2).median[0])
    episode.base = 0.0 if np.isnan(usual) else usual
    episode.start_ns = start_ns
    watch.open(episode, second, age_s, 1)


def _lasting(watch: QueueWatch, second: Second) -> None:
    config = watch.config
    ages = watch.series.recent("age_s", second.slots, second.at, config.persist_s)
    unaged = np.isnan(ages).all(axis=1)
    for metric, unit, least, ratio in (
        ("age_s", "s", config.age_rise_s, 2.0),
        ("pending_s", "s", config.pending_rise_s, 2.0),
        ("lag", "messages", config.lag_rise, 3.0),
        ("stuck", "", 0.5, 1.0),
    ):
        allowed = unaged.copy() if metric == "lag" else np.ones(len(unaged), np.bool_)
        if watch.active:
            other, _ = watch.place(SYMPTOM.name, 0, "age_s" if metric in DELIVERED else "pending_s")
            allowed &= ~np.isin(second.slots, [slot for name, slot in watch.active if name == other])
        watch.rises(Rise(SYMPTOM.name, metric, unit, least, ratio), second, allowed.__getitem__)


def clause(episode: Episode) -> Words:
    if episode.metric == "stuck":
        return render(
            "{queue} made no progress while messages arrived {when}", queue=episode.subject, when=when(episode)
        )
    if episode.metric == UNTAKEN:
        return render(
            "No message of {queue} was taken for {took} while others arrived {when}",
            queue=episode.subject,
            took=measured(episode.value, episode.unit),
            when=when(episode),
        )
    if episode.metric == "gone":
        return render("{queue} was deleted while clients used it {when}", queue=episode.subject, when=when(episode))
    worst, base = (
        (value(episode.value, "message"), value(episode.base))
        if episode.metric == "lag"
        else (measured(episode.value, episode.unit), measured(episode.base, episode.unit))
    )
    if episode.metric == "idle_s":
        before = render(" (usually {base})", base=base) if episode.base else ""
        return render(
            "One consumer of {queue} was idle for {worst}{before} {when}",
            queue=episode.subject,
            worst=worst,
            before=before,
            when=when(episode),
        )
    usually = render("(usually {base})", base=base) if episode.base else "(usually none waits)"
    return render(
        "{queue} fell behind: {late} {usually} {when}",
        queue=episode.subject,
        late=render(_LATE[episode.metric], value=worst),
        usually=usually,
        when=when(episode),
    )


SYMPTOM = Symptom(
    "queue_lag",
    40,
    "a consumer group falls behind, or makes no progress",
    "a consumer group of a queue",
    "s",
    "queue_lag",
    READS,
    clause,
    "see whether consumers are there and acknowledge: tickscope queues",
    QueueWatch,
    judge,
    alone=(UNTAKEN,),
    measured={
        UNTAKEN: "out_per_s",
        "age_s": "oldest_undelivered_s",
        "pending_s": "oldest_pending_s",
        "idle_s": "idle_s",
        "lag": "lag_messages",
        "stuck": "status",
        "gone": "status",
    },
)
