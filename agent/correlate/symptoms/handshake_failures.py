"""TLS handshakes with an address fail, where hardly any did.

A public server has failures that strangers cause (scans, old clients). So failures that only the server saw count if it
usually has successful handshakes all the time.
"""

from __future__ import annotations

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.handshakes import READS, HandshakeWatch
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Second
from agent.correlate.words import Words, render, value, when

_WITHIN_S = 3
_LEAST, _SHARE = 3, 0.3  # so many, and this share of all handshakes, within that time or less
_STEADY = 1  # usual successful handshakes a second


def judge(watch: HandshakeWatch, second: Second) -> None:
    series, at, slots = watch.series, second.at, second.slots
    slots = slots[np.fmax(*(series.last(m, slots, at) for m in ("failed", "served"))) > 0]
    if not len(slots):
        return
    ok, failed, served = (
        np.cumsum(np.nan_to_num(series.recent(metric, slots, at, _WITHIN_S))[:, ::-1], axis=1)
        for metric in ("ok", "failed", "served")
    )
    usual = {metric: series.baseline(metric, slots, at, _WITHIN_S) for metric in ("ok", "failed", "served")}
    steady = usual["ok"].median >= _STEADY
    bad = np.maximum(failed, np.where(steady[:, None], served, 0))
    share = np.where(bad >= _LEAST, bad / np.maximum(ok + bad, 1), 0.0).max(axis=1)
    hardly = (usual["failed"].high == 0) & ((usual["served"].high == 0) | (failed[:, -1] > 0))
    for i in np.flatnonzero((bad[:, 0] > 0) & (share >= _SHARE) & hardly & (usual["ok"].seen >= watch.config.warm_s)):
        slot = int(slots[i])
        if not watch.extended(SYMPTOM.name, slot, at, float(share[i])):
            seconds = 1 + int(np.argmax(bad[i] == bad[i, -1]))
            its = {"metric": "failed", "unit": SYMPTOM.unit, "start_ns": (at - seconds + 1) * SECOND}
            watch.begin(SYMPTOM.name, slot, at, float(share[i]), seconds, **its)


def clause(episode: Episode) -> Words:
    return render(
        "Up to {share} of the TLS handshakes with {peer} failed {when}",
        share=value(episode.value, "ratio"),
        peer=episode.subject,
        when=when(episode),
    )


SYMPTOM = Symptom(
    "handshake_failures",
    59,
    "TLS handshakes with an address fail much more often than usual",
    "an address",
    "",
    "tls_handshake",
    READS,
    clause,
    "see how they fail: tickscope query tls_handshake --where \"result = 'failed'\" --group-by peer,error",
    HandshakeWatch,
    judge,
    measured={"failed": "result"},
    adopted=False,
)
