"""Peers with lost segments, for whose retransmission their clients wait."""

from __future__ import annotations

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.peers import RATIO, READS, RESENT_NS, PeerWatch
from agent.correlate.series import quantile
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Second
from agent.correlate.words import Words, measured, render, when

_WITHIN_S, _TIMES = 5, 2
_SLOWER_US = 20_000.0  # slow acknowledgements cause retransmissions without losses


def judge(watch: PeerWatch, second: Second) -> None:
    """Bad: round trips were no slower than usual, but in two of the last five seconds segments were retransmitted, and
    a process waited for the peer as long as that takes, and five times as long as any process did in nine of ten usual
    seconds, or as it did itself. In usual seconds nothing is retransmitted, and no process waits that much longer than
    it usually does.
    """
    series, at, slots = watch.series, second.at, second.slots
    tried = (series.last("again", slots, at) > 0) | (series.last("dark", slots, at) > 0)
    slots = slots[tried & (series.last("wait_ns", slots, at) > RESENT_NS)]
    if not len(slots):
        return
    metrics = "again", "wait_ns", "late_ns"
    again, waits, late = (series.recent(metric, slots, at, _WITHIN_S) for metric in metrics)
    before, usual, seldom = (series.baseline(metric, slots, at, _WITHIN_S) for metric in metrics)
    longer = waits > np.maximum(RESENT_NS, RATIO * usual.high)[:, None]
    longer |= (late > 0) & (seldom.high == 0)[:, None]
    dark = series.recent("dark", slots, at, _WITHIN_S) > 0
    bad = ((again > 0) | dark) & longer
    floor = series.recent("floor_us", slots, at, _WITHIN_S)
    floor[np.isnan(floor).all(axis=1)] = 0  # the peer does not respond: no round trip at all
    slower = quantile(floor, 0.5) > RATIO * series.baseline("floor_us", slots, at, _WITHIN_S).median + _SLOWER_US
    lasting = (bad.sum(axis=1) >= _TIMES) & (usual.seen >= watch.config.warm_s) & (before.high == 0) & ~slower
    for i in np.flatnonzero(lasting & bad[:, -1]):
        slot, worst = int(slots[i]), float(np.nanmax(np.where(bad[i], waits[i], 0)))
        episode = watch.extended(SYMPTOM.name, slot, at, worst)
        if episode is None:
            first = at - _WITHIN_S + 1 + int(np.argmax(bad[i]))
            its = {"metric": "wait_ns", "unit": SYMPTOM.unit, "start_ns": first * SECOND}
            episode = watch.begin(SYMPTOM.name, slot, at, worst, at - first + 1, base=float(usual.median[i]), **its)
        episode.count += int(again[i, -1])
        episode.facts["dark"] = max(episode.facts.get("dark", 0.0), float(dark[i].sum()))


def clause(episode: Episode) -> Words:
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
    "clients of a peer repeatedly wait for retransmitted segments",
    "a peer",
    "ns",
    "syscall_latency",
    READS,
    clause,
    "check which peers: tickscope query tcp_retransmit --group-by peer",
    PeerWatch,
    judge,
    measured={"wait_ns": "max_ns"},
)
