"""TLS handshakes with an address take far longer than ever."""

from __future__ import annotations

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.handshakes import READS, HandshakeWatch
from agent.correlate.watch import Second
from agent.correlate.words import Words, measured, render, value, when

_WITHIN_S = 5
_LEAST, _SHARE, _RATIO, _SLOW_NS = 3, 0.5, 5.0, 100_000_000


def judge(watch: HandshakeWatch, second: Second) -> None:
    """Bad: three or more handshakes of the last five seconds, in half or more of the seconds with any. In each of these
    seconds the median took 100 ms or longer, and five times as long as in nine of ten seconds.
    """
    series, at = watch.series, second.at
    slots = second.slots[series.last("med_ns", second.slots, at) > _SLOW_NS]
    if not len(slots):
        return
    took, longest, ok = (series.recent(metric, slots, at, _WITHIN_S) for metric in ("med_ns", "longest_ns", "ok"))
    usual = series.baseline("med_ns", slots, at, _WITHIN_S)
    slow = took > np.maximum(_SLOW_NS, _RATIO * usual.high)[:, None]
    many = (np.where(slow, ok, 0).sum(axis=1) >= _LEAST) & (slow.sum(axis=1) >= _SHARE * (~np.isnan(took)).sum(axis=1))
    for i in np.flatnonzero(many & slow[:, -1] & (usual.seen >= watch.config.warm_s)):
        slot, worst = int(slots[i]), float(longest[i][slow[i]].max())
        if (episode := watch.extended(SYMPTOM.name, slot, at, worst)) is not None:
            episode.facts["slow"] += float(ok[i, -1])
            continue
        first = at - _WITHIN_S + 1 + int(np.argmax(slow[i]))
        episode = watch.begin_slow(SYMPTOM, slot, at, first, worst, "med_ns", float(usual.median[i]))
        episode.facts["slow"] = float(ok[i][slow[i]].sum())


def clause(episode: Episode) -> Words:
    return render(
        "{n} with {peer} took up to {took} (usually {base}) {when}",
        n=value(episode.facts["slow"], "TLS handshake"),
        peer=episode.subject,
        took=measured(episode.value, episode.unit),
        base=measured(episode.base, episode.unit),
        when=when(episode),
    )


SYMPTOM = Symptom(
    "handshake_latency",
    61,
    "TLS handshakes with an address take far longer than ever before; reported only with a known cause",
    "an address",
    "ns",
    "tls_handshake",
    READS,
    clause,
    "see how long each took, and how much of it in the library itself: tickscope query tls_handshake --group-by peer",
    HandshakeWatch,
    judge,
    bare=False,
    measured={"med_ns": "duration_ns"},
    explained_by={
        "network_rtt": "connect_latency",
        "network_loss": "connect_latency",
        "process_stopped": "connect_latency",
    },
)
