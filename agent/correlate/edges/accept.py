"""A server whose connections nobody accepts, and the workers that it started to accept them."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import EdgeKind
from agent.correlate.episode import NOT_ASKED, UNACCEPTED, Episode, Waited
from agent.correlate.view import View

#: It may accept connections itself; and of children without a stop or a blocked call, which may have other work.
_SURE, _OTHER = 0.8, 0.7


def accepting(episode: Episode, view: View) -> Iterator[Waited]:
    if episode.pid is None or (episode.symptom == "service_latency" and episode.metric != UNACCEPTED):
        return
    spans = ((episode.start_ns, episode.end_ns),)
    held = {int(pid) for table in ("slow_syscall", "process_event") for pid in view.during(table, episode)["pid"]}
    for pid, comm in view.children(episode.pid, episode):
        yield Waited(pid, comm, 1.0, _SURE if pid in held else _OTHER, NOT_ASKED, "", spans=spans)


READS = {"socket_queue": ("kind", "queue"), "cpu_use": ("parent_pid",)}
EDGE = EdgeKind("accept", READS, accepting, ("service_latency", "accept_overflow"))
