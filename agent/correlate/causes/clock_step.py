"""The wall clock was stepped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from agent.correlate import jumps
from agent.correlate.catalogue import Cause, Rule
from agent.correlate.episode import Episode, Verdict
from agent.correlate.steps import Jumping
from agent.correlate.view import View

NAME = "clock_step"


def _or_not(rule: Rule, seen: Callable[[Episode, View], object], words: str) -> Rule:
    """Adds a verdict that rules the step out if the clock was not moved."""

    def both(episode: Episode, view: View) -> Iterator[Verdict]:
        return chain(rule(episode, view), () if seen(episode, view) else (Verdict(NAME, 0.0, "", words),))

    return both


_RULES = jumps.rules(NAME)
_DISAGREEING = _RULES.pop("clock_disagreement")
CAUSE = Cause(
    NAME,
    10,
    "the wall clock was stepped: set to another time at once",
    jumps.READS,
    "let only one time daemon set the clock, by slewing; use a monotonic clock in limiters, leases and queues",
    {
        **{symptom: _or_not(rule, jumps.near, "the wall clock was not moved") for symptom, rule in _RULES.items()},
        "clock_disagreement": _or_not(_DISAGREEING, jumps.moved, "no step of that size was seen"),
    },
    jumps=Jumping("step"),
)
