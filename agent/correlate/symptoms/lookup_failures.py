"""Names that a process resolved before no longer resolve, at once or after a wait."""

from __future__ import annotations

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.lookups import READS, LookupWatch
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Second
from agent.correlate.words import Words, render, value, when

_WITHIN_S = 3
_LEAST, _SHARE = 3, 0.5  # so many, and this share of all lookups, within that time or less


def judge(watch: LookupWatch, second: Second) -> None:
    series, at, slots = watch.series, second.at, second.slots
    slots = slots[series.last("lost", slots, at) > 0]
    if not len(slots):
        return
    ok, lost = (
        np.cumsum(np.nan_to_num(series.recent(metric, slots, at, _WITHIN_S))[:, ::-1], axis=1)
        for metric in ("ok", "lost")
    )
    share = np.where(lost >= _LEAST, lost / np.maximum(ok + lost, 1), 0.0).max(axis=1)
    usual = series.baseline("lost", slots, at, _WITHIN_S)
    for i in np.flatnonzero((share >= _SHARE) & (usual.high == 0) & (usual.seen >= watch.config.warm_s)):
        slot = int(slots[i])
        if not watch.extended(SYMPTOM.name, slot, at, float(share[i])):
            seconds = 1 + int(np.argmax(lost[i] == lost[i, -1]))
            its = {"metric": "lost", "unit": SYMPTOM.unit, "start_ns": (at - seconds + 1) * SECOND}
            watch.begin(SYMPTOM.name, slot, at, float(share[i]), seconds, **its)


def clause(episode: Episode) -> Words:
    return render(
        "Up to {share} of the lookups of {who} for names that it had resolved before failed {when}",
        share=value(episode.value, "ratio"),
        who=episode.subject,
        when=when(episode),
    )


SYMPTOM = Symptom(
    "lookup_failures",
    56,
    "names that a process has resolved before no longer resolve",
    "a process",
    "",
    "dns_lookup",
    READS,
    clause,
    "query its name server: dig +tries=1 @SERVER NAME; tickscope query dns_lookup --group-by peer,result",
    LookupWatch,
    judge,
    measured={"lost": "result"},
    adopted=False,
)
