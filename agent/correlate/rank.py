"""Which causes explain an episode, and how well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from agent.correlate.catalogue import Cause, Rule, causes
from agent.correlate.episode import Episode, Evidence, Verdict
from agent.correlate.guard import Guard
from agent.correlate.view import View

_LEAST = 0.3  # a verdict below this is no explanation


@dataclass(frozen=True)
class Ranked:
    """verdicts: best first. of: what the episode was like then. tracked: what of the view was looked at (see
    ``View.unchanged``).
    """

    verdicts: list[Verdict]
    of: tuple[object, ...]
    tracked: tuple[Any, ...]


class Judge:
    """Asks the causes, in their order. A rule that fails is counted, and left out when it goes on
    (agent/correlate/guard.py).
    """

    def __init__(self, causes: Iterable[Cause], guard: Guard) -> None:
        self._causes, self._guard = tuple(causes), guard

    def rank(self, episode: Episode, view: View) -> list[Verdict]:
        """All verdicts, best first; those with a score below what explains anything are ruled out (score 0).

        Rules are pure: where neither the episode nor anything that they looked at has changed since the last time, it
        is as it was.
        """
        of = episode.end_ns, episode.value, episode.count, tuple(episode.facts.items())
        if episode.ranked is None or episode.ranked.of != of or not view.unchanged(episode.ranked.tracked):
            tracked = view.track()
            verdicts = [
                v if v.score >= _LEAST else replace(v, score=0.0)
                for cause in self._causes
                if (rule := cause.explains.get(episode.symptom))
                for v in self._guard.attempt(
                    f"cause {cause.name} of {episode.symptom}", _all, rule, episode, view, otherwise=()
                )
            ]
            episode.ranked = Ranked(sorted(verdicts, key=best_first), of, view.tracked(tracked))
        return episode.ranked.verdicts


def best_first(verdict: Verdict) -> tuple[bool, bool, float]:
    """By which verdicts are sorted: a vague one comes after all that explain anything, however sure they are."""
    return verdict.score <= 0, causes()[verdict.cause].locates_only, -verdict.score


def _all(rule: Rule, episode: Episode, view: View) -> list[Verdict]:
    return [replace(v, evidence=tuple(_kept(v, episode))) for v in rule(episode, view)]


def _kept(verdict: Verdict, episode: Episode) -> Iterator[Evidence]:
    """Its evidence, with times; that nothing was seen is no row of any table, and the verdict says so."""
    return (e.within(episode) for e in verdict.evidence if e.value or verdict.score >= _LEAST)
