"""Calls in which an episode's process slept while it owed an answer, and who ended or held up each: another process, or
nobody, if the program asked for that time. Pure.

Waits for more work are no such calls: they begin before the request that ends them, and its client ends them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from agent.columns import NULL_I64
from agent.correlate.calls import BEFORE_NS, ended_or_since, lasted, until
from agent.correlate.catalogue import dtypes, symptom_of
from agent.correlate.episode import NOT_ASKED, Episode
from agent.correlate.join import inside
from agent.correlate.local import is_loopback
from agent.correlate.path import ENOUGH, merged
from agent.correlate.rows import groups, known
from agent.correlate.spending import READS as SPENDING
from agent.correlate.spending import spending
from agent.correlate.thresholds import SECOND
from agent.correlate.view import LEAD_NS, NO_PEER, View, addresses
from agent.correlate.waits import SYSCALLS, WAITING, covered_by, slow_decisions
from agent.correlate.wakers import ANY, REQUESTED, all_known, blamed, of_threads, through_last_waits, timed_out
from agent.correlate.words import Words, text
from agent.tables import TABLES

READS = {**SPENDING, **SYSCALLS, "tcp_rtt": ("netns", "role", "peer", "saddr")}
_SERVER = TABLES["tcp_rtt"].code("role", "server")
_OFF_NS = 60_000_000  # times of requests are in ticks, and late by a gate of bpf/tcp_rtt.h
_MOST = 0.5  # of a request, from which one wait is the reason for it
_HELD = 0.5  # of a wait for a thread, from which that thread's own last wait is the reason for it
_CALLS = 1024  # more than there are
_READER, _OTHER = 0.9, 0.7  # certainty if the thread that read the request slept, or another one


@dataclass(frozen=True)
class Sleep:
    """Calls of one kind that the same program ended. by: (comm, pid), of several processes the one that ended the
    longest; None if the program asked for the time, or no process ended it. processes: how many. share: of the lost
    time. tid: of the longest one. by_tids: the threads that ended them. spans: their
    times, merged. lock: the file whose lock they wait for, or try again to get; empty if it is none.
    """

    call: str
    by: tuple[str, int] | None
    processes: int
    times: int
    longest_ns: float
    longest: Words
    share: float
    sure: float
    tid: int
    waiting: bool
    by_tids: frozenset[int]
    spans: tuple[tuple[int, int], ...]
    lock: str


def held_up(episode: Episode, view: View) -> list[Sleep]:
    """Those with the largest share first."""
    return view.once(_held_up, episode)


def _held_up(episode: Episode, view: View) -> list[Sleep]:
    asked = symptom_of(episode).inside and episode.key != NOT_ASKED
    requests = slow_decisions(episode, view) if asked else _whole(episode)
    readers = _readers(episode, view)
    more = {} if asked or episode.tids else _more(episode, view)
    rows, longest = _inside(requests, readers, asked, more, episode, view)
    if not len(rows):
        return []
    by, lost = blamed(rows), float(np.maximum(requests["duration_ns"] - episode.base, 0).sum())
    spans = requests["t_ns"] - requests["duration_ns"], np.minimum(requests["t_ns"], episode.end_ns + _OFF_NS)
    first, group = groups([by > 0, np.where(by > 0, _comm(rows), b""), rows["syscall"]])
    found = []
    for n in range(len(first)):
        mine, took, pids = rows[group == n], longest[group == n], by[group == n]
        top, pid = mine[int(np.argmax(took))], int(pids[int(np.argmax(took))])
        call, waiting = text(top["syscall"]), bool(top["kind"] == WAITING)
        sure = 1.0 if episode.tids else _OTHER if waiting and int(top["tid"]) not in readers else _READER
        share = max(min(1.0, float(took.sum()) / lost) if lost else 0.0, covered_by(mine, spans))
        found.append(
            Sleep(
                call,
                (text(_comm(top).item()), pid) if pid else None,
                len(np.unique(pids)),
                len(mine),
                float(took.max()),
                lasted(top, float(took.max())),
                max(share, more.get(call, 0.0) * float(took.sum() / longest[rows["syscall"] == top["syscall"]].sum())),
                max(sure, _READER if call in more else 0.0),
                int(top["tid"]),
                waiting,
                all_known(mine["waker_tid"][mine["waker_pid"] == pid]),
                tuple(zip(*(ns.tolist() for ns in merged(mine["t_ns"] - took, mine["t_ns"])), strict=True)),
                text(top["file"]) if top["holder_pid"] > 0 else "",
            )
        )
    return sorted(found, key=lambda sleep: (-sleep.share, sleep.call))


def _more(episode: Episode, view: View) -> dict[str, float]:
    """The calls that take more of its time than before, with that share."""
    return {one.call: one.more for one in spending(episode, view) if one.more >= ENOUGH}


def _comm(rows: np.ndarray) -> np.ndarray:
    """Of who held or ended each."""
    return np.where(rows["holder_pid"] > 0, rows["holder_comm"], rows["waker_comm"])


def _whole(episode: Episode) -> np.ndarray:
    """The episode as one request, or the waits for its process as one each."""
    spans = episode.spans or ((episode.start_ns, episode.end_ns + SECOND),)
    out = np.zeros(len(spans), dtypes()["limiter_decision"])
    start_ns = (episode.start_tick or 0) * 10_000_000
    out["pid"], out["proc_start_ns"] = episode.pid, max(start_ns, np.iinfo(np.int64).min)
    out["t_ns"] = [to_ns for _, to_ns in spans]
    out["duration_ns"] = [to_ns - from_ns for from_ns, to_ns in spans]
    out["goroutine"], out["tid"] = NULL_I64, NULL_I64
    return out


def _inside(
    requests: np.ndarray, readers: set[int], asked: bool, more: Mapping[str, float], episode: Episode, view: View
) -> tuple[np.ndarray, np.ndarray]:
    """(sleeps while these requests waited, the longest part of each within one, ns)."""
    rows = view.own(view.during("slow_syscall", episode, LEAD_NS if asked else SECOND), episode)
    rows = until(rows, int(requests["t_ns"].max(initial=0)))
    within_program = rows[blamed(rows) == episode.pid]
    if episode.tids:
        rows = of_threads(rows, episode.tids, episode.pid)
    passed = np.zeros(len(rows), np.bool_)
    if not episode.tids and asked and readers:
        rows, passed = through_last_waits(rows, episode.pid, frozenset(readers))
    rows, last, passed = _ended(requests, rows, passed, episode, view)
    i, j = inside(requests, rows)
    begun = requests["t_ns"] - requests["duration_ns"]
    within = np.minimum(rows["duration_ns"][j], rows["t_ns"][j] - begun[i])
    late = (rows["t_ns"] - rows["duration_ns"])[j] >= begun[i] - _OFF_NS
    took = np.minimum(requests["duration_ns"], float(max(episode.end_ns - episode.start_ns, 1)))
    queued = _queued(begun[i], rows, j, within_program)
    long = (within >= _MOST * (took[i] - queued) - _OFF_NS) | bool(episode.tids)
    by = blamed(rows)
    clients = _clients(set(by[by > 0].tolist()), episode, view)
    waits = rows["kind"][j] == WAITING
    # What the thread that ended the waits had asked for itself may have begun before.
    late |= np.isin(rows["syscall"], [*REQUESTED])[j] & bool(episode.tids)
    late = (late & (passed[j] | ~np.isin(by[j], [*clients]))) | last[j]
    # If one of them is the reason for a request, so are its like: how long their threads waited before is not known.
    called, of_any = by * _CALLS + np.unique(rows["syscall"], return_inverse=True)[1], np.isin(rows["syscall"], ANY)
    alike = np.isin(called[j], called[j[waits & late & long]]) & ~of_any[j]
    # So are calls that take more of its time than before.
    alike |= np.isin(rows["syscall"][j], [call.encode() for call in more]) & ~of_any[j]
    # So are those of a thread that has read one and tries something again and again.
    napping = np.isin(rows["syscall"], [*REQUESTED]) & np.isin(rows["tid"], [*readers])
    again = (rows["holder_pid"] > 0) | napping
    for_request = ~waits | (late & (long | alike | again[j]))
    for_request &= waits | ended_or_since(rows[j], begun[i] - (LEAD_NS if asked else BEFORE_NS), episode.stuck)
    longest = np.zeros(len(rows), np.int64)
    np.maximum.at(longest, j[for_request], within[for_request])
    return rows[longest > 0], longest[longest > 0]


def _ended(
    requests: np.ndarray, rows: np.ndarray, passed: np.ndarray, episode: Episode, view: View
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(those that another process ended, or nobody, as the program asked for the time; which of them are last waits;
    which have passed through threads)
    """
    by, timed, nobody = blamed(rows), np.isin(rows["syscall"], [*REQUESTED]), timed_out(rows)
    if nobody.any() and _alone(episode, view):
        timed |= nobody
    others = (by > 0) & (by != episode.pid)
    last = others & _last(requests, rows) if episode.tids else np.zeros(len(rows), np.bool_)
    counts = last | ((rows["peer"] == NO_PEER) & (timed | others))
    return rows[counts], last[counts], passed[counts]


def _last(requests: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Which rows are the last waits of their threads before the end of a request, and most of it. Who ended such a wait
    let the thread go on, also a client: one that is idle in a transaction holds up all who wait for its locks.
    """
    i, j = inside(requests, rows)
    last = np.zeros(len(rows), np.bool_)
    if len(j):
        t_ns, begun = rows["t_ns"][j], (requests["t_ns"] - requests["duration_ns"])[i]
        _, thread = groups([i, rows["tid"][j]])
        newest = np.zeros(len(j), np.int64)
        np.maximum.at(newest, thread, t_ns)
        most = np.minimum(rows["duration_ns"][j], t_ns - begun) >= _HELD * requests["duration_ns"][i]
        last[j[most & (t_ns == newest[thread])]] = True
    return last


def _queued(since_ns: np.ndarray, rows: np.ndarray, j: np.ndarray, waits: np.ndarray) -> np.ndarray:
    """For how long since that time the thread of row j had waited, just before, for another thread of its program."""
    begun, ended = rows["t_ns"] - rows["duration_ns"], waits["t_ns"]
    tid, t_ns = np.concatenate([waits["tid"], rows["tid"]]), np.concatenate([ended, begun])
    is_row = np.arange(len(tid)) >= len(waits)
    order = np.lexsort((is_row, t_ns, tid))
    last = np.maximum.accumulate(np.where(is_row[order], -1, np.arange(len(order))))
    before = np.full(len(rows), -1)
    its = is_row[order] & (last >= 0)
    found = order[last[its]]
    before[order[its] - len(waits)] = np.where(tid[found] == tid[order[its]], found, -1)
    if not len(waits):
        return np.zeros(len(j))
    at = before[j]
    took = np.minimum(ended[at], begun[j]) - np.maximum((ended - waits["duration_ns"])[at], since_ns)
    return np.where(at >= 0, took.clip(0), 0)


def _alone(episode: Episode, view: View) -> bool:
    """Whether its process talks to no other host, from which an interrupt could bring input."""
    if not all(view.server(raw, view.netns(episode, raw), episode) for raw in view.peers(episode)):
        return False
    talks = view.own(view.rings["tcp_rtt"].between(episode.start_ns - 60 * SECOND, episode.end_ns + SECOND), episode)
    clients = talks[talks["role"] == _SERVER]
    away = clients[addresses(clients).view("V16")[:, 0] != clients["saddr"]] if len(clients) else clients
    return all(is_loopback(address.tobytes()) for address in np.unique(addresses(away), axis=0))


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
