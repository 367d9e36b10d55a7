"""A call that another process of this host ended, or held up: a pipe, a local socket, a file lock, a latch."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import EdgeKind, symptom_of
from agent.correlate.client_wait import READS as REQUESTS
from agent.correlate.client_wait import client_wait
from agent.correlate.episode import NOT_ASKED, Episode, Waited
from agent.correlate.sleeps import READS, held_up
from agent.correlate.view import View
from agent.correlate.waits import SHARE

_SURE = 0.95  # that a client is the process that ended the wait for what it sends


def woken(episode: Episode, view: View) -> Iterator[Waited]:
    for sleep in held_up(episode, view):
        if sleep.by and sleep.share >= SHARE:
            (comm, pid), share, sure = sleep.by, sleep.share, sleep.sure
            yield Waited(pid, comm, share, sure, NOT_ASKED, "", sleep.by_tids, sleep.spans, lock=sleep.lock)
    its = client_wait(episode, view)
    if its is not None and its.by and its.share >= SHARE and episode.metric not in symptom_of(episode).alone:
        yield Waited(its.by[1], its.by[0], its.share, _SURE, NOT_ASKED, "", spans=its.spans)


EDGE = EdgeKind("sleep", {**REQUESTS, **READS}, woken)
