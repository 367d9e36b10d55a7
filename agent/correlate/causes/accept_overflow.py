"""The listener itself is slow, and nothing that delayed it was seen."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.view import View
from agent.correlate.words import process, render, value


def accepting(episode: Episode, _view: View) -> Iterator[Verdict]:
    lost = int(episode.facts.get("drops", 0))
    also = render(", and {lost} were dropped", lost=value(lost, "connection")) if lost else ""
    words = render(
        "{who} accepted connections more slowly than they arrived{also}",
        who=process(episode.comm, episode.pid),
        also=also,
    )
    yield Verdict(
        CAUSE.name,
        0.5,
        episode.scope,
        words,
        (
            item(
                "socket_queue",
                "accept queue",
                episode.value,
                "connections",
                column="queue",
                limit=episode.facts.get("limit"),
                drops=lost,
                keys={"pid": episode.pid},
            ),
        ),
    )


CAUSE = Cause(
    "accept_overflow",
    130,
    "a program accepts connections more slowly than they arrive, and no blocked call explains it",
    {},
    "raise its backlog (and net.core.somaxconn), or let more threads accept",
    {"accept_overflow": accepting},
    facts=("limit", "drops"),
)
