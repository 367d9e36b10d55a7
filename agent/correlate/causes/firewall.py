"""A device on the path refuses connects to a server, which does not see them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from agent.correlate.answered import READS as ANSWERS
from agent.correlate.answered import chain
from agent.correlate.catalogue import Cause
from agent.correlate.episode import Culprit, Episode, Verdict, item
from agent.correlate.firewalls import READS, refusal
from agent.correlate.view import View, place
from agent.correlate.waits import PEERS, on_peers
from agent.correlate.words import peer, render, value

_HOW = {
    "icmp": "an ICMP message, and no reset, came back",
    "reset": "a reset came back that the kernel of {name} did not send",
}


def of_peer(episode: Episode, view: View) -> Iterator[Verdict]:
    netns, raw = cast("tuple[int, bytes]", episode.key[:2])
    yield from _verdict(raw, netns, episode, view)


def behind(episode: Episode, view: View) -> Iterator[Verdict]:
    """A server with refused connects of its own."""
    for end in chain(episode, view)[-1:]:
        if end.how == "refused":
            yield from _verdict(end.raw, end.netns, episode, view)


def failing(episode: Episode, view: View) -> Iterator[Verdict]:
    """A limiter, or another process, with refused connects of its own; or a server that answers with errors because of
    them.
    """
    yield from behind(episode, view)
    if episode.pid is not None:
        yield from of_process(episode, view)


def of_process(episode: Episode, view: View) -> Iterator[Verdict]:
    for p in on_peers(episode, view):
        if len(p.failed):
            yield from _verdict(p.raw, view.netns(episode, p.raw), episode, view)


def _verdict(raw: bytes, netns: int | None, episode: Episode, view: View) -> Iterator[Verdict]:
    seen, name = refusal(raw, netns, episode, view), peer(raw)
    if seen is None:
        return
    how = _HOW[seen.how].format(name=name)
    who = "a firewall" if seen.sure else "a firewall, or a router,"
    words = render(
        "{who} on the path to {name} refused {n}: {how}", who=who, name=name, n=value(seen.n, "connection"), how=how
    )
    entry = item(
        "tcp_connect",
        "connects refused on the way",
        seen.n,
        "",
        column="errno",
        failed=seen.failed,
        keys={"peer": name},
    )
    yield Verdict(
        CAUSE.name,
        0.96 if seen.sure else 0.85,
        place(name, raw, netns),
        words,
        (entry,),
        seen.how,
        Culprit(object=name),
    )


CAUSE = Cause(
    "firewall",
    14,
    "a firewall, or another device on the path, refuses connects that the server would accept",
    {**PEERS, **ANSWERS, **READS},
    "see what it refuses, on both hosts and between: nft list ruleset; iptables-save -c; security groups and network"
    " policies",
    {"connect_failures": of_peer, "retry_storm": of_peer, "service_errors": failing, "decision_latency": of_process},
    merge_group="broker",
)
