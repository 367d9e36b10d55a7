"""A group's consumers acknowledge less than what arrives."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.consumption import FACTS, READS, Consumption, consumption, of_removed
from agent.correlate.dependencies import READS as WAITS
from agent.correlate.dependencies import dependency
from agent.correlate.episode import Episode, Verdict
from agent.correlate.view import View
from agent.correlate.words import render, span, value

_MOSTLY = 0.5


def slow(episode: Episode, view: View) -> Iterator[Verdict]:
    group = consumption(episode, view)
    if group.gone:
        return
    yield from _waiting(episode, view, group)
    out = value(group.out, "message/s")
    if group.out is None or group.held or group.idle or group.grown:  # an unknown rate rules nothing out
        return
    if group.out_was is not None and group.out < 0.7 * group.out_was:
        yield Verdict(
            CAUSE.name,
            0.85 * group.sure,
            episode.scope,
            render("its consumers acknowledged only {out}{usual}", out=out, usual=group.usual),
            group.rates,
        )
    elif (
        group.arriving is not None
        and group.out < 0.95 * group.arriving
        and not group.arriving >= 1.5 * (group.arriving if group.arriving_was is None else group.arriving_was)
    ):
        words = render(
            "its consumers acknowledged {out} while {arriving} arrived", out=out, arriving=value(group.arriving)
        )
        yield Verdict(CAUSE.name, 0.7 * group.sure, episode.scope, words, group.rates)
    else:
        yield Verdict(
            CAUSE.name,
            0.0,
            "",
            render("its consumers acknowledged {out}{usual}", out=out, usual=group.usual),
            group.rates,
        )


def _waiting(episode: Episode, view: View, group: Consumption) -> Iterator[Verdict]:
    """They wait for another server. If they acknowledge nothing, it must have kept them for most of the time."""
    it = dependency(episode, view)
    if it is None or not group.slower:
        return
    if group.idle and it.longest_ns < _MOSTLY * (episode.end_ns - episode.start_ns):
        return
    words = render(
        "its consumer {client} waited {longest} for {server}",
        client=it.client,
        longest=span(it.longest_ns),
        server=it.who,
    )
    yield Verdict(CAUSE.name, 0.93, episode.scope, words, (it.seen, *group.rates), "dependency", it.culprit)


CAUSE = Cause(
    "consumer_slow",
    120,
    "a group's consumers acknowledge fewer messages than arrive, or than usual",
    {**READS, **WAITS, "syscall_latency": tuple(dict.fromkeys((*WAITS["syscall_latency"], *READS["syscall_latency"])))},
    "see how long a message takes, or add consumers: tickscope queues",
    {"queue_lag": slow, "entries_lost": of_removed("consumer_slow", slow, (b"lagging",))},
    facts=FACTS,
)
