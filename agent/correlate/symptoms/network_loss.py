"""Peers with lost segments, for whose retransmission their clients wait."""

from __future__ import annotations

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.peers import RATIO, READS, RESENT_NS, PeerWatch
from agent.correlate.series import quantile
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Second
from agent.correlate.words import Words, measured, render, value, when

_WITHIN_S, _TIMES = 5, 2
#: Retransmitted segments that need no wait to be seen: as a share of the second, and how many; in so many of the last
#: seconds, and how many in all of them. A connection that sends in bulk through a full queue loses 1 % or less.
_SHARE, _FEW, _OFTEN, _MANY = 0.05, 2, 4, 10
_SLOWER_US = 20_000.0  # slow acknowledgements cause retransmissions without losses


_METRICS = {"ns": "wait_ns", "ratio": "again_share"}  # by unit


def judge(watch: PeerWatch, second: Second) -> None:
    """Bad: round trips were no slower than usual, and one of:
    - in two of the last five seconds segments were retransmitted, and a process waited for the peer as long as that
      takes, and five times as long as any process did in nine of ten usual seconds, or as it did itself. In nine of ten
      usual seconds nothing is retransmitted;
    - in four of them a twentieth of the segments was retransmitted, and in half of the usual seconds none. A program
      that waits for many connections at once, or for a time, has no wait for one peer.
    """
    series, at, slots = watch.series, second.at, second.slots
    again, dark = series.last("again", slots, at) > 0, series.last("dark", slots, at) > 0
    _waited(watch, at, slots[(again | dark) & (series.last("wait_ns", slots, at) > RESENT_NS)])
    _many(watch, at, slots[series.last("again_share", slots, at) >= _SHARE])


def _waited(watch: PeerWatch, at: int, slots: np.ndarray) -> None:
    if not len(slots):
        return
    series = watch.series
    again, waits, late = (series.recent(metric, slots, at, _WITHIN_S) for metric in ("again", "wait_ns", "late_ns"))
    usual, seldom = (series.baseline(metric, slots, at, _WITHIN_S) for metric in ("wait_ns", "late_ns"))
    longer = waits > np.maximum(RESENT_NS, RATIO * usual.high)[:, None]
    longer |= (late > 0) & (seldom.high == 0)[:, None]
    dark = series.recent("dark", slots, at, _WITHIN_S) > 0
    bad = ((again > 0) | dark) & longer
    before = watch.series.baseline("again", slots, at, _WITHIN_S)
    lasting = (bad.sum(axis=1) >= _TIMES) & (before.high == 0) & _no_slower(watch, slots, at)
    for i in np.flatnonzero(lasting & bad[:, -1]):
        episode = _extended(watch, int(slots[i]), at, bad[i], waits[i], SYMPTOM.unit, float(usual.median[i]))
        episode.count += int(again[i, -1])
        episode.facts["dark"] = max(episode.facts.get("dark", 0.0), float(dark[i].sum()))


def _many(watch: PeerWatch, at: int, slots: np.ndarray) -> None:
    if not len(slots):
        return
    again, share = (watch.series.recent(metric, slots, at, _WITHIN_S) for metric in ("again", "again_share"))
    bad = (again >= _FEW) & (share >= _SHARE)
    before = watch.series.baseline("again", slots, at, _WITHIN_S)
    lasting = (bad.sum(axis=1) >= _OFTEN) & (np.nansum(again, axis=1) >= _MANY) & (before.median == 0)
    lasting &= _no_slower(watch, slots, at)
    for i in np.flatnonzero(lasting & bad[:, -1]):
        active = watch.active.get((SYMPTOM.name, int(slots[i])))
        if active is None or active.unit == "ratio":
            _extended(watch, int(slots[i]), at, bad[i], share[i], "ratio", 0.0).count += int(again[i, -1])


def _no_slower(watch: PeerWatch, slots: np.ndarray, at: int) -> np.ndarray:
    """Whether round trips are no slower than usual, which is known."""
    usual = watch.series.baseline("floor_us", slots, at, _WITHIN_S)
    floor = watch.series.recent("floor_us", slots, at, _WITHIN_S)
    floor[np.isnan(floor).all(axis=1)] = 0  # the peer does not respond: no round trip at all
    return np.asarray((usual.seen >= watch.config.warm_s) & (quantile(floor, 0.5) <= RATIO * usual.median + _SLOWER_US))


def _extended(
    watch: PeerWatch, slot: int, at: int, bad: np.ndarray, values: np.ndarray, unit: str, base: float
) -> Episode:
    """The episode of the peer, with the worst of the last seconds; a new one if there is none."""
    first = at - _WITHIN_S + 1 + int(np.argmax(bad))
    worst = float(np.nanmax(np.where(bad, values, 0)))
    its = {"metric": _METRICS[unit], "unit": unit, "start_ns": first * SECOND, "base": base}
    return watch.extended(SYMPTOM.name, slot, at, worst) or watch.begin(
        SYMPTOM.name, slot, at, worst, at - first + 1, **its
    )


def clause(episode: Episode) -> Words:
    if episode.unit == "ratio":
        return render(
            "Up to {share} of the TCP segments to {peer} and from it had to be retransmitted (usually none) {when}",
            share=value(episode.value, "ratio"),
            peer=episode.subject,
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
    measured={"wait_ns": "max_ns", "again_share": "count"},
    tables={"again_share": "tcp_retransmit"},
)
