"""Peers with lost segments, for whose retransmission their clients wait."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.peers import RATIO, READS, RESENT_NS, WITHIN_S, PeerWatch
from agent.correlate.series import quantile
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Second
from agent.correlate.words import Words, measured, render, value, when

_TIMES = 2
#: Lost segments that need no wait to be seen: how many in a second, in so many of the last seconds; their share, and
#: how many, in all of these. A connection that sends in bulk through a full queue loses 1 % or less.
_FEW, _OFTEN, _SHARE, _MANY = 2, 4, 0.05, 10
_SLOWER_US = 20_000.0  # slow acknowledgements cause retransmissions without losses


_UNITS = {"wait_ns": "ns", "lost_share": "ratio"}


@dataclass(frozen=True)
class PeerLoss:
    """first: the first bad second; worst: of the bad ones, in the metric's unit."""

    metric: str
    first: int
    worst: float
    base: float


def judge(watch: PeerWatch, second: Second) -> None:
    """Bad: round trips were no slower than usual, and one of:
    - in two of the last five seconds segments were retransmitted, and a process waited for the peer as long as that
      takes, and five times as long as any process did in nine of ten usual seconds, or as it did itself. In nine of ten
      usual seconds nothing is retransmitted;
    - in four of them segments were retransmitted that had been lost, a twentieth of all, and in half of the usual
      seconds none. A program that waits for many connections at once, or for a time, has no wait for one peer.
    """
    series, at, slots = watch.series, second.at, second.slots
    again, dark = series.last("again", slots, at) > 0, series.last("dark", slots, at) > 0
    tried = slots[again | dark]
    found = by_share(watch, at, tried[series.last("lost", tried, at) >= _FEW])
    found |= by_wait(watch, at, tried[series.last("wait_ns", tried, at) > RESENT_NS])
    for slot, loss in found.items():
        episode = watch.active.get((SYMPTOM.name, slot))
        if episode is None:
            its = {"metric": loss.metric, "unit": _UNITS[loss.metric], "start_ns": loss.first * SECOND}
            episode = watch.begin(SYMPTOM.name, slot, at, loss.worst, at - loss.first + 1, base=loss.base, **its)
        else:
            watch.extend(episode, at, loss.worst if episode.metric == loss.metric else 0.0)
        one = np.array([slot])
        episode.count += int(series.last("again", one, at)[0])
        silent = np.count_nonzero(series.recent("dark", one, at, WITHIN_S) > 0)
        episode.facts["dark"] = max(episode.facts.get("dark", 0.0), float(silent))
        episode.facts["here"] = max(episode.facts.get("here", 0.0), float(series.last("here", one, at)[0] > 0))


def by_wait(watch: PeerWatch, at: int, slots: np.ndarray) -> dict[int, PeerLoss]:
    if not len(slots):
        return {}
    series = watch.series
    again, waits, late = (series.recent(metric, slots, at, WITHIN_S) for metric in ("again", "wait_ns", "late_ns"))
    before, usual, seldom = (series.baseline(metric, slots, at, WITHIN_S) for metric in ("again", "wait_ns", "late_ns"))
    longer = waits > np.maximum(RESENT_NS, RATIO * usual.high)[:, None]
    longer |= (late > 0) & (seldom.high == 0)[:, None]
    bad = ((again > 0) | (series.recent("dark", slots, at, WITHIN_S) > 0)) & longer
    lasting = bad[:, -1] & (bad.sum(axis=1) >= _TIMES) & (before.high == 0) & no_slower(watch, slots, at)
    return {
        int(slots[i]): PeerLoss("wait_ns", _first(bad[i], at), float(waits[i][bad[i]].max()), float(usual.median[i]))
        for i in np.flatnonzero(lasting)
    }


def by_share(watch: PeerWatch, at: int, slots: np.ndarray) -> dict[int, PeerLoss]:
    """Whether the receiver had a segment already may be known a second later, so sums count."""
    if not len(slots):
        return {}
    lost, sent = (watch.series.recent(metric, slots, at, WITHIN_S) for metric in ("lost", "sent"))
    bad = lost >= _FEW
    share = np.nansum(lost, axis=1) / np.maximum(np.nansum(sent, axis=1), 1)
    many = (share >= _SHARE) & (np.nansum(lost, axis=1) >= _MANY) & (np.nansum(sent, axis=1) > 0)
    before = watch.series.baseline("again", slots, at, WITHIN_S)
    lasting = many & (bad.sum(axis=1) >= _OFTEN) & (before.median == 0) & no_slower(watch, slots, at)
    return {
        int(slots[i]): PeerLoss("lost_share", _first(bad[i], at), min(1.0, float(share[i])), 0.0)
        for i in np.flatnonzero(lasting)
    }


def no_slower(watch: PeerWatch, slots: np.ndarray, at: int) -> np.ndarray:
    """Whether round trips are no slower than usual, which is known."""
    usual = watch.series.baseline("floor_us", slots, at, WITHIN_S)
    floor = watch.series.recent("floor_us", slots, at, WITHIN_S)
    floor[np.isnan(floor).all(axis=1)] = 0  # the peer does not respond: no round trip at all
    return np.asarray((usual.seen >= watch.config.warm_s) & (quantile(floor, 0.5) <= RATIO * usual.median + _SLOWER_US))


def _first(bad: np.ndarray, at: int) -> int:
    return at - WITHIN_S + 1 + int(np.argmax(bad))


def clause(episode: Episode) -> Words:
    if episode.metric == "lost_share":
        return render(
            "Up to {share} of the TCP segments to {peer}{back} were lost (usually none) {when}",
            share=value(episode.value, "ratio"),
            peer=episode.subject,
            back=" and from it" if episode.facts.get("here") else "",
            when=when(episode),
        )
    return render(
        "Clients of {peer} waited up to {took} (usually {base}) for retransmitted segments {when}",
        peer=episode.subject,
        took=measured(episode.value, episode.unit),
        base=measured(episode.base, episode.unit),
        when=when(episode),
    )


SYMPTOM = Symptom(
    "network_loss",
    84,
    "clients of a peer repeatedly wait for retransmitted segments, or many segments are retransmitted",
    "a peer",
    "ns",
    "syscall_latency",
    READS,
    clause,
    "check which peers: tickscope query tcp_retransmit --group-by peer",
    PeerWatch,
    judge,
    measured={"wait_ns": "max_ns"},
    tables={"lost_share": "tcp_retransmit"},
)
