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
        episode = watch.active.get((SYMPTOM.name, slot))
        if episode is not None:
            watch.extend(episode, second.at, abs(apart))
        elif key not in watch.reported:
            episode = watch.describe(SYMPTOM.name, slot)
            episode.start_ns, episode.words = int(row["t_ns"]), text(row["reason"])
            episode.facts = {"apart_ns": apart, "bound_ns": float(row["distance_ns"])}
            watch.open(episode, second.at, abs(apart), 1)
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
