"""More was requested. This is the weakest explanation: any other one that holds takes precedence.

Work that arrives at once after a time with little work is a backlog. It is the consequence of what caused the gap, and
no load.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.backlog import made_up
from agent.correlate.catalogue import Cause
from agent.correlate.consumption import READS, consumption
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View
from agent.correlate.words import Fact, render, value

#: A request that waited for so long, while this share of the usual answers was missing (the first second may be
#: partial).
_STALL_S, _OWED = 1.5, 0.7
#: The load in words, by the episode's fact.
_WHAT = {"n": "the requests that it answered", "cost": "the units requested from it", "in": "the arriving messages"}
_COLUMN = {"n": "requests", "cost": "cost", "in": "in_per_s"}


def more_requests(episode: Episode, _view: View) -> Iterator[Verdict]:
    return _grown(episode, "cost", "requested units", "limiter_decision")


def asked_beyond(episode: Episode, _view: View) -> Iterator[Verdict]:
    """Requests to its limiter at other places count, too."""
    others, usual = (episode.facts.get(name, 0.0) for name in ("others", "others_base"))
    if episode.taker and others >= 0.1 * episode.facts.get("cost", 0.0) and others > 1.5 * usual:
        yield from _taken(episode, others, usual)
    else:
        yield from _grown(episode, "cost", "requested units", "limiter_decision", limited=True)


def _taken(episode: Episode, others: float, usual: float) -> Iterator[Verdict]:
    """Another place takes more of the same limiter than usual."""
    rate, base = episode.facts["cost"] + others, episode.facts.get("cost_base", 0.0) + usual
    words = render(
        "the units requested from its limiter rose from {usual} to {rate}, {others} of them by {taker}",
        usual=value(base),
        rate=value(rate, "1/s"),
        others=value(others, "1/s"),
        taker=episode.taker,
    )
    entry = item(
        "limiter_decision",
        "requested units",
        rate,
        "1/s",
        column="cost",
        baseline=base,
        pid=episode.pid,
        by=episode.taker,
    )
    rises = rate >= 1.5 * base and rate - base >= 1
    limit = episode.facts.get("limit")
    sure = (0.85 if limit and rate > limit else 0.6) if rises else 0.0
    yield Verdict(CAUSE.name, sure, episode.scope if rises else "", words, (entry,))


def answered(episode: Episode, _view: View) -> Iterator[Verdict]:
    """Not if it answered hardly any while the slowest one waited: then all clients wait, and try again."""
    owed, usual, waited_s = episode.facts.get("n_owed", 0.0), episode.facts.get("n_base", 0.0), episode.value / SECOND
    if waited_s >= _STALL_S and owed >= _OWED * usual * (waited_s - 1) > 0:
        yield Verdict(CAUSE.name, 0.0, "", "it answered hardly any request meanwhile")
    else:
        yield from _grown(episode, "n", "requests answered", "service_latency")


def arriving(episode: Episode, view: View) -> Iterator[Verdict]:
    """The score is higher if the consumers take at least their usual rate, so that nothing is wrong with them."""
    group = consumption(episode, view)
    return _grown(episode, "in", "messages arriving", "queue_lag", sure=0.85 if group.grown else 0.6)


def _grown(
    episode: Episode, metric: str, what: str, table: str, limited: bool = False, sure: float = 0.6
) -> Iterator[Verdict]:
    """sure: score of a rise. limited: whether a rate above the limit explains it, too."""
    facts = episode.facts
    rate, usual = facts.get(metric), facts.get(f"{metric}_base")
    if rate is None or usual is None:  # an unknown rate rules nothing out
        return
    watched, limit = facts.get("watched", 1.0), facts.get("limit")
    least = "at least " if watched < 1 else ""  # sampled for a part of the second
    numbers: dict[str, Fact] = {
        "what": _WHAT[metric],
        "did": "fell to" if 1.5 * rate < usual else "stayed at",
        "least": least,
        "rate": value(rate, "1/s"),
        "usual": value(usual),
        "limit": value(limit, "1/s"),
    }
    entry = item(
        table,
        what,
        rate,
        "1/s",
        column=_COLUMN[metric],
        baseline=usual,
        keys={**episode.keys, "pid": episode.pid},
        sample_rate=watched if least else None,
        at_least=True if least else None,
    )
    if facts.get("watched_base", 1.0) < 1:
        yield Verdict(
            CAUSE.name, 0.0, "", "the usual load is not known, because only a share of its decisions was observed"
        )
    elif rate >= 1.5 * usual and made_up(episode, metric):
        words = render(
            "{what} rose from {usual} to {rate}, because {owed} had piled up before",
            owed=value(facts[f"{metric}_owed"]),
            **numbers,
        )
        yield Verdict(CAUSE.name, 0.0, "", words, (entry,))
    elif rate >= 1.5 * usual and rate - usual >= 1:
        if limited and limit and rate > limit:
            sure = max(sure, 0.85)
        yield Verdict(
            CAUSE.name, sure, episode.scope, render("{what} rose from {usual} to {least}{rate}", **numbers), (entry,)
        )
    elif limited and limit and rate > 1.05 * limit and facts.get("limit_base", limit) <= limit:
        yield Verdict(
            CAUSE.name,
            0.5,
            episode.scope,
            render("{least}{rate} were requested, and its limit is {limit}", **numbers),
            (entry,),
        )
    else:
        yield Verdict(CAUSE.name, 0.0, "", render("{what} {did} {least}{rate} (usually {usual})", **numbers), (entry,))


CAUSE = Cause(
    "load",
    140,
    "more requests or messages arrived than usual, or than the limit allows",
    READS,
    "see which clients send requests: tickscope limiters; raise the limit, or slow them down",
    {"refusals": asked_beyond, "decision_latency": more_requests, "queue_lag": arriving, "service_latency": answered},
    facts=("n", "cost", "others", "in", "out", "limit", "watched"),
)
