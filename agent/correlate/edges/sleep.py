"""A call that another process of this host ended, or held up: a pipe, a local socket, a file lock, a latch."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import EdgeKind
from agent.correlate.episode import NOT_ASKED, Episode, Waited
from agent.correlate.sleeps import READS, held_up
from agent.correlate.view import View
from agent.correlate.waits import SHARE


def woken(episode: Episode, view: View) -> Iterator[Waited]:
    for sleep in held_up(episode, view):
        if sleep.by and sleep.share >= SHARE:
            yield Waited(sleep.by[1], sleep.by[0], sleep.share, sleep.sure, NOT_ASKED, "", sleep.by_tids, sleep.spans)


EDGE = EdgeKind("sleep", READS, woken)
