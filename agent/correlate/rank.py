"""The causes that explain an episode, and how well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from agent.correlate.catalogue import Cause, Rule, causes
from agent.correlate.episode import UNTAKEN, Episode, Evidence, Ranked, Verdict
from agent.correlate.guard import Guard
from agent.correlate.view import View
from agent.correlate.walk import further
from agent.correlate.words import render
from agent.tables import TABLES

_HELD = ("process_stopped", "syscall")
_LEAST = 0.3  # a verdict below this is no explanation
#: Tables that have rows all the time, whatever happens, if they are recorded at all: by a column that they have.
_STEADY = ("interval_ns", "poll_ns")


class Judge:
    """Evaluates the causes in their order. A rule that fails is counted, and disabled if it keeps failing
    (agent/correlate/guard.py).
    """

    def __init__(self, causes: Iterable[Cause], guard: Guard) -> None:
        self._causes, self._guard = tuple(causes), guard

    def rank(self, episode: Episode, view: View) -> list[Verdict]:
        """All verdicts, best first; those with a score too low to explain anything are ruled out (score 0).

        Rules are pure: if neither the episode nor anything that they read has changed since the last time, the result
        is kept.
        """
        state = episode.end_ns, episode.value, episode.count, tuple(episode.facts.items())
        if episode.ranked is None or episode.ranked.of != state or not view.unchanged(episode.ranked.tracked):
            tracked = view.track()
            verdicts = self._examine(episode, view)
            on_the_way: dict[int, None] = {}
            walked = further(episode, view, self._examine_node, verdicts, on_the_way)
            if episode.metric == UNTAKEN:  # on purpose, unless a consumer cannot go on
                walked = [verdict for verdict in walked if verdict.cause in _HELD]
            by_name = {cause.name: cause for cause in self._causes}
            verdicts = [v if v.score >= _LEAST else _no_explanation(v, by_name[v.cause], view) for v in walked]
            episode.ranked = Ranked(sorted(verdicts, key=best_first), state, view.tracked(tracked), tuple(on_the_way))
        return episode.ranked.verdicts

    def _examine(self, episode: Episode, view: View) -> list[Verdict]:
        return [
            v
            for cause in self._causes
            if (rule := cause.explains.get(episode.symptom))
            for v in self._guard.attempt(
                f"cause {cause.name} of {episode.symptom}", _all, rule, episode, view, otherwise=()
            )
        ]

    def _examine_node(self, episode: Episode, view: View) -> list[Verdict]:
        """Without the rules that use facts of a symptom, since it has none."""
        return [
            v
            for cause in self._causes
            if not cause.facts and (rule := cause.explains.get(episode.symptom))
            for v in self._guard.attempt(f"cause {cause.name} further on", _all, rule, episode, view, otherwise=())
        ]


def _no_explanation(verdict: Verdict, cause: Cause, view: View) -> Verdict:
    """A verdict that rules its cause out; or, if there are no rows at all that could show it, one that does not."""
    steady = any(name in TABLES[table].by_name for table in cause.reads for name in _STEADY)
    if not steady or cause.facts or not view.recorded.isdisjoint(cause.reads):
        return replace(verdict, score=0.0)
    words = render("not checked: no rows of {tables} were recorded", tables=" and ".join(cause.reads))
    return replace(verdict, score=0.0, words=words, evidence=(), checked=False)


def best_first(verdict: Verdict) -> tuple[bool, bool, float]:
    """Sort key of verdicts: a cause that only locates comes after all that explain anything, whatever its score."""
    return verdict.score <= 0, causes()[verdict.cause].locates_only, -verdict.score


def _all(rule: Rule, episode: Episode, view: View) -> list[Verdict]:
    return [replace(v, evidence=tuple(_kept(v, episode))) for v in rule(episode, view)]


def _kept(verdict: Verdict, episode: Episode) -> Iterator[Evidence]:
    """Its evidence, with times. A value of 0 is no row of any table, so it is left out of weak verdicts."""
    return (e.within(episode) for e in verdict.evidence if e.value or verdict.score >= _LEAST)
