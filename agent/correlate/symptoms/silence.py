"""Limiters that no longer decide."""

from __future__ import annotations

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.pauses import READS, PauseWatch
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Second
from agent.correlate.words import Words, measured, opening, render, when


def judge(watch: PauseWatch, second: Second) -> None:
    """Bad: the pause is longer than any allowed one, and it did not decide less and less before."""
    until_ns = (second.at + 1) * SECOND
    paused = until_ns - watch.last_ns[second.slots]
    for episode in [e for (name, _), e in watch.active.items() if name == SYMPTOM.name]:
        last_ns = int(watch.last_ns[episode.slot])
        if last_ns > episode.start_ns and not episode.facts.get("over"):
            over_ns = int(watch.resumed_ns[episode.slot])
            episode.facts["another"] = float(watch.who[episode.slot][0] != (episode.pid or -1))
        elif episode.facts.get("over") or watch.replaced(episode.slot):
            continue
        else:
            over_ns = until_ns
        episode.facts["over"] = float(last_ns > episode.start_ns)
        watch.extend(episode, second.at, float(over_ns - episode.start_ns), over_ns)
    for slot, (from_ns, to_ns, _) in watch.over.items():
        if (SYMPTOM.name, slot) not in watch.active and not watch.faded(slot, from_ns):
            _open(watch, second, slot, from_ns, to_ns)
    late = second.slots[paused > watch.config.silence_ns]
    for slot, bar in zip(late.tolist(), watch.allowed_ns(late), strict=True):
        took = float(until_ns - watch.last_ns[slot])
        known = (SYMPTOM.name, slot) in watch.active
        if (
            took <= bar
            or took > bar + 2 * SECOND
            or known
            or watch.faded(slot, int(watch.last_ns[slot]))
            or watch.replaced(slot)
        ):
            continue
        _open(watch, second, slot, int(watch.last_ns[slot]), until_ns)


def _open(watch: PauseWatch, second: Second, slot: int, from_ns: int, to_ns: int) -> None:
    episode = watch.describe(SYMPTOM.name, slot)
    episode.start_ns, episode.end_ns, episode.base = from_ns, to_ns, watch.median_ns(slot)
    episode.bar, episode.facts["over"] = (
        float(watch.allowed_ns(np.array([slot]))[0]),
        float(to_ns < (second.at + 1) * SECOND),
    )
    episode.facts["another"] = float(slot in watch.over and watch.who[slot] != watch.over[slot][2])
    watch.open(episode, second.at, float(to_ns - from_ns), 1)


def clause(episode: Episode) -> Words:
    return render(
        "{limiter} made no decision for {took} (usually pauses of at most {base}) {when}",
        limiter=opening(episode.subject),
        took=measured(episode.value, episode.unit),
        base=measured(episode.base, episode.unit),
        when=when(episode),
    )


SYMPTOM = Symptom(
    "silence",
    35,
    "a limiter makes no decision for far longer than ever; reported only with a known cause",
    "a limiter of a program",
    "ns",
    "limiter_decision",
    READS,
    clause,
    "check whether its process and its clients run: tickscope query process_event",
    PauseWatch,
    judge,
    bare=False,
)
