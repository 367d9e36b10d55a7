"""Names that a process resolved quickly before take long to resolve."""

from __future__ import annotations

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.lookups import READS, SLOW_NS, LookupWatch
from agent.correlate.watch import Second
from agent.correlate.words import Words, measured, render, when

_WITHIN_S = 10
_LEAST, _SHARE = 2, 0.3  # so many, and this share of all successful lookups, within that time or less


def judge(watch: LookupWatch, second: Second) -> None:
    """Bad: two or more, and a third, of the recent successful lookups took so long, while in nine of ten seconds none
    does. A single one may be a lost packet.
    """
    series, at = watch.series, second.at
    slots = second.slots[series.last("slow", second.slots, at) > 0]
    if not len(slots):
        return
    lately = {m: np.nan_to_num(series.recent(m, slots, at, _WITHIN_S)) for m in ("slow", "ok", "longest_ns")}
    slow, ok = (np.cumsum(lately[metric][:, ::-1], axis=1) for metric in ("slow", "ok"))
    many = ((slow >= _LEAST) & (slow >= _SHARE * ok)).any(axis=1)
    usual = series.baseline("slow", slots, at, _WITHIN_S)
    before = series.baseline("longest_ns", slots, at, _WITHIN_S)
    for i in np.flatnonzero(
        many & (usual.high == 0) & (usual.seen >= watch.config.warm_s) & np.isfinite(before.median)
    ):
        slot, worst = int(slots[i]), float(lately["longest_ns"][i].max())
        if watch.extended(SYMPTOM.name, slot, at, worst):
            continue
        first = at - _WITHIN_S + 1 + int(np.argmax(lately["slow"][i] > 0))
        episode = watch.begin_slow(SYMPTOM, slot, at, first, worst, "longest_ns", float(before.median[i]))
        episode.recurs_by = "longest_ns"


def clause(episode: Episode) -> Words:
    return render(
        "Lookups of {who} took up to {took} (usually {base}) {when}",
        who=episode.subject,
        took=measured(episode.value, episode.unit),
        base=measured(episode.base, episode.unit),
        when=when(episode),
    )


SYMPTOM = Symptom(
    "lookup_latency",
    55,
    "names that resolved quickly before take long; reported only with a known cause",
    "a process",
    "ns",
    "dns_lookup",
    READS,
    clause,
    f"see which names and servers: tickscope query dns_lookup --where 'duration_ns > {SLOW_NS}' --group-by peer,name",
    LookupWatch,
    judge,
    bare=False,
    measured={"longest_ns": "duration_ns"},
)
