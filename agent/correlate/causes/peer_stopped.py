"""The other end of a connection stopped reading, or writing, though the network was fine."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.episode import Culprit, Episode, Verdict, item
from agent.correlate.pairs import READS, pair, reads
from agent.correlate.view import View
from agent.correlate.words import peer, process, render, span, value


def not_reading(episode: Episode, view: View) -> Iterator[Verdict]:
    """The reader did not wait for data, so nothing was on the way. Retransmissions are no loss then: the receiver's
    buffer is full.
    """
    yield _stopped(episode, view, "{who} read nothing from it for {took}, and was not waiting for anything")


def not_writing(episode: Episode, view: View) -> Iterator[Verdict]:
    p = pair(episode, view)
    if not p.path.slower and not p.again:  # else written data is on the way
        yield _stopped(
            episode,
            view,
            "{who} wrote nothing to it for {took} and did not wait to write; no segment was retransmitted",
        )


def not_taking(episode: Episode, view: View) -> Iterator[Verdict]:
    """The kernel waited for the window, which only the reader can open again."""
    reader = reads(episode, view)
    name, unread = peer(episode.key[1]), episode.facts["unread"]  # type: ignore[arg-type]
    starving = reader is not None and view.starved_ns(reader[0], episode) > 0.5 * episode.value
    words = render(
        "{who} read nothing from it, so its receive window stayed closed{unread}",
        who=process(reader[1], reader[0]) if reader else name,
        unread=render(", with {n} unread", n=value(unread, "byte")) if unread else "",
    )
    entry = item(
        "socket_queue",
        "unsent bytes",
        episode.facts["unsent"],
        "bytes",
        column="send_q_bytes",
        keys={"peer": name, "pid": episode.pid},
    )
    sure = 0.4 if starving else 0.9 if reader else 0.8
    culprit = Culprit(reader[0], reader[1], name) if reader else Culprit(object=name)
    yield Verdict(CAUSE.name, sure, episode.scope, words, (entry,), "", culprit)


def _stopped(episode: Episode, view: View, template: str) -> Verdict:
    ends = pair(episode, view)
    pid, _, comm = ends.idle
    starving = view.starved_ns(pid, episode) > 0.5 * episode.value
    words = render(template, who=process(comm, pid), took=span(episode.value))
    entry = item(
        "syscall_latency",
        "wait at the other end",
        episode.value,
        "ns",
        column="max_ns",
        baseline=episode.base,
        keys={"pid": episode.pid},
    )
    return Verdict(
        CAUSE.name, 0.4 if starving else 0.85, episode.scope, words, (entry,), "", Culprit(pid, comm, ends.name)
    )


CAUSE = Cause(
    "peer_stopped",
    54,
    "the other end of a connection stopped reading or writing, although the network was fine",
    READS,
    "see what that process did meanwhile: its log, its stacks (gdb -p, py-spy dump), tickscope query slow_syscall",
    {"receiver_stalled": not_reading, "sender_stalled": not_writing, "window_shut": not_taking},
)
