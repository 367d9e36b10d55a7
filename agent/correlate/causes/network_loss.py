"""Segments to a peer were lost."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import cast

import numpy as np

from agent.correlate.answered import READS as ANSWERS
from agent.correlate.answered import chain
from agent.correlate.catalogue import Cause
from agent.correlate.connects import sent_here
from agent.correlate.episode import Culprit, Episode, Evidence, Verdict, item
from agent.correlate.local import in_netns, is_loopback, is_unix
from agent.correlate.pairs import pair
from agent.correlate.path import cpu_saturated
from agent.correlate.peer_path import peer_path
from agent.correlate.polled import READS, polled
from agent.correlate.resolvers import lookups_of
from agent.correlate.rows import groups
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View, place, to_peer
from agent.correlate.waits import PEERS, SHARE, PeerWait, on_peers
from agent.correlate.words import Words, peer, render, value
from agent.tables import TABLES

_RECEIVED, _SERVER = TABLES["tcp_reset"].code("direction", "received"), TABLES["tcp_reset"].code("role", "server")
_FAILED = TABLES["tcp_connect"].code("result", "failed")
_SYN = TABLES["tcp_retransmit"].code("kind", "syn")
_RESETS = 2
_DARK_S = 2
_UNANSWERED = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


def lost(episode: Episode, view: View) -> Iterator[Verdict]:
    yield from _of_names(episode, view)
    for wait in on_peers(episode, view):
        entry = wait.resent.evidence(wait.raw)
        if wait.dark and not wait.slower:
            yield _dark(wait, entry, episode, view)
            continue
        lost = render(
            "{lost} between it and {who} had to be retransmitted", lost=wait.resent.text_words(), who=wait.who
        )
        if wait.again and wait.share >= SHARE and wait.resent.spurious:
            words = render(
                "{lost}, but it already had {doubled} of them", lost=lost, doubled=value(wait.resent.doubled)
            )
            yield Verdict(CAUSE.name, 0.0, wait.name, words, (entry,))
        elif wait.again and wait.share >= SHARE:
            # Slow acknowledgements cause retransmissions of segments that were not lost.
            words = render("{lost}, which slow round trips alone can cause", lost=lost) if wait.slower else lost
            sure = 0.45 if wait.slower else 0.6 if cpu_saturated(view, episode) else 0.9
            yield Verdict(
                CAUSE.name,
                sure * wait.share * wait.sure * wait.resent.explains(wait.longest),
                wait.host,
                words,
                (entry, wait.wait, wait.rtt),
                "",
                Culprit(object=wait.name),
            )
        elif not wait.again and not is_unix(wait.raw):
            words = render("no segment to {name} was retransmitted{of}", name=wait.name, of=_of(wait.resent.sent))
            yield Verdict(CAUSE.name, 0.0, wait.name, words, (entry,))


def _dark(wait: PeerWait, entry: Evidence, episode: Episode, view: View) -> Verdict:
    netns = view.netns(episode, wait.raw)
    if is_loopback(wait.raw) or view.has_address(wait.raw, netns, episode):
        return Verdict(
            CAUSE.name, 0.0, "", f"{wait.name} is an address of this host, to which no network loses packets"
        )
    words = render("{n} to {who} were not answered at all", n=value(wait.unanswered, "connect"), who=wait.who)
    unanswered = item(
        "tcp_connect", "connects not answered", wait.unanswered, "", column="result", keys={"peer": wait.name}
    )
    score = 0.9 * wait.share
    return Verdict(CAUSE.name, score, wait.host, words, (unanswered, entry), "", Culprit(object=wait.name))


def _of(sent: int | None) -> Words:
    return render(" ({n} sent)", n=value(sent)) if sent else ""


def _of_names(episode: Episode, view: View) -> Iterator[Verdict]:
    """A name server was asked by UDP, for which losses are not visible, while TCP to the same host was
    retransmitted.
    """
    a = lookups_of(episode, view)
    if a is None or not a.again or a.share < SHARE or a.slower or a.result not in ("", "timeout", "ok", "nodata"):
        return
    host = a.server.rpartition(":")[0]
    lost = value(a.again, "TCP segment")
    words = render("{lost} to the host of {who} had to be retransmitted, too", lost=lost, who=a.who)
    entry = item("tcp_retransmit", "retransmitted segments", a.again, "", column="count", keys={"peer": a.again_to})
    yield Verdict(CAUSE.name, 0.85 * a.share * a.sure, a.host, words, (entry, *a.evidence), "", Culprit(object=host))


def failed(episode: Episode, view: View) -> Iterator[Verdict]:
    for end in chain(episode, view)[-1:]:
        if end.how == "reset":
            words = render("{n} of {by} to {name} were reset", n=value(end.n, "connection"), by=end.by, name=end.name)
            scope = _resets_by(end.name, end.raw, end.netns)
            yield Verdict(CAUSE.name, 0.8, scope, words, end.evidence(), "reset", Culprit(object=end.name))
    yield from reset(episode, view)
    yield from lost(episode, view)


def between(episode: Episode, view: View) -> Iterator[Verdict]:
    """Both ends of a connection: written data was on the way."""
    p = pair(episode, view)
    if p.again:
        entry = item("tcp_retransmit", "retransmitted segments", p.again, "", column="count", keys={"peer": p.name})
        words = render("{lost} of it had to be retransmitted", lost=value(p.again, "TCP segment"))
        yield Verdict(CAUSE.name, 0.45 if p.path.slower else 0.85, p.name.rpartition(":")[0], words, (entry,))


def of_peer(episode: Episode, view: View) -> Iterator[Verdict]:
    link = peer_path(episode, view)
    # A host without CPU time delays acknowledgements: its peers then report most retransmitted segments as duplicates.
    if link.cpu_saturated and not link.lost:
        yield Verdict(CAUSE.name, 0.0, "", "the CPUs of this host were busy, which slows all of its programs")
    elif link.spurious:
        words = render(
            "{n} between it and its clients had to be retransmitted, but the receiver already had most of them",
            n=value(link.again, "TCP segment"),
        )
        yield Verdict(CAUSE.name, 0.0, "", words, (link.entry,))
    elif episode.symptom == "network_loss" or link.again:
        dark = ", and nothing came from it any more" if episode.facts.get("dark", 0) >= _DARK_S else ""
        lost = value(max(link.again, 1), "TCP segment")
        words = render(
            "{lost} between {name} and its clients had to be retransmitted{dark}", lost=lost, name=link.name, dark=dark
        )
        yield Verdict(
            CAUSE.name,
            (0.45 if link.path.slower and not dark else 0.8) * (0.7 if link.cpu_saturated else 1.0),
            link.host,
            words,
            (link.entry,),
            "",
            Culprit(object=link.name),
        )


def to_broker(episode: Episode, view: View) -> Iterator[Verdict]:
    poll = polled(episode, view)
    if poll.again and not poll.slower and not poll.starving:
        entry = item(
            "tcp_retransmit", "retransmitted segments", poll.again, "", column="count", keys={"peer": poll.asked}
        )
        words = render("{lost} between here and it had to be retransmitted", lost=value(poll.again, "TCP segment"))
        yield Verdict(CAUSE.name, 0.92, poll.scope, words, (entry, poll.seen))


def unreached(episode: Episode, view: View) -> Iterator[Verdict]:
    """Connections to a peer that were reset, or connects without an answer."""
    netns, raw = cast("tuple[int, bytes]", episode.key)
    name = peer(raw)
    host, culprit = place(name.rpartition(":")[0], raw, netns), Culprit(object=name)
    connects = in_netns(to_peer(view.during("tcp_connect", episode), raw), netns)
    silent = int(np.isin(connects["errno"], _UNANSWERED)[connects["result"] == _FAILED].sum())
    broken, failed_connects = episode.facts.get("broken", 0.0), episode.facts.get("failed", 0.0)
    if broken >= _RESETS and broken > failed_connects:
        words = render("{n} to it were reset", n=value(broken, "connection"))
        here = sent_here(view.during("tcp_reset", episode), raw, netns)
        if here >= 0.5 * broken and view.server(raw, netns, episode) is not None:
            words = render("{n} to it were reset by its server itself", n=value(here, "connection"))
            yield Verdict(CAUSE.name, 0.0, "", words)
            return
        entry = item("tcp_reset", "connections reset", broken, "", keys={"peer": name})
        yield Verdict(CAUSE.name, 0.8, _resets_by(name, raw, netns), words, (entry,), "reset", culprit)
    elif silent > 0.5 * failed_connects:
        words = render("{n} to it were not answered at all", n=value(silent, "connect"))
        entry = item("tcp_connect", "connects not answered", silent, "", column="errno", keys={"peer": name})
        yield Verdict(CAUSE.name, 0.8, host, words, (entry,), "", culprit)


def unanswered(episode: Episode, view: View) -> Iterator[Verdict]:
    """Slow connects to a peer with retransmitted SYNs. At an address of this host no network loses them."""
    netns, raw = cast("tuple[int, bytes]", episode.key)
    name = peer(raw)
    rows = in_netns(to_peer(view.during("tcp_retransmit", episode), raw), netns)
    again = int(np.maximum(rows["count"], 1)[rows["kind"] == _SYN].sum())
    entry = item("tcp_retransmit", "retransmitted SYNs", again, "", column="count", keys={"peer": name})
    if again < 0.5 * episode.facts["slow"]:
        of = value(episode.facts["slow"], "slow connect")
        words = render(
            "{again} to {name} had to be retransmitted, of {of}", again=value(again, "SYN"), name=name, of=of
        )
        yield Verdict(CAUSE.name, 0.0, "", words, (entry,))
    elif not is_loopback(raw) and not view.has_address(raw, netns, episode):
        words = render("the SYN of {n} was retransmitted", n=value(again, "connect"))
        host = place(name.rpartition(":")[0], raw, netns)
        sure = 0.75 * (0.6 if cpu_saturated(view, episode) else 1.0)
        yield Verdict(CAUSE.name, sure, host, words, (entry,), "", Culprit(object=name))


def reset(episode: Episode, view: View) -> Iterator[Verdict]:
    """Connections of its own that were reset, far more than before."""
    rows = _resets(view.during("tcp_reset", episode), episode, view)
    before = _resets(
        view.rings["tcp_reset"].between(episode.start_ns - 60 * SECOND, episode.start_ns - SECOND), episode, view
    )
    usual = len(before) / 59.0 * max(1.0, (episode.end_ns - episode.start_ns) / SECOND)
    entry = item("tcp_reset", "connections reset", len(rows), "", baseline=usual, keys={"pid": episode.pid})
    if len(rows) < _RESETS or len(rows) < 3 * usual:
        yield Verdict(CAUSE.name, 0.0, "", "hardly any of its connections was reset", (entry,))
        return
    first, group = groups([rows["peer"]])
    many = np.bincount(group)
    raw = rows["peer"][first[int(np.argmax(many))]].tobytes()
    name, netns = peer(raw), view.netns(episode, raw)
    # A refused connect is a reset, too.
    refused = int((to_peer(view.own(view.during("tcp_connect", episode), episode), raw)["result"] == _FAILED).sum())
    broken = int(np.max(many)) - refused
    if broken < max(_RESETS, refused):
        yield Verdict(CAUSE.name, 0.0, "", "connections were refused rather than reset", (entry,))
        return
    yield Verdict(
        CAUSE.name,
        0.6 + 0.25 * min(1.0, broken / max(episode.facts.get("errors", 0.0), 1.0)),
        _resets_by(name, raw, netns),
        render("{n} of it to {name} were reset", n=value(broken, "connection"), name=name),
        (entry,),
        "reset",
        Culprit(object=name),
    )


def _resets_by(name: str, raw: bytes, netns: int | None) -> str:
    return f"resets by {place(name.rpartition(':')[0], raw, netns)}"


def _resets(rows: np.ndarray, episode: Episode, view: View) -> np.ndarray:
    """Resets that reached connections which the episode's process had opened."""
    rows = view.own(rows, episode)
    return np.asarray(rows[(rows["direction"] == _RECEIVED) & (rows["role"] != _SERVER)])


CAUSE = Cause(
    "network_loss",
    30,
    "packets to or from a peer were lost and retransmitted",
    {**READS, **PEERS, **ANSWERS, "tcp_reset": ("netns", "saddr", "sport", "peer", "role", "direction")},
    "check for drops on the path: ip -s link, tc -s qdisc, the switch's counters; tickscope query"
    " tcp_retransmit --group-by peer",
    {
        "decision_latency": lost,
        "refusals": lost,
        "service_errors": failed,
        "service_latency": lost,
        "connect_failures": unreached,
        "broker_stall": to_broker,
        "sender_stalled": between,
        "network_loss": of_peer,
        "network_rtt": of_peer,
        "deadline_exceeded": lost,
        "connect_latency": unanswered,
    },
    facts=("dark",),
)
