"""A server changed its role."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from agent.correlate.answered import ONLY_READS, chain
from agent.correlate.answered import READS as ANSWERS
from agent.correlate.brokers import FAIL_OVER, LOST
from agent.correlate.catalogue import Cause
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.refusing import READS, refusing
from agent.correlate.view import View
from agent.correlate.words import render, value

_KINDS = ("READONLY", "MASTERDOWN", "NOREPLICAS")


def refused(episode: Episode, view: View) -> Iterator[Verdict]:
    for end in chain(episode, view)[-1:]:
        if end.how == "answered" and end.code in ONLY_READS:
            words = render(
                "{who} refuses writes ({error} in answer to {n}{asked})",
                who=end.who,
                error=end.error_text,
                n=value(end.n, "request"),
                asked=end.requested_by,
            )
            yield Verdict(CAUSE.name, end.capped(0.9), end.where, words, end.evidence(), "read_only", end.culprit)
    for broker in refusing(episode, view):
        n = sum(broker.errors[kind] for kind in _KINDS)
        was, now = broker.roles
        changed = was == "primary" and now in ("replica", "cut off")
        if not n:
            yield Verdict(
                CAUSE.name, 0.0, "", render("{who} refused no writes", who=broker.who), (broker.replies("READONLY"),)
            )
        elif broker.roles == ("primary", "primary") and broker.errors["READONLY"]:
            words = render(
                "{who} refused {n} commands (it was a replica between two polls)", who=broker.who, n=value(n)
            )
            yield Verdict(CAUSE.name, 0.8, broker.scope, words, (broker.replies(*_KINDS),), culprit=broker.culprit)
        elif changed or "cut off" in broker.roles or broker.errors["NOREPLICAS"] or broker.errors["MASTERDOWN"]:
            alone = " without a connection to its primary" if now == "cut off" else ""
            role = render(" (it is a replica{alone})", alone=alone) if now in ("replica", "cut off") else ""
            words = render("{who} refused {n} commands{role}", who=broker.who, n=value(n), role=role)
            yield Verdict(
                CAUSE.name,
                0.95 if changed else 0.8,
                broker.scope,
                words,
                (broker.replies(*_KINDS),),
                culprit=broker.culprit,
            )


def behind(episode: Episode, view: View) -> Iterator[Verdict]:
    """Data were lost: by the former primary's history and offset, as the poller compared them."""
    if episode.metric != "lost":
        return
    raw = episode.key[1]
    assert isinstance(raw, bytes)
    polls = view.polls([raw], episode.start_ns, episode.end_ns)
    polls = polls[np.isin(polls["status"], LOST)]
    entry = item(
        "queue_lag",
        "polls of lost data",
        len(polls),
        "",
        column="status",
        reason=episode.words,
        keys={"peer": episode.scope},
    )
    over = FAIL_OVER in episode.words
    words = (
        "the replica that became the primary had not received all writes"
        if over
        else "the server was restarted without its data, or another server took its place"
    )
    yield Verdict(CAUSE.name, 0.95 if over else 0.7, episode.scope, words, (entry,), "" if over else "replaced")


CAUSE = Cause(
    "failover",
    16,
    "a server changed its role, and now refuses requests that it served before, or lacks data",
    {**READS, **ANSWERS},
    "see which server is the primary now, and why: INFO replication in Redis; point the clients at it",
    {"service_errors": refused, "entries_lost": behind},
    merge_group="broker",
)
