"""A server whose connections nobody accepts, and the workers that it started to accept them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from agent.correlate.catalogue import EdgeKind
from agent.correlate.episode import NOT_ASKED, UNACCEPTED, Episode, Waited
from agent.correlate.terminations import STOPS
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View
from agent.tables import TABLES

#: It may accept connections itself; and of children without a stop or a blocked call, which may have other work.
_SURE, _OTHER = 0.8, 0.7
_BEFORE_NS = 120 * SECOND
_SLOW = TABLES["slow_syscall"].code("kind", "slow")
_STOPS = [TABLES["process_event"].code("kind", kind) for kind in STOPS]


def accepting(episode: Episode, view: View) -> Iterator[Waited]:
    if episode.pid is None or (episode.symptom == "service_latency" and episode.metric != UNACCEPTED):
        return
    events = view.rings["process_event"].between(episode.start_ns - _BEFORE_NS, episode.end_ns)
    calls, spans = view.during("slow_syscall", episode), ((episode.start_ns, episode.end_ns),)
    held = {*calls["pid"][calls["kind"] == _SLOW].tolist(), *events["pid"][np.isin(events["kind"], _STOPS)].tolist()}
    for pid, comm in view.children(episode.pid, episode):
        yield Waited(pid, comm, 1.0, _SURE if pid in held else _OTHER, NOT_ASKED, "", spans=spans)


READS = {
    "socket_queue": ("kind", "queue"),
    "cpu_use": ("parent_pid",),
    "slow_syscall": ("kind", "duration_ns"),
    "process_event": ("kind",),
}
EDGE = EdgeKind("accept", READS, accepting, ("service_latency", "accept_overflow"))
