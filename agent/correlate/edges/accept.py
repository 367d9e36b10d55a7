"""A server whose connections nobody accepts, and the workers that it started to accept them."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import EdgeKind
from agent.correlate.episode import NOT_ASKED, UNACCEPTED, Episode, Waited
from agent.correlate.view import View

_SURE = 0.95


def accepting(episode: Episode, view: View) -> Iterator[Waited]:
    if episode.metric != UNACCEPTED or episode.pid is None:
        return
    spans = ((episode.start_ns, episode.end_ns),)
    for pid, comm in view.children(episode.pid):
        yield Waited(pid, comm, 1.0, _SURE, NOT_ASKED, "", spans=spans)


READS = {"socket_queue": ("kind", "queue"), "cpu_use": ("parent_pid",)}
EDGE = EdgeKind("accept", READS, accepting, ("service_latency",))
