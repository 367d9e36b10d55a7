"""Connects to a peer take far longer than ever.

The kernel alone answers a SYN. A connect that takes 200 ms had a long path or a retransmitted SYN: Linux clients
retransmit it after a second.
"""

from __future__ import annotations

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.connects import READS, SLOW_NS, ConnectWatch
from agent.correlate.episode import Episode
from agent.correlate.watch import Second
from agent.correlate.words import Words, measured, render, value, when

_WITHIN_S = 3
_LEAST, _SHARE = 3, 0.2  # so many, and this share of all connects, within that time or less


def judge(watch: ConnectWatch, second: Second) -> None:
    """Bad: three or more, and a fifth, of the successful connects of the last three seconds took so long, while in nine
    of ten seconds none does.
    """
    series, at = watch.series, second.at
    slots = second.slots[series.last("slow", second.slots, at) > 0]
    if not len(slots):
        return
    slow, ok, longest = (
        np.nan_to_num(series.recent(metric, slots, at, _WITHIN_S)) for metric in ("slow", "ok", "longest_ns")
    )
    many = (slow.sum(axis=1) >= _LEAST) & (slow.sum(axis=1) >= _SHARE * ok.sum(axis=1))
    usual = series.baseline("slow", slots, at, _WITHIN_S)
    before = series.baseline("longest_ns", slots, at, _WITHIN_S)
    for i in np.flatnonzero(many & (usual.high == 0) & (usual.seen >= watch.config.warm_s)):
        slot, worst = int(slots[i]), float(longest[i].max())
        if (episode := watch.extended(SYMPTOM.name, slot, at, worst)) is not None:
            episode.facts["slow"] += float(slow[i, -1])
            continue
        first = at - _WITHIN_S + 1 + int(np.argmax(slow[i] > 0))
        episode = watch.begin_slow(SYMPTOM, slot, at, first, worst, "longest_ns", float(before.median[i]))
        episode.facts["slow"] = float(slow[i].sum())


def clause(episode: Episode) -> Words:
    return render(
        "{n} to {peer} took up to {took} (usually {base}) {when}",
        n=value(episode.facts["slow"], "connect"),
        peer=episode.subject,
        took=measured(episode.value, episode.unit),
        base=measured(episode.base, episode.unit),
        when=when(episode),
    )


SYMPTOM = Symptom(
    "connect_latency",
    57,
    "connects to a peer take far longer than ever before; reported only with a known cause",
    "a peer",
    "ns",
    "tcp_connect",
    READS,
    clause,
    f"see how long each took: tickscope query tcp_connect --where 'duration_ns > {SLOW_NS}'; whether its accept queue"
    " is full: ss -ltn",
    ConnectWatch,
    judge,
    bare=False,
    measured={"longest_ns": "duration_ns"},
)
