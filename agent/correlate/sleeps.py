"""Calls in which an episode's process slept while it owed an answer, and who ended or held up each: another process, or
nobody, if the program asked for that time. Pure.

Waits for more work are no such calls: they begin before the request that ends them, and its client ends them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.columns import NULL_I64
from agent.correlate.catalogue import dtypes, symptom_of
from agent.correlate.episode import NOT_ASKED, Episode
from agent.correlate.join import inside
from agent.correlate.rows import groups, known
from agent.correlate.thresholds import SECOND
from agent.correlate.view import NO_PEER, View
from agent.correlate.waits import SYSCALLS, WAITING, slow_decisions
from agent.correlate.wakers import REQUESTED, blamed, timed_out
from agent.correlate.words import text
from agent.tables import TABLES

READS = {**SYSCALLS, "tcp_rtt": ("netns", "role", "peer", "saddr")}
_SERVER = TABLES["tcp_rtt"].code("role", "server")
_OFF_NS = 60_000_000  # times of requests are in ticks, and late by a gate of bpf/tcp_rtt.h
_MOST = 0.7  # of a request, from which one wait is the reason for it
_READER, _OTHER = 0.9, 0.7  # certainty if the thread is the one that read the request, or another one


@dataclass(frozen=True)
class Sleep:
    """Calls of one kind that the same program ended. by: (comm, pid), of several processes the one that ended the
    longest; None if the program asked for the time, or no process ended it. processes: how many. share: of the lost
    time. tid: of the longest one.
    """

    call: str
    by: tuple[str, int] | None
    processes: int
    times: int
    longest_ns: float
    share: float
    sure: float
    tid: int
    waiting: bool


def held_up(episode: Episode, view: View) -> list[Sleep]:
    """Those with the largest share first."""
    return view.once(_held_up, episode)


def _held_up(episode: Episode, view: View) -> list[Sleep]:
    asked = symptom_of(episode).inside and episode.key != NOT_ASKED
    requests = slow_decisions(episode, view) if asked else _whole(episode)
    rows, longest = _inside(requests, episode, view)
    if not len(rows):
        return []
    by, lost = blamed(rows), float(np.maximum(requests["duration_ns"] - episode.base, 0).sum())
    readers = _readers(episode, view)
    comm = np.where(rows["holder_pid"] > 0, rows["holder_comm"], rows["waker_comm"])
    first, group = groups([by > 0, np.where(by > 0, comm, b""), rows["syscall"]])
    found = []
    for n in range(len(first)):
        mine, lasted, pids = rows[group == n], longest[group == n], by[group == n]
        top, pid = mine[int(np.argmax(lasted))], int(pids[int(np.argmax(lasted))])
        who = text(top["holder_comm"] if top["holder_pid"] > 0 else top["waker_comm"])
        waiting = bool(top["kind"] == WAITING)
        found.append(
            Sleep(
                text(top["syscall"]),
                (who, pid) if pid else None,
                len(np.unique(pids)),
                len(mine),
                float(lasted.max()),
                min(1.0, float(lasted.sum()) / lost) if lost else 0.0,
                _OTHER if waiting and int(top["tid"]) not in readers else _READER,
                int(top["tid"]),
                waiting,
            )
        )
    return sorted(found, key=lambda sleep: (-sleep.share, sleep.call))


def _whole(episode: Episode) -> np.ndarray:
    """The episode as one request."""
    out = np.zeros(1, dtypes()["limiter_decision"])
    start_ns = (episode.start_tick or 0) * 10_000_000
    out["pid"], out["proc_start_ns"] = episode.pid, max(start_ns, np.iinfo(np.int64).min)
    out["t_ns"], out["duration_ns"] = episode.end_ns + SECOND, episode.end_ns + SECOND - episode.start_ns
    out["goroutine"], out["tid"] = NULL_I64, NULL_I64
    return out


def _inside(requests: np.ndarray, episode: Episode, view: View) -> tuple[np.ndarray, np.ndarray]:
    """(sleeps while these requests waited, the longest part of each within one, ns)."""
    rows = view.own(view.during("slow_syscall", episode), episode)
    by = blamed(rows)
    timed = np.isin(rows["syscall"], [*REQUESTED]) | (timed_out(rows) & _alone(episode, view))
    rows = rows[(rows["peer"] == NO_PEER) & (timed | ((by > 0) & (by != episode.pid)))]
    i, j = inside(requests, rows)
    begun = requests["t_ns"] - requests["duration_ns"]
    within = np.minimum(rows["duration_ns"][j], rows["t_ns"][j] - begun[i])
    late = (rows["t_ns"] - rows["duration_ns"])[j] >= begun[i] - _OFF_NS
    took = np.minimum(requests["duration_ns"], float(max(episode.end_ns - episode.start_ns, 1)))
    long = within >= _MOST * took[i] - _OFF_NS
    by = blamed(rows)
    clients = _clients(set(by[by > 0].tolist()), episode, view)
    for_request = (rows["kind"][j] != WAITING) | (late & long & ~np.isin(by[j], [*clients]))
    longest = np.zeros(len(rows), np.int64)
    np.maximum.at(longest, j[for_request], within[for_request])
    return rows[longest > 0], longest[longest > 0]


def _alone(episode: Episode, view: View) -> bool:
    """Whether its process talks to no other host, from which an interrupt could bring input."""
    return all(view.server(raw, view.netns(episode, raw), episode) for raw in view.peers(episode))


def _clients(pids: set[int], episode: Episode, view: View) -> set[int]:
    """Which of these processes are clients of the episode's process."""
    talks = view.rings["tcp_rtt"].between(episode.start_ns - 60 * SECOND, episode.end_ns + SECOND)
    talks = talks[np.isin(talks["pid"], [*pids]) & (talks["role"] != _SERVER)]
    if not len(talks):
        return set()
    found = set()
    for i in groups([talks["pid"], talks["netns"], talks["peer"]])[0]:
        row = talks[i]
        raw, netns = row["peer"].tobytes(), int(row["netns"]) if known(row["netns"]) else None
        served = view.servers.of_late(raw, netns, raw[:16] == row["saddr"].tobytes())
        if episode.pid in {pid for _, pid in served}:
            found.add(int(row["pid"]))
    return found


def _readers(episode: Episode, view: View) -> set[int]:
    """Threads that read late requests."""
    rows = view.own(view.rings["service_latency"].between(episode.start_ns, episode.end_ns + 30 * SECOND), episode)
    return {int(tid) for tid in rows["tid"][rows["max_ns"] > min(episode.bar, episode.value * 0.5)]}
