"""A queue's messages wait for its consumers, and these for whatever they do in place of taking the next one."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.brokers import POLLER
from agent.correlate.catalogue import EdgeKind
from agent.correlate.consumption import READS as CLIENTS
from agent.correlate.consumption import consumption
from agent.correlate.dependencies import READS, dependency
from agent.correlate.episode import NOT_ASKED, Episode, Waited
from agent.correlate.view import View

_LESS = 0.7  # of its usual traffic with the broker, from which a client is slow for sure
_SURE, _OTHER = 0.95, 0.8


def waited(episode: Episode, view: View) -> Iterator[Waited]:
    group = consumption(episode, view)
    if not group.slower:
        return
    its = dependency(episode, view)
    if its is not None and its.culprit.pid is not None:
        spans, pid, comm = ((its.since_ns, episode.end_ns),), its.culprit.pid, its.culprit.comm
        yield Waited(pid, comm, 1.0, 1.0, NOT_ASKED, "", spans=spans, longest_ns=its.longest_ns)
    clients = [client for client in group.clients if client.comm.encode() != POLLER]
    less = [client for client in clients if client.share <= _LESS]
    broker, spans = episode.key[-1], ((episode.start_ns, episode.end_ns),)
    assert isinstance(broker, bytes)
    for client in less or clients:
        sure = _SURE if less else _OTHER
        for pid, comm in ((client.pid, client.comm), *view.children(client.pid, episode)):
            yield Waited(pid, comm, 1.0, sure, NOT_ASKED, episode.scope, spans=spans, idle_at=broker)


EDGE = EdgeKind("consumer", {**CLIENTS, **READS, "cpu_use": ("parent_pid",)}, waited, ("queue_lag",))
