"""A peer refused connections, or was not there. Who serves its port now need not be who was away: no pid is told."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import cast

import numpy as np

from agent.correlate.answered import READS as ANSWERS
from agent.correlate.answered import UNREADY, FailedHop, chain
from agent.correlate.catalogue import Cause
from agent.correlate.episode import Culprit, Episode, Verdict, item
from agent.correlate.local import in_netns
from agent.correlate.polled import READS, away, polled
from agent.correlate.refusing import READS as POLLS
from agent.correlate.refusing import refusing
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View, place, to_peer
from agent.correlate.waits import PEERS, on_peers
from agent.correlate.words import peer, process, render, span, value
from agent.tables import TABLES

_CLIENT = TABLES["tcp_close"].code("role", "client")
_WORDS_BYTES, _AT_ONCE_NS = 1024, 200_000_000
_FAILED = TABLES["tcp_connect"].code("result", "failed")


def unreachable(episode: Episode, view: View) -> Iterator[Verdict]:
    """As the poller saw it."""
    p = polled(episode, view)
    error = episode.words.removeprefix(f"{episode.key[0]} {p.where}: ")
    why = f" ({error})" if error else ""
    yield Verdict(
        CAUSE.name,
        0.95,
        p.scope,
        f"{episode.subject} could not be reached{why}",
        (p.seen,),
        culprit=_server(p.server, p.where),
        short=error,
    )


def _server(server: tuple[str, int] | None, where: str) -> Culprit:
    return Culprit(server[1], server[0], where) if server else Culprit(object=where)


def refused(episode: Episode, view: View) -> Iterator[Verdict]:
    for p in on_peers(episode, view):
        if len(p.failed) and not p.resolver:
            yield Verdict(
                CAUSE.name,
                0.95 * p.sure,
                p.where,
                render(
                    "{who} refused or failed {n}",
                    who=f"{process(*p.server)} at {p.name}" if p.server else p.name,
                    n=value(len(p.failed), "connection"),
                ),
                (
                    item(
                        "tcp_connect",
                        "failed connects",
                        len(p.failed),
                        "",
                        keys={"peer": p.name, "errno": int(p.failed["errno"][0])},
                    ),
                    p.wait,
                ),
                culprit=_server(p.server, p.name),
            )


def turned_away(episode: Episode, view: View) -> Iterator[Verdict]:
    """A peer, as its clients saw it."""
    netns, raw = cast("tuple[int, bytes]", episode.key[:2])
    rows = in_netns(to_peer(view.during("tcp_connect", episode), raw), netns)
    refused_ = rows[(rows["result"] == _FAILED) & (rows["errno"] == errno.ECONNREFUSED)]
    if len(refused_) and len(refused_) >= 0.5 * episode.facts.get("failed", 0.0) >= 0.5 * episode.facts.get(
        "broken", 0.0
    ):
        server, name = view.server(raw, netns, episode), peer(raw)
        words = render("{who} refused {n}", who=server[0] if server else "it", n=value(len(refused_), "connection"))
        entry = item(
            "tcp_connect", "failed connects", len(refused_), "", keys={"peer": name, "errno": errno.ECONNREFUSED}
        )
        sure = 0.94 if episode.symptom == "retry_storm" else 0.8  # it is why they are tried again
        yield Verdict(CAUSE.name, sure, place(name, raw, netns), words, (entry,), "", Culprit(object=name))


def shown_out(episode: Episode, view: View) -> Iterator[Verdict]:
    """A peer that takes a connection, says a few words, and ends it at once: a limit of connections, or whom it does
    not want. No network does that.
    """
    netns, raw = cast("tuple[int, bytes]", episode.key[:2])
    rows = in_netns(to_peer(view.during("tcp_close", episode, SECOND), raw), netns)
    rows = rows[(rows["role"] == _CLIENT) & (rows["bytes_in"] > 0) & (rows["bytes_in"] <= _WORDS_BYTES)]
    rows = rows[(rows["duration_ns"] >= 0) & (rows["duration_ns"] <= _AT_ONCE_NS)]
    broken = episode.facts.get("broken", 0.0)
    if not broken or len(rows) < 0.5 * broken or broken <= episode.facts.get("failed", 0.0):
        return
    server, name = view.server(raw, netns, episode), peer(raw)
    who = process(*server) if server else "it"
    error = int(np.median(rows["bytes_in"]))
    words = render(
        "{who} closed {n} at once, each after {error}: its client limit may be reached",
        who=who,
        n=value(len(rows), "connection"),
        error=value(error, "byte"),
    )
    entry = item(
        "tcp_close",
        "connections closed after a few bytes",
        len(rows),
        "",
        column="bytes_in",
        bytes=error,
        keys={"peer": name},
    )
    yield Verdict(CAUSE.name, 0.85, place(name, raw, netns), words, (entry,), "turned_away", _server(server, name))


def reached(episode: Episode, view: View) -> Iterator[Verdict]:
    yield from turned_away(episode, view)
    yield from shown_out(episode, view)


def behind(episode: Episode, view: View) -> Iterator[Verdict]:
    """A queue whose server was away just before, or meanwhile: what piled up then is being taken."""
    a = away(episode, view)
    if a is not None and a.down:
        words = render("its server was unreachable for {gone} ({why})", gone=span(a.gone_ns), why=a.why)
        yield Verdict(CAUSE.name, 0.93, a.scope, words, (a.seen,), culprit=a.culprit)


def _not_there(episode: Episode, view: View) -> Iterator[Verdict]:
    """A server answers with errors since another one that it asks refuses connects, or says that it is not ready."""
    for end in chain(episode, view)[-1:]:
        if end.how == "refused" and end.errno != errno.EADDRNOTAVAIL:
            why = refused_by(end)
            words = render(
                "{who} {refused} {n} of {by}{why}",
                who=end.who,
                refused="failed" if why else "refused",
                n=value(end.n, "connection"),
                by=end.by,
                why=f" ({why})" if why else "",
            )
            yield Verdict(CAUSE.name, 0.92, end.where, words, end.evidence(), "", Culprit(object=end.name))
        elif end.code in UNREADY:
            words = render(
                "{who} is not ready ({error} in answer to {n}{asked})",
                who=end.who,
                error=end.error_text,
                n=value(end.n, "request"),
                asked=end.requested_by,
            )
            yield Verdict(CAUSE.name, end.capped(0.9), end.where, words, end.evidence(), "", end.culprit)


def refused_by(end: FailedHop) -> str:
    """Where it was not the server's own kernel that refused: how the connects failed."""
    return "" if end.errno in (0, errno.ECONNREFUSED) else errno.errorcode.get(end.errno, "")


def failing(episode: Episode, view: View) -> Iterator[Verdict]:
    """Connections that failed; polls that did; a server that says itself that it is not ready."""
    yield from _not_there(episode, view)
    if episode.pid is not None:
        yield from refused(episode, view)
    for b in refusing(episode, view):
        kinds = [kind for kind in ("LOADING", "CLUSTERDOWN") if b.errors[kind]]
        if kinds:
            n = value(sum(b.errors[kind] for kind in kinds))
            words = render("{who} refused {n} commands ({kinds})", who=b.who, n=n, kinds=" and ".join(kinds))
            yield Verdict(CAUSE.name, 0.9, b.scope, words, (b.replies(*kinds),), culprit=b.culprit)
        elif b.down and not b.own:
            why = item(
                "queue_lag", "failed polls", None, column="reason", reason=", ".join(b.down), keys={"peer": b.where}
            )
            words = f"{b.who} could not be reached from tickscope either ({b.down[0]})"
            yield Verdict(CAUSE.name, 0.85, b.scope, words, (why,), culprit=b.culprit)


CAUSE = Cause(
    "broker_down",
    20,
    "a broker, or another server, refused connections or did not run",
    {**POLLS, **READS, **PEERS, **ANSWERS, "tcp_close": (*ANSWERS["tcp_close"], "duration_ns", "bytes_in")},
    "see whether it runs, and why it ended: its log, and its unit's state",
    {
        "broker_down": unreachable,
        "decision_latency": refused,
        "refusals": refused,
        "service_errors": failing,
        "connect_failures": reached,
        "retry_storm": turned_away,
        "queue_lag": behind,
    },
    merge_group="broker",
)
