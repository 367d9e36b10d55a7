"""An open request to a server of this host."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from agent.correlate.catalogue import EdgeKind
from agent.correlate.episode import Episode, Waited
from agent.correlate.served import NOTED_NS
from agent.correlate.view import View, to_peer
from agent.correlate.waits import PEERS, SHARE, PeerWait, on_peers


def requested(episode: Episode, view: View) -> Iterator[Waited]:
    for wait in on_peers(episode, view):
        if wait.server and wait.own >= SHARE and not wait.slower and not wait.resolver:
            comm, pid, netns = _late(wait, episode, view) or (*wait.server, -1)
            yield Waited(pid, comm, wait.own, wait.sure, (netns, int.from_bytes(wait.raw[16:18], "little")), wait.where)


def _late(wait: PeerWait, episode: Episode, view: View) -> tuple[str, int, int] | None:
    """Of the processes that serve there, the one with the longest wait for an answer meanwhile, of those that ended a
    wait of the episode's process if any are known; with its network namespace.
    """
    at = view.servers.netns_of(wait.raw, view.netns(episode, wait.raw))
    rows = view.rings["service_latency"].between(episode.start_ns, episode.end_ns + NOTED_NS)
    rows = rows[np.isin(rows["netns"], at) & (rows["sport"] == int.from_bytes(wait.raw[16:18], "little"))]
    rows = rows[(rows["max_ns"] > 0) & (rows["max_from_ns"] > 0)]
    calls = to_peer(view.own(view.during("slow_syscall", episode), episode), wait.raw)
    mine = np.isin(rows["pid"], calls["waker_pid"])
    rows = rows[mine] if mine.any() else rows
    begun = rows["max_from_ns"]
    waited = np.minimum(begun + rows["max_ns"], episode.end_ns) - np.maximum(begun, episode.start_ns)
    if not len(rows) or waited.max() <= 0:
        return None
    row = rows[int(np.argmax(waited))]
    return row["comm"].decode("utf-8", "replace"), int(row["pid"]), int(row["netns"])


EDGE = EdgeKind("socket", PEERS, requested)
