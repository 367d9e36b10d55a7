"""A name server of this host."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import EdgeKind
from agent.correlate.episode import NOT_ASKED, Episode, Waited
from agent.correlate.resolvers import READS, lookups_of
from agent.correlate.view import View
from agent.correlate.waits import SHARE


def asked(episode: Episode, view: View) -> Iterator[Waited]:
    its = lookups_of(episode, view)
    if its is None or not its.pid or its.share < SHARE or its.slower:
        return
    calls = view.own(view.during("slow_syscall", episode), episode)
    tids = frozenset(calls["waker_tid"][calls["waker_pid"] == its.pid].tolist())
    yield Waited(its.pid, its.comm, its.share, its.sure, NOT_ASKED, its.where, tids)


EDGE = EdgeKind("lookup", READS, asked, (*EdgeKind.symptoms, "lookup_latency", "lookup_failures"))
