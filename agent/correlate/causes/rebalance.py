"""The members of a consumer group changed, or its partitions were reassigned."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.consumption import FACTS, READS, consumption, polls_of
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.rows import known
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View
from agent.correlate.words import render, text, value

#: A rebalance this long before the symptom may have led to it.
_BEFORE_NS = 10 * SECOND
#: A consumer that stops leads to one rebalance, or two; so many are the cause themselves.
_STORM = 3
#: Of the polls during the symptom, in which the group was rebalancing: then the rebalance is the cause itself.
_LASTING = 0.6


def changed(episode: Episode, view: View) -> Iterator[Verdict]:
    group = consumption(episode, view)
    if group.gone or group.count is None:
        return
    rebalances = _rebalances(episode, view)
    if rebalances:
        during = polls_of(episode, view)["group_state"] == b"rebalancing"
        lasting = bool(during.sum() > _LASTING * len(during))  # nothing can be acknowledged until it is over
        words = render("its partitions were reassigned {n}", n=value(rebalances, "time"))
        if lasting and rebalances < _STORM:
            words = render("its consumer group was rebalancing")
        seen = item("queue_lag", "rebalances", rebalances, "", column="rebalances", keys=group.keys)
        yield Verdict(
            CAUSE.name,
            0.93 if rebalances >= _STORM or lasting else 0.65,
            episode.scope,
            words,
            (seen, group.members, *group.rates),
            "storm" if rebalances >= _STORM else "",
        )
    elif group.before is not None and group.count != group.before:
        words = render(
            "its consumers changed from {before} to {now}", before=value(group.before), now=value(group.count)
        )
        yield Verdict(CAUSE.name, 0.65, episode.scope, words, (group.members, *group.rates))
    else:
        yield Verdict(
            CAUSE.name, 0.0, "", render("it kept its {now}", now=value(group.count, "consumer")), (group.members,)
        )


def assigned_anew(episode: Episode, view: View) -> Iterator[Verdict]:
    """What was read and not committed is read again."""
    rebalances = _rebalances(episode, view)
    if rebalances:
        words = render("its partitions were reassigned {n}", n=value(rebalances, "time"))
        polled = polls_of(episode, view, _BEFORE_NS)[-1]  # the consumer may name less, or the cluster otherwise
        keys = {name: text(polled[name]) for name in episode.keys}
        seen = item("queue_lag", "rebalances", rebalances, "", column="rebalances", keys=keys)
        yield Verdict(CAUSE.name, 0.8, episode.scope, words, (seen,))


def _rebalances(episode: Episode, view: View) -> int:
    """Rebalances of the group since shortly before the episode; 0 if the broker does not count them."""
    counts = polls_of(episode, view, _BEFORE_NS)["rebalances"]
    counts = counts[known(counts)]
    return int(counts.max() - counts.min()) if len(counts) else 0


CAUSE = Cause(
    "rebalance",
    110,
    "the members of a consumer group changed, or its partitions were reassigned",
    {**READS, "queue_lag": (*READS["queue_lag"], "group_state", "rebalances")},
    "see which consumer joined or left, and why: its log",
    {"queue_lag": changed, "duplicates": assigned_anew, "out_of_order": assigned_anew},
    facts=FACTS,
)
