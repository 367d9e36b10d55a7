"""Peers with round trips that take far longer than usual."""

from __future__ import annotations

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.peers import READS, PeerWatch
from agent.correlate.series import Baseline
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Second
from agent.correlate.words import Words, render, span, when

_LAST_S = 3
_RATIO, _SPREADS = 5.0, 6.0
_LEAST_US = 20_000.0
_HELD_US = (
    210_000.0,
    60_000.0,
)  # upper limits of the delayed acknowledgement of a peer elsewhere, and on this host (Linux)


def judge(watch: PeerWatch, second: Second) -> None:
    """Bad: for three seconds even the shortest RTT, or half of the connects, took five times as long as usual, and a
    process waited that long.
    """
    series, at, slots = watch.series, second.at, second.slots
    with np.errstate(invalid="ignore"):
        slots = slots[np.fmax(*(series.last(m, slots, at) for m in ("floor_us", "connect_us"))) > _LEAST_US]
    if not len(slots):
        return
    waits = series.recent("wait_ns", slots, at, _LAST_S) / 1e3
    held = np.where(series.last("here", slots, at) > 0, _HELD_US[1], _HELD_US[0])
    found: dict[int, tuple[float, float]] = {}
    for metric, least in (("floor_us", held), ("connect_us", np.full(len(slots), _LEAST_US))):
        usual = series.baseline(metric, slots, at, _LAST_S)
        now = series.recent(metric, slots, at, _LAST_S)
        with np.errstate(invalid="ignore"):
            bad = (now > _bar(usual, least)[:, None]) & (waits >= 0.5 * now)
        for i in np.flatnonzero(bad.all(axis=1) & (usual.seen >= watch.config.warm_s)).tolist():
            found.setdefault(i, (float(now[i].max()), float(usual.median[i])))
    for i, (worst, base) in sorted(found.items()):
        slot = int(slots[i])
        if not watch.extended(SYMPTOM.name, slot, at, worst * 1e3):
            its = {"unit": SYMPTOM.unit, "base": base * 1e3, "start_ns": (at - _LAST_S + 1) * SECOND}
            watch.begin(SYMPTOM.name, slot, at, worst * 1e3, _LAST_S, metric="rtt", **its)


def _bar(usual: Baseline, least: np.ndarray) -> np.ndarray:
    return np.asarray(
        np.maximum(
            usual.median + np.maximum(least, _SPREADS * usual.spread), np.maximum(_RATIO * usual.median, usual.high)
        )
    )


def clause(episode: Episode) -> Words:
    return render(
        "Round trips to {peer} took {took} (usually {base}) {when}",
        peer=episode.subject,
        took=span(episode.value),
        base=span(episode.base),
        when=when(episode),
    )


SYMPTOM = Symptom(
    "network_rtt",
    86,
    "round trips to a peer take far longer than usual",
    "a peer",
    "ns",
    "tcp_rtt",
    READS,
    clause,
    "see to which peers: tickscope query tcp_rtt --group-by peer",
    PeerWatch,
    judge,
    measured={"rtt": "rtt_min_us"},
)
