"""The listener itself, where nothing that held it up was seen."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.view import View
from agent.correlate.words import plural, process


def accepting(episode: Episode, _view: View) -> Iterator[Verdict]:
    lost = int(episode.facts.get("drops", 0))
    yield Verdict(CAUSE.name, 0.5, episode.scope, f"{process(episode.comm, episode.pid)} accepted connections more slowly than they came"
                  + (f", and {plural(lost, 'connection')} did not fit" if lost else ""),
                  (item("socket_queue", "accept queue", episode.value, "connections", column="queue", limit=episode.facts.get("limit"), drops=lost, pid=episode.pid),))


CAUSE = Cause("accept_overflow", 130, "a program accepts connections more slowly than they come, and nothing that held it up was seen", {},
              "raise its backlog (and net.core.somaxconn), or let more threads accept", {"accept_overflow": accepting}, facts=("limit", "drops"))
