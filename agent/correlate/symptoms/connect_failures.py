"""Connects to a peer fail, or connections to it are reset, far more often than usual."""

from __future__ import annotations

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.connects import READS, ConnectWatch
from agent.correlate.episode import Episode
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Second
from agent.correlate.words import Words, render, value, when

_WITHIN_S = 3
_LEAST, _SHARE = 3, 0.3  # so many, and this share of all connects, within that time or less


def judge(watch: ConnectWatch, second: Second) -> None:
    """Bad: three or more, and a third, of the connects of the last one, two or three seconds failed or were reset,
    while in nine of ten seconds none is.
    """
    series, at, slots = watch.series, second.at, second.slots
    slots = slots[np.fmax(*(series.last(m, slots, at) for m in ("failed", "broken"))) > 0]
    if not len(slots):
        return

    def lately(metric: str) -> np.ndarray:
        return np.cumsum(np.nan_to_num(series.recent(metric, slots, at, _WITHIN_S))[:, ::-1], axis=1)

    failed, broken, ok = lately("failed"), lately("broken"), lately("ok")
    if not _many(failed + broken, failed, ok)[1].any():
        return  # cheap test first: a baseline takes far longer
    usual, before = (series.baseline(metric, slots, at, _WITHIN_S) for metric in ("failed", "broken"))
    broken *= (before.seen >= watch.config.warm_s)[:, None]
    bad = failed + broken
    share, many = _many(bad, failed, ok)
    usually = usual.high + np.nan_to_num(before.high)
    for i in np.flatnonzero(many & (usually == 0) & (usual.seen >= watch.config.warm_s)):
        slot = int(slots[i])
        episode = watch.extended(SYMPTOM.name, slot, at, float(share[i]))
        if episode is None:
            seconds = 1 + int(np.argmax(bad[i] == bad[i, -1]))
            its = {"metric": "failed", "unit": SYMPTOM.unit, "start_ns": (at - seconds + 1) * SECOND}
            episode = watch.begin(SYMPTOM.name, slot, at, float(share[i]), seconds, **its)
        for fact, counts in (("failed", failed), ("broken", broken)):
            episode.facts[fact] = max(episode.facts.get(fact, 0.0), float(counts[i, -1]))


def _many(bad: np.ndarray, failed: np.ndarray, ok: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The share of failures, and whether it is too large."""
    share = np.where(bad >= _LEAST, bad / np.maximum(ok + failed, 1), 0.0).clip(max=1).max(axis=1)
    return share, (bad[:, 0] > 0) & (share >= _SHARE)


def clause(episode: Episode) -> Words:
    did = "failed" if episode.facts.get("failed", 0) >= episode.facts.get("broken", 0) else "were reset"
    return render(
        "Up to {share} of the connections to {peer} {did} {when}",
        share=value(episode.value, "ratio"),
        peer=episode.subject,
        did=did,
        when=when(episode),
    )


SYMPTOM = Symptom(
    "connect_failures",
    58,
    "connects to a peer fail, or connections to it are reset, much more often than usual",
    "a peer",
    "",
    "tcp_connect",
    READS,
    clause,
    "see how they fail: tickscope query tcp_connect --where \"result <> 'ok'\" --group-by peer; tickscope query"
    " tcp_reset",
    ConnectWatch,
    judge,
    measured={"failed": "result"},
    adopted=False,
)
