"""More was asked for. The weakest explanation: any other one that holds comes first."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.view import View
from agent.correlate.words import number

#: Of what the load is, by the episode's fact.
_WHAT = {"cost": "what it was asked for", "in": "the messages arriving"}
_COLUMN = {"cost": "cost", "in": "in_per_s"}


def asked(episode: Episode, _view: View) -> Iterator[Verdict]:
    return _grown(episode, "cost", "asked for", "limiter_decision")


def asked_beyond(episode: Episode, _view: View) -> Iterator[Verdict]:
    return _grown(episode, "cost", "asked for", "limiter_decision", limited=True)


def arriving(episode: Episode, _view: View) -> Iterator[Verdict]:
    return _grown(episode, "in", "messages arriving", "queue_lag")


def _grown(episode: Episode, metric: str, what: str, table: str, limited: bool = False) -> Iterator[Verdict]:
    """limited: whether a rate above the limit explains it, too."""
    facts = episode.facts
    rate, usual = facts.get(metric), facts.get(f"{metric}_base")
    if rate is None or usual is None:
        yield Verdict(CAUSE.name, 0.0, "", "the rate is not known")
        return
    watched, limit = facts.get("watched", 1.0), facts.get("limit")
    least = "at least " if watched < 1 else ""  # a second of which a part was watched
    entry = item(table, what, rate, "1/s", column=_COLUMN[metric], baseline=usual, pid=episode.pid, sample_rate=watched if least else None, at_least="true" if least else None)
    if facts.get("watched_base", 1.0) < 1:
        yield Verdict(CAUSE.name, 0.0, "", "the usual load is not known, since only a share of its decisions was watched")
    elif rate >= 1.5 * usual and rate - usual >= 1:
        yield Verdict(CAUSE.name, 0.6, episode.scope, f"{_WHAT[metric]} rose from {number(usual)} to {least}{number(rate)} per second", (entry,))
    elif limited and limit and rate > 1.05 * limit and facts.get("limit_base", limit) <= limit:
        yield Verdict(CAUSE.name, 0.5, episode.scope, f"{least}{number(rate)} per second were asked for and its limit is {number(limit)} per second", (entry,))
    else:
        yield Verdict(CAUSE.name, 0.0, "", f"{_WHAT[metric]} {_no_rise(rate, usual)} {least}{number(rate)} per second, usually {number(usual)}", (entry,))


def _no_rise(rate: float, usual: float) -> str:
    return "fell to" if 1.5 * rate < usual else "stayed at"


CAUSE = Cause("load", 140, "more was asked for, or arrived, than usually, or than the limit allows", {}, "see who asks: tickscope limiters; raise the limit, or slow them down",
              {"refusals": asked_beyond, "decision_latency": asked, "queue_lag": arriving}, facts=("cost", "in", "limit", "watched"))
