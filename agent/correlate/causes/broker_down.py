"""A peer refused connections, or did not run. The process that serves its port now may be another one, so no pid is
given.
"""

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
_WORDS_BYTES, _AT_ONCE_NS, _BEFORE_NS = 1024, 200_000_000, 30 * SECOND
_FAILED = TABLES["tcp_connect"].code("result", "failed")


def unreachable(episode: Episode, view: View) -> Iterator[Verdict]:
    """As seen by the poller."""
    poll = polled(episode, view)
    error = episode.words.removeprefix(f"{episode.key[0]} {poll.where}: ")
    why = f" ({error})" if error else ""
    yield Verdict(
        CAUSE.name,
        0.95,
        poll.scope,
        f"{episode.subject} could not be reached{why}",
        (poll.seen,),
        culprit=_server(poll.server, poll.where),
        short=error,
    )


def _server(server: tuple[str, int] | None, where: str) -> Culprit:
    return Culprit(server[1], server[0], where) if server else Culprit(object=where)


def refused(episode: Episode, view: View) -> Iterator[Verdict]:
    for wait in on_peers(episode, view):
        if len(wait.failed) and not wait.resolver:
            yield Verdict(
                CAUSE.name,
                0.95 * wait.sure,
                wait.where,
                render(
                    "{who} refused or failed {n}",
                    who=f"{process(*wait.server)} at {wait.name}" if wait.server else wait.name,
                    n=value(len(wait.failed), "connection"),
                ),
                (
                    item(
                        "tcp_connect",
                        "failed connects",
                        len(wait.failed),
                        "",
                        keys={"peer": wait.name, "errno": int(wait.failed["errno"][0])},
                    ),
                    wait.wait,
                ),
                culprit=_server(wait.server, wait.name),
            )


def turned_away(episode: Episode, view: View) -> Iterator[Verdict]:
    """A peer, as seen by its clients."""
    netns, raw = cast("tuple[int, bytes]", episode.key[:2])
    rows = in_netns(to_peer(view.during("tcp_connect", episode), raw), netns)
    refusals = rows[(rows["result"] == _FAILED) & (rows["errno"] == errno.ECONNREFUSED)]
    if len(refusals) and len(refusals) >= 0.5 * episode.facts.get("failed", 0.0) >= 0.5 * episode.facts.get(
        "broken", 0.0
    ):
        server, name = view.server(raw, netns, episode), peer(raw)
        words = render("{who} refused {n}", who=server[0] if server else "it", n=value(len(refusals), "connection"))
        entry = item(
            "tcp_connect", "failed connects", len(refusals), "", keys={"peer": name, "errno": errno.ECONNREFUSED}
        )
        sure = 0.94 if episode.symptom == "retry_storm" else 0.8  # the refusals are why it retries
        yield Verdict(CAUSE.name, sure, place(name, raw, netns), words, (entry,), "", Culprit(object=name))


def shown_out(episode: Episode, view: View) -> Iterator[Verdict]:
    """A peer that accepts a connection, sends a few bytes, and closes it at once: a limit of connections, or an
    unwanted client. A network does not do that. Where each short answer has a connection of its own, they end like
    this all the time.
    """
    netns, raw = cast("tuple[int, bytes]", episode.key[:2])

    def ended(closes: np.ndarray) -> np.ndarray:
        rows = in_netns(to_peer(closes, raw), netns)
        rows = rows[(rows["role"] == _CLIENT) & (rows["bytes_in"] > 0) & (rows["bytes_in"] <= _WORDS_BYTES)]
        return np.asarray(rows[(rows["duration_ns"] >= 0) & (rows["duration_ns"] <= _AT_ONCE_NS)])

    rows, broken = ended(view.during("tcp_close", episode, SECOND)), episode.facts.get("broken", 0.0)
    if not broken or len(rows) < 0.5 * broken or broken <= episode.facts.get("failed", 0.0):
        return
    lasted_s = (episode.end_ns - episode.start_ns) / SECOND + 2
    before = ended(view.rings["tcp_close"].between(episode.start_ns - _BEFORE_NS, episode.start_ns - SECOND))
    if len(rows) < 3 * len(before) * lasted_s * SECOND / (_BEFORE_NS - SECOND):
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
    """A queue with a server that was unreachable just before, or meanwhile: its backlog is being processed."""
    outage = away(episode, view)
    if outage is not None and outage.down:
        words = render("its server was unreachable for {gone} ({why})", gone=span(outage.gone_ns), why=outage.why)
        yield Verdict(CAUSE.name, 0.93, outage.scope, words, (outage.seen,), culprit=outage.culprit)


def _not_there(episode: Episode, view: View) -> Iterator[Verdict]:
    """A server answers with errors because another server that it calls refuses connects, or is not ready."""
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
    """The error of the connects, if they were not refused by the server's own kernel."""
    return "" if end.errno in (0, errno.ECONNREFUSED) else errno.errorcode.get(end.errno, "")


def failing(episode: Episode, view: View) -> Iterator[Verdict]:
    """Failed connections; failed polls; a server that reports that it is not ready."""
    yield from _not_there(episode, view)
    if episode.pid is not None:
        yield from refused(episode, view)
    for broker in refusing(episode, view):
        kinds = [kind for kind in ("LOADING", "CLUSTERDOWN") if broker.errors[kind]]
        if kinds:
            n = value(sum(broker.errors[kind] for kind in kinds))
            words = render("{who} refused {n} commands ({kinds})", who=broker.who, n=n, kinds=" and ".join(kinds))
            yield Verdict(CAUSE.name, 0.9, broker.scope, words, (broker.replies(*kinds),), culprit=broker.culprit)
        elif broker.down and not broker.own:
            why = item(
                "queue_lag",
                "failed polls",
                None,
                column="reason",
                reason=", ".join(broker.down),
                keys={"peer": broker.where},
            )
            words = f"{broker.who} could not be reached from tickscope either ({broker.down[0]})"
            yield Verdict(CAUSE.name, 0.85, broker.scope, words, (why,), culprit=broker.culprit)


CAUSE = Cause(
    "broker_down",
    20,
    "a broker, or another server, refused connections or did not run",
    {**POLLS, **READS, **PEERS, **ANSWERS, "tcp_close": (*ANSWERS["tcp_close"], "duration_ns", "bytes_in")},
    "check whether it runs, and why it ended: its log, and the state of its unit",
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
