"""A queue's messages wait for its consumers, and these for another server of this host."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import EdgeKind
from agent.correlate.dependencies import READS, dependency
from agent.correlate.episode import NOT_ASKED, Episode, Waited
from agent.correlate.view import View


def waited(episode: Episode, view: View) -> Iterator[Waited]:
    its = dependency(episode, view)
    if its is not None and its.culprit.pid is not None:
        spans = ((its.since_ns, episode.end_ns),)
        yield Waited(its.culprit.pid, its.culprit.comm, 1.0, 1.0, NOT_ASKED, "", spans=spans)


EDGE = EdgeKind("consumer", READS, waited, ("queue_lag",))
