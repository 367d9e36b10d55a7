"""Requests that a process answered: the slowest of each second, in the form of decisions, so that causes can treat both
alike.
"""

from __future__ import annotations

import numpy as np

from agent.columns import NULL_I64
from agent.common.address import peer_of
from agent.correlate.catalogue import dtypes
from agent.correlate.episode import Episode, Verdict
from agent.correlate.rows import as_bytes, start_ticks
from agent.correlate.view import NO_PEER, View, to_peer
from agent.tables import TABLES

#: Columns read, by table.
READS = {
    "service_latency": (
        "tid",
        "saddr",
        "sport",
        "peer",
        "netns",
        "interval_ns",
        "requests",
        "waiting",
        "sum_ns",
        "held_ns",
        "max_ns",
        "max_from_ns",
        "p50_ns",
        "p90_ns",
    )
}
_WAITING = TABLES["slow_syscall"].code("kind", "waiting")
_ALLOWED = TABLES["limiter_decision"].code("result", "allowed")
_SAME_NS, _OFF_NS = 50_000_000, 20_000_000  # times are in ticks, and may be short by this much
#: Causes that blame whoever serves the address that they are about.
UNANSWERED = frozenset(("broker_slow", "broker_down", "peer_stopped"))
NOTED_NS = 30_000_000_000  # An answer is recorded when the next request comes, or the connection ends.


def slow(episode: Episode, view: View) -> np.ndarray:
    """The slowest requests of the episode's process, dtype of ``limiter_decision``. The thread that read a request is
    known, but not the one that worked on it. A row has the reader's thread id only if a call of that thread was blocked
    meanwhile.
    """
    rows = view.rings["service_latency"].between(episode.start_ns, episode.end_ns + NOTED_NS)
    rows = rows[(rows["sport"] == episode.key[1]) & (rows["netns"] == episode.key[0])]
    rows = rows[(rows["pid"] == episode.pid) & (start_ticks(rows) == episode.start_tick)]
    begun = rows["max_from_ns"]
    rows = rows[(begun <= episode.end_ns) & (begun + rows["max_ns"] >= episode.start_ns)]
    rows = rows[rows["max_ns"] > min(episode.bar, episode.value * 0.5)]
    # a waiting request has a row each second, with times in ticks
    rows = rows[np.argsort(rows["max_from_ns"], kind="stable")]
    same = np.cumsum(np.diff(rows["max_from_ns"], prepend=rows["max_from_ns"][:1]) > _SAME_NS)
    longest_first = np.lexsort((-rows["max_ns"], same))
    rows = rows[longest_first[np.unique(same[longest_first], return_index=True)[1]]]
    rows = rows[np.argsort(-rows["max_ns"], kind="stable")]
    out = np.zeros(len(rows), dtypes()["limiter_decision"])
    for name in ("pid", "proc_start_ns", "comm"):
        out[name] = rows[name]
    out["t_ns"], out["duration_ns"] = rows["max_from_ns"] + rows["max_ns"] + _OFF_NS, rows["max_ns"] + _OFF_NS
    out["goroutine"], out["result"], out["tid"] = NULL_I64, _ALLOWED, NULL_I64
    calls = view.own(view.during("slow_syscall", episode), episode)
    calls = calls[calls["kind"] != _WAITING]
    own = np.isin(rows["tid"], calls["tid"])
    out["tid"][own] = rows["tid"][own]
    return out


def on_others(calls: np.ndarray, episode: Episode, view: View) -> np.ndarray:
    """Without waits for the next request of its own clients, or for any event: only waits for peers that it had
    connected to itself count.
    """
    contacted = np.array([np.frombuffer(raw, "V18")[0] for raw in view.peers(episode)], "V18")
    named = (
        np.isin(as_bytes(calls["peer"]), as_bytes(contacted))
        if len(contacted) and len(calls)
        else np.zeros(len(calls), np.bool_)
    )
    return np.asarray(calls[named | ((calls["kind"] != _WAITING) & (calls["peer"] == NO_PEER))])


def owing(raw: bytes, netns: int | None, episode: Episode, view: View) -> tuple[str, int, int] | None:
    """Of the processes of this host that serve a peer, the one with the longest wait for an answer meanwhile: (comm,
    pid, network namespace); of those that ended a wait of the episode's process, if any are known. netns: of the
    asker. None if none of them owed one.
    """
    at = view.servers.netns_of(raw, netns)
    rows = view.rings["service_latency"].between(episode.start_ns, episode.end_ns + NOTED_NS)
    rows = rows[np.isin(rows["netns"], at) & (rows["sport"] == int.from_bytes(raw[16:18], "little"))]
    rows = rows[(rows["max_ns"] > 0) & (rows["max_from_ns"] > 0)]
    calls = to_peer(view.own(view.during("slow_syscall", episode), episode), raw)
    mine = np.isin(rows["pid"], calls["waker_pid"])
    rows = rows[mine] if mine.any() else rows
    begun = rows["max_from_ns"]
    waited = np.minimum(begun + rows["max_ns"], episode.end_ns) - np.maximum(begun, episode.start_ns)
    if not len(rows) or waited.max() <= 0:
        return None
    row = rows[int(np.argmax(waited))]
    return row["comm"].decode("utf-8", "replace"), int(row["pid"]), int(row["netns"])


def blamed(verdict: Verdict, view: View, episode: Episode) -> frozenset[int]:
    """The processes of this host that it blames: those named, and the current and earlier servers of the address."""
    pids = {*verdict.blamed, *([verdict.culprit.pid] if verdict.culprit.pid is not None else ())}
    if verdict.cause in UNANSWERED:
        where, _, netns = verdict.scope.partition(" in ")
        pids |= _serving(where, int(netns) if netns.isdigit() else None, view, episode)
    return frozenset(pids)


def _serving(where: str, netns: int | None, view: View, episode: Episode) -> set[int]:
    try:
        raw = peer_of(where)
    except ValueError:
        return set()
    return {pid for _, pid in view.servers.of_late(raw, netns, view.has_address(raw, netns, episode))}
