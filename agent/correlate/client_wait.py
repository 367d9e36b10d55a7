"""A server that serves one client at a time, and waits for what that one sends: others wait for the thread that reads.
Pure.

A thread that waits for the next request of its client is idle. But if it read a late request only after such a wait,
the wait for another client is the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.correlate.catalogue import symptom_of
from agent.correlate.episode import NOT_ASKED, Culprit, Episode
from agent.correlate.path import covered
from agent.correlate.rows import among
from agent.correlate.served import NOTED_NS
from agent.correlate.served import READS as REQUESTS
from agent.correlate.view import NO_PEER, View
from agent.correlate.waits import SYSCALLS, WAITING, slow_spans
from agent.correlate.wakers import ANY
from agent.correlate.words import peer, process, text

READS = {**SYSCALLS, **REQUESTS}
_MOST = 0.5  # of a request, from which the wait before it is the reason for it


@dataclass(frozen=True)
class ClientWait:
    """The longest wait for a client. by: (comm, pid) of the client, if it is on this host; name: its ip:port. share: of
    the lost time, with all such waits. spans: their times.
    """

    call: str
    by: tuple[str, int] | None
    name: str
    tid: int
    longest_ns: float
    share: float
    spans: tuple[tuple[int, int], ...]

    @property
    def who(self) -> str:
        return f"{process(*self.by)} at {self.name}" if self.by else self.name

    @property
    def culprit(self) -> Culprit:
        return Culprit(self.by[1], self.by[0], self.name) if self.by else Culprit(object=self.name)


def client_wait(episode: Episode, view: View) -> ClientWait | None:
    """None if no late request waited for that."""
    return view.once(_client_wait, episode)


def _client_wait(episode: Episode, view: View) -> ClientWait | None:
    if not symptom_of(episode).inside or episode.key == NOT_ASKED or symptom_of(episode).table not in REQUESTS:
        return None
    late = view.own(view.rings["service_latency"].between(episode.start_ns, episode.end_ns + NOTED_NS), episode)
    late = late[(late["sport"] == episode.key[1]) & (late["netns"] == episode.key[0]) & (late["tid"] > 0)]
    late = late[late["max_ns"] > min(episode.bar, episode.value * 0.5)]
    calls = view.own(view.during("slow_syscall", episode), episode)
    calls = calls[(calls["kind"] == WAITING) & (calls["peer"] != NO_PEER) & ~np.isin(calls["syscall"], ANY)]
    calls = calls[np.isin(calls["tid"], late["tid"]) & ~among(calls["peer"], view.peers(episode))]
    if not len(calls) or not len(late):
        return None
    begun, ended = calls["t_ns"] - calls["duration_ns"], calls["t_ns"]
    from_ns, to_ns = late["max_from_ns"][:, None], (late["max_from_ns"] + late["max_ns"])[:, None]
    within = (np.minimum(ended, to_ns) - np.maximum(begun, from_ns)).clip(0)
    within[late["tid"][:, None] != calls["tid"]] = 0
    why = (within >= _MOST * late["max_ns"][:, None]).any(axis=0)
    if not why.any():
        return None
    calls, begun, ended = calls[why], begun[why], ended[why]
    top = calls[int(np.argmax(calls["duration_ns"]))]
    return ClientWait(
        text(top["syscall"]),
        (text(top["waker_comm"]), int(top["waker_pid"])) if top["waker_pid"] > 0 else None,
        peer(top["peer"].tobytes()),
        int(top["tid"]),
        float(top["duration_ns"]),
        covered((begun, ended), slow_spans(episode, view)),
        tuple(zip(begun.tolist(), ended.tolist(), strict=True)),
    )
