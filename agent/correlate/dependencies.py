"""What a queue's consumers waited for, beside its broker: their database, or another server that they call. Shared by
causes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from agent.correlate.episode import Culprit, Episode, Evidence, item
from agent.correlate.rows import groups
from agent.correlate.thresholds import SECOND
from agent.correlate.view import NO_PEER, SERVERS, View, to_peer
from agent.correlate.words import peer, process, text
from agent.tables import TABLES

READS = {**SERVERS, "syscall_latency": ("basis", "kind", "peer", "interval_ns", "max_ns")}
_SERVER = TABLES["tcp_rtt"].code("role", "server")
_WAITING = TABLES["syscall_latency"].code("kind", "waiting")
_BEFORE_NS = 60 * SECOND
_LEAST_NS = 100_000_000  # consumers usually wait for milliseconds
_RATIO, _USUALLY = 3, 0.8  # times the usual longest wait of a second: this quantile of those before


@dataclass(frozen=True)
class Dependency:
    """The server for which a consumer waited longest, and far longer than before, ns."""

    longest_ns: float
    client: str
    who: str
    culprit: Culprit
    seen: Evidence


def _began_ns(episode: Episode, view: View) -> int:
    """When the consumers became slow, at the latest: a queue falls behind before that is a symptom. If its oldest
    message has waited for so long, they have been slow since then.
    """
    aged_ns = int((view.config.age_rise_s + 1) * SECOND)
    waited_ns = int(episode.value * SECOND) if episode.unit == "s" else 0
    return min(episode.start_ns - aged_ns, episode.end_ns - waited_ns)


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
    first, group = groups([rows["pid"], rows["peer"]])
    for n in range(len(first)):
        its = rows[group == n]
        now, before = (its[part] for part in (its["t_ns"] >= since_ns, its["t_ns"] < since_ns))
        longest = now[np.argmax(now["max_ns"])] if len(now) else None
        usual_ns = np.sort(before["max_ns"])[int(_USUALLY * (len(before) - 1))] if len(before) else 0
        if longest is None or longest["max_ns"] < max(_LEAST_NS, _RATIO * usual_ns):
            continue
        if worst is None or longest["max_ns"] > worst["max_ns"]:
            worst = longest
    return None if worst is None else _of(worst, episode, view)


def _of(row: np.void, episode: Episode, view: View) -> Dependency:
    """row: with the longest wait."""
    pid, comm, raw = int(row["pid"]), text(row["comm"]), row["peer"].tobytes()
    client = replace(episode, pid=pid, start_tick=int(row["proc_start_ns"]) // 10_000_000, comm=comm)
    name, server = peer(raw), view.server(raw, view.netns(client, raw), client)
    seen = item(
        "syscall_latency",
        "longest wait of a consumer",
        float(row["max_ns"]),
        "ns",
        column="max_ns",
        keys={"pid": pid, "peer": name},
    )
    return Dependency(
        float(row["max_ns"]),
        process(comm, pid),
        f"{process(*server)} at {name}" if server else name,
        Culprit(server[1], server[0], name) if server else Culprit(object=name),
        seen,
    )
