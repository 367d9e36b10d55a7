"""Requests that a process answered, as causes go by them: the slowest of each second, in the shape of decisions, since
where their time went is looked for alike.
"""

from __future__ import annotations

import numpy as np

from agent.columns import NULL_I64
from agent.correlate.catalogue import dtypes
from agent.correlate.episode import Episode
from agent.correlate.rows import as_bytes, start_ticks
from agent.correlate.view import NO_PEER, View
from agent.tables import TABLES

#: What is read of the table of that name.
READS = {
    "service_latency": (
        "tid",
        "saddr",
        "sport",
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
_SAME_NS, _OFF_NS = 50_000_000, 20_000_000  # times are in ticks, and may be a gate too short
NOTED_NS = 30_000_000_000  #: An answer is noted when the next request comes, or the connection ends.


def slow(episode: Episode, view: View) -> np.ndarray:
    """The slowest requests of the episode's process, dtype of ``limiter_decision``. The thread that read one is known,
    but not who worked on it: it has that thread's number only where some call of it was held up meanwhile.
    """
    rows = view.rings["service_latency"].between(episode.start_ns, episode.end_ns + NOTED_NS)
    rows = rows[(rows["sport"] == episode.key[1]) & (rows["netns"] == episode.key[0])]
    rows = rows[(rows["pid"] == episode.pid) & (start_ticks(rows) == episode.start_tick)]
    begun = rows["max_from_ns"]
    rows = rows[(begun <= episode.end_ns) & (begun + rows["max_ns"] >= episode.start_ns)]
    rows = rows[rows["max_ns"] > min(episode.bar, episode.value * 0.5)]
    rows = rows[np.argsort(-rows["max_ns"], kind="stable")]  # one that waits is told each second, by ticks
    rows = rows[np.sort(np.unique(rows["max_from_ns"] // _SAME_NS, return_index=True)[1])]
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
    """Without waits for its own clients' next request, or for anything: only those on peers that it had connected to
    itself count.
    """
    contacted = np.array([np.frombuffer(raw, "V18")[0] for raw in view.peers(episode)], "V18")
    named = (
        np.isin(as_bytes(calls["peer"]), as_bytes(contacted))
        if len(contacted) and len(calls)
        else np.zeros(len(calls), np.bool_)
    )
    return np.asarray(calls[named | ((calls["kind"] != _WAITING) & (calls["peer"] == NO_PEER))])
