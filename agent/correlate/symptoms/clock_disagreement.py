"""Time daemons with a view of the clock that contradicts the oscillator or a server (agent/clock/daemons/check.py)."""

from __future__ import annotations

from agent.correlate.catalogue import Symptom
from agent.correlate.daemons import READS, DaemonWatch
from agent.correlate.episode import Episode
from agent.correlate.watch import Second
from agent.correlate.words import Words, measured, render, span, text, when


def judge(watch: DaemonWatch, second: Second) -> None:
    """Bad: further apart than both error bounds together. The rows include the bounds, so one row is enough."""
    for slot in second.slots.tolist():
        key = watch.names[slot]
        row = watch.held[key]
        apart = float(row["offset_ns"])
        if watch.extended(SYMPTOM.name, slot, second.at, abs(apart)) is None and key not in watch.reported:
            its = {"start_ns": int(row["t_ns"]), "words": text(row["reason"])}
            facts = {"apart_ns": apart, "bound_ns": float(row["distance_ns"])}
            watch.begin(SYMPTOM.name, slot, second.at, abs(apart), 1, facts=facts, **its)
            watch.reported.add(key)


def clause(episode: Episode) -> Words:
    return render(
        "{compared} was off by {apart}, more than both error bounds together ({bound}), {when}",
        compared=episode.subject,
        apart=measured(episode.value, episode.unit),
        bound=span(episode.facts["bound_ns"]),
        when=when(episode),
    )


SYMPTOM = Symptom(
    "clock_disagreement",
    80,
    "a time daemon's report about the clock contradicts the oscillator or a time server",
    "a time daemon and what it is compared with",
    "ns",
    "clock_daemon",
    READS,
    clause,
    "see which of them is right: tickscope clock",
    DaemonWatch,
    judge,
    measured={"apart": "offset_ns"},
)
