"""The wall clock was moved. Jumps are evaluated at once, not by seconds (agent/correlate/clock.py), and described by
agent/correlate/steps.py.
"""

from __future__ import annotations

from agent.correlate.catalogue import Symptom
from agent.correlate.clock import READS
from agent.correlate.episode import Episode
from agent.correlate.words import Words, measured, render, when


def clause(episode: Episode) -> Words:
    return render(
        "The {clock} was moved by {size} {when}",
        clock=episode.subject,
        size=measured(episode.value, episode.unit),
        when=when(episode),
    )


SYMPTOM = Symptom(
    "clock_jump",
    10,
    "the wall clock was stepped or slewed",
    "wall clock",
    "ns",
    "clock_change",
    READS,
    clause,
    "see which process moved it, and which decisions and timers are affected: tickscope explain last,"
    " tickscope clock history, tickscope query timer_effect",
)
