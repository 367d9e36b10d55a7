"""Who asked for the answer on which a busy server spent its time: the client whose request waited longest meanwhile. A
server that serves one at a time answers that one first, or last. Pure.
"""

from __future__ import annotations

import numpy as np

from agent.correlate.episode import Episode
from agent.correlate.local import in_netns, is_loopback
from agent.correlate.rows import known
from agent.correlate.served import NOTED_NS
from agent.correlate.served import READS as REQUESTS
from agent.correlate.thresholds import SECOND
from agent.correlate.view import NO_PEER, View, own_ends
from agent.correlate.waits import NETWORK
from agent.correlate.words import Words, peer, process, render, text

READS = {**REQUESTS, "tcp_connect": (*NETWORK["tcp_connect"], "saddr", "sport")}
_CONNECTED_NS = 60 * SECOND  # before the request, at most, for a client whose process is to be known
_MOST = 0.7  # of the time, in which that request waited


def asked_by(pid: int | None, episode: Episode, view: View, took_ns: float) -> Words:
    """That client, for the end of a sentence: a process of this host if it connected lately, else ip:port. Empty if no
    request waited for most of ``took_ns``.
    """
    rows = view.rings["service_latency"].between(episode.start_ns, episode.end_ns + NOTED_NS)
    rows = rows[(rows["pid"] == pid) & (rows["max_ns"] >= _MOST * took_ns) & (rows["peer"] != NO_PEER)]
    rows = rows[known(rows["max_from_ns"]) & (rows["max_from_ns"] <= episode.end_ns)]
    rows = rows[rows["max_from_ns"] + rows["max_ns"] >= episode.start_ns]
    if not len(rows):
        return ""
    row = rows[int(np.argmax(rows["max_ns"]))]
    begun = int(row["max_from_ns"])
    connects = view.rings["tcp_connect"].between(begun - _CONNECTED_NS, begun + SECOND)
    connects = connects[own_ends(connects) == row["peer"]]
    if is_loopback(row["peer"].tobytes()):
        connects = in_netns(connects, int(row["netns"]))
    name = peer(row["peer"].tobytes())
    who = f"{process(text(connects['comm'][-1]), int(connects['pid'][-1]))} at {name}" if len(connects) else name
    return render("; the request that waited longest came from {client}", client=who)
