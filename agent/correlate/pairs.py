"""The network between the two ends of a stalled connection (agent/correlate/streams.py). Shared by several causes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from agent.correlate.episode import Episode
from agent.correlate.path import Path, path
from agent.correlate.streams import Process
from agent.correlate.view import View, to_peer
from agent.correlate.waits import CPUS, PEERS
from agent.correlate.words import peer

READS = {**PEERS, **CPUS}


@dataclass(frozen=True)
class Pair:
    """idle: the end that neither did its part nor waited for the other. again: segments between the two that were
    retransmitted.
    """

    name: str
    idle: Process
    path: Path
    again: int


def reads(episode: Episode, view: View) -> tuple[int, str] | None:
    """(pid, comm) of the process that does not read (agent/correlate/stuck.py); None if it is not known to be on this
    host.
    """
    netns, raw, reader = cast("tuple[int, bytes, Process | tuple[()]]", episode.key)
    if reader:
        return reader[0], reader[2]
    server = view.server(raw, netns, episode)
    return (server[1], server[0]) if server else None


def pair(episode: Episode, view: View) -> Pair:
    return view.once(_pair, episode)


def _pair(episode: Episode, view: View) -> Pair:
    server, reader, writer = cast("tuple[bytes, Process, Process]", episode.key)
    spans = np.array([episode.start_ns]), np.array([episode.end_ns])
    rows = view.during("tcp_retransmit", episode)
    there = (rows["saddr"] == np.frombuffer(server[:16], "V16")[0]) & (
        rows["sport"] == int.from_bytes(server[16:], "little")
    )
    again = np.concatenate([to_peer(rows, server)["count"], rows["count"][there & (rows["pid"] == reader[0])]])
    return Pair(
        peer(server),
        reader if episode.symptom == "receiver_stalled" else writer,
        path(episode, view, server, None, episode.value, spans, here=True),
        int(np.maximum(again, 1).sum()),
    )
