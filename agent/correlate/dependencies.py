"""What a queue's consumers waited for, beside its broker: their database, or another server that they call. Shared by
causes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from agent.correlate.episode import Culprit, Episode, Evidence, item
from agent.correlate.rows import groups
from agent.correlate.served import READS as SERVED
from agent.correlate.served import owing
from agent.correlate.thresholds import SECOND
from agent.correlate.view import NO_PEER, SERVERS, View, to_peer
from agent.correlate.words import peer, process, text
from agent.tables import TABLES

READS = {**SERVERS, **SERVED, "syscall_latency": ("basis", "kind", "peer", "interval_ns", "count", "sum_ns", "max_ns")}
_SERVER = TABLES["tcp_rtt"].code("role", "server")
_WAITING = TABLES["syscall_latency"].code("kind", "waiting")
_BEFORE_NS, _KNOWN_NS = 60 * SECOND, 30 * SECOND  # what is usual is taken from this time, and at least from that
_LEAST_NS = 100_000_000  # consumers usually wait for milliseconds
_RATIO, _USUALLY = 3, 0.8  # times the usual longest wait of a second: this quantile of those before
# Libraries that look for signals wait again and again, for 0.1 s each (psycopg 3): calls of at least this mean length
# that fill this part of a second are one wait.
_SLICE_NS, _FILLED = 50_000_000, 0.8
_STEADY_NS = 15 * SECOND  # a process that so waited before does so all the time


@dataclass(frozen=True)
class Dependency:
    """The server for which a consumer waited longest, and far longer than before, ns. since_ns: when consumers became
    slow, CLOCK_BOOTTIME.
    """

    longest_ns: float
    since_ns: int
    client: str
    who: str
    culprit: Culprit
    seen: Evidence


def _began_ns(episode: Episode, view: View) -> int:
    """When the consumers became slow, at the latest: a queue falls behind before that is a symptom. If its oldest
    message has waited for so long, they have been slow since then. No earlier than rows show what was usual before.
    """
    aged_ns = int((view.config.age_rise_s + 1) * SECOND)
    waited_ns = int(episode.value * SECOND) if episode.unit == "s" else 0
    began_ns = min(episode.start_ns - aged_ns, episode.end_ns - waited_ns)
    return max(began_ns, episode.end_ns - view.config.keep_ns + _KNOWN_NS)


def dependency(episode: Episode, view: View) -> Dependency | None:
    return view.once(_dependency, episode)


def _dependency(episode: Episode, view: View) -> Dependency | None:
    broker = episode.key[-1]
    assert isinstance(broker, bytes)
    since_ns = _began_ns(episode, view)
    talks = view.rings["tcp_rtt"].between(since_ns - _BEFORE_NS, episode.end_ns + SECOND)
    talks = to_peer(talks[talks["role"] != _SERVER], broker)
    if not broker or not len(talks):
        return None
    rows = view.rings["syscall_latency"].between(since_ns - _BEFORE_NS, episode.end_ns + 2 * SECOND)
    rows = rows[(rows["kind"] == _WAITING) & (rows["peer"] != NO_PEER) & np.isin(rows["pid"], talks["pid"])]
    rows = rows[rows["peer"] != np.frombuffer(broker, "V18")[0]]
    if not len(rows):
        return None
    worst: np.void | None = None
    longest_ns = 0
    first, group = groups([rows["pid"], rows["peer"]])
    for n in range(len(first)):
        its = rows[group == n]
        now, before = (its[part] for part in (its["t_ns"] >= since_ns, its["t_ns"] < since_ns))
        if not len(now):
            continue
        usual_ns = np.sort(before["max_ns"])[int(_USUALLY * (len(before) - 1))] if len(before) else 0
        again_ns = _repeated_ns(before)
        its_ns = max(int(now["max_ns"].max()), 0 if again_ns >= _STEADY_NS else _repeated_ns(now))
        if its_ns >= max(_LEAST_NS, _RATIO * max(usual_ns, again_ns)) and its_ns > longest_ns:
            worst, longest_ns = now[np.argmax(now["max_ns"])], its_ns
    return None if worst is None else _of(worst, longest_ns, since_ns, episode, view)


def _repeated_ns(waits: np.ndarray) -> int:
    """The longest wait of several calls, each of which gave up after a moment."""
    sum_ns = np.minimum(waits["sum_ns"], waits["interval_ns"])
    filled = (sum_ns >= _FILLED * waits["interval_ns"]) & (waits["sum_ns"] >= _SLICE_NS * np.maximum(waits["count"], 1))
    t_ns, sum_ns = waits["t_ns"][filled], sum_ns[filled]
    if not len(t_ns):
        return 0
    order = np.argsort(t_ns, kind="stable")
    runs = np.cumsum(np.diff(t_ns[order], prepend=t_ns[order[0]]) > 1.5 * SECOND)
    return int(np.bincount(runs, sum_ns[order]).max())


def _of(row: np.void, longest_ns: int, since_ns: int, episode: Episode, view: View) -> Dependency:
    """row: with the longest call."""
    pid, comm, raw = int(row["pid"]), text(row["comm"]), row["peer"].tobytes()
    tick = int(row["proc_start_ns"]) // 10_000_000
    client = replace(episode, pid=pid, start_tick=tick, comm=comm, start_ns=since_ns)
    name, netns = peer(raw), view.netns(client, raw)
    server = view.server(raw, netns, client)
    if server and (owes := owing(raw, netns, client, view)):
        server = owes[:2]
    seen = item(
        "syscall_latency",
        "longest wait of a consumer",
        float(longest_ns),
        "ns",
        column="max_ns" if longest_ns == row["max_ns"] else "sum_ns",
        keys={"pid": pid, "peer": name},
    )
    return Dependency(
        float(longest_ns),
        since_ns,
        process(comm, pid),
        f"{process(*server)} at {name}" if server else name,
        Culprit(server[1], server[0], name) if server else Culprit(object=name),
        seen,
    )
