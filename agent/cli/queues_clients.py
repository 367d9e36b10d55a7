"""The processes of a host that talk to the servers of a queue, from the TCP connections that tickscope saw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agent.common.address import with_port

if TYPE_CHECKING:
    from agent.ask.row_source import RowSource

#: What ``clients`` reads, beside ``queue_lag``.
TABLES = ("tcp_connect", "tcp_rtt", "tcp_close")
#: Processes that are given, those that connected or sent last.
_MOST = 16
#: Local ends of connections that are compared with the consumers that the queue names.
_ENDS = 4096


@dataclass(frozen=True)
class ClientProcess:
    """A process in the window. worker: its name if the queue names it as a consumer, "" for another client. server: to
    which it connected, or sent data, last. connects, failed: connects that succeeded, and others; closed: connections
    that ended; switches: how often it connected to another server than before. last_ns: of the last of these,
    CLOCK_BOOTTIME.
    """

    pid: int
    proc_start_ns: int | None
    comm: str | None
    worker: str
    server: str
    connects: int
    failed: int
    closed: int
    switches: int
    last_ns: int


def clients(source: RowSource, rows: Sequence[Mapping[str, Any]]) -> list[ClientProcess]:
    """The clients of a queue's servers on the host of its rows, the consumers first. rows: of ``queue_lag``, of one
    queue and boot. Servers are all of the same system that were polled in the window, for a client may switch to
    another one.
    """
    from agent.ask.question import Question, Where
    from agent.ask.sql import conditions, literal

    one = rows[0]
    mine = (Where("boot_id", "=", one["boot_id"]), Where("system", "=", one["system"]))
    its = conditions(Question("queue_lag", where=mine), source.window)
    found = source.run(f"SELECT DISTINCT peer FROM queue_lag WHERE {its} AND peer IS NOT NULL")
    peers = [str(peer) for (peer,) in found.rows]
    if not peers:
        return []
    where = (Where("boot_id", "=", one["boot_id"]), Where("peer", "in", tuple(peers)), Where("role", "=", "client"))
    keys = "pid, proc_start_ns"

    def of(table: str, columns: str) -> str:
        its = conditions(Question(table, where=where), source.window)
        return f"SELECT {keys}, comm, peer, t_ns, saddr, sport, {columns} FROM {table} WHERE {its} AND pid IS NOT NULL"

    seen = (
        f"{of('tcp_connect', 'result AS what')} UNION ALL {of('tcp_close', literal('closed') + ' AS what')}"
        f" UNION ALL {of('tcp_rtt', literal('sent') + ' AS what')}"
    )
    moves = "lag(peer) OVER (PARTITION BY pid, proc_start_ns, what = 'ok' ORDER BY t_ns)"
    marked = f"SELECT *, what = 'ok' AND peer <> {moves} AS switched FROM ({seen})"
    counts = source.run(
        f"SELECT {keys}, max(comm) AS comm, last(peer ORDER BY t_ns) FILTER (what IN ('ok', 'sent')) AS server,"
        " count(*) FILTER (what = 'ok') AS connects, count(*) FILTER (what IN ('failed', 'aborted')) AS failed,"
        " count(*) FILTER (what = 'closed') AS closed, count(*) FILTER (switched) AS switches, max(t_ns) AS last_ns,"
        f" last(peer ORDER BY t_ns) AS tried FROM ({marked}) GROUP BY {keys} ORDER BY last_ns DESC"
    )
    ends = source.run(f"SELECT DISTINCT {keys}, saddr, sport FROM ({seen}) WHERE what <> 'closed' LIMIT {_ENDS}")
    by_end = {with_port(str(saddr), sport): (pid, start) for pid, start, saddr, sport in ends.rows}
    named = _named([row.get("workers") for row in rows], by_end)
    out = [
        replace(_process(row), worker=named.get((row["pid"], row["proc_start_ns"]), named.get((row["pid"], None), "")))
        for row in counts.dicts()
    ]
    return sorted(out, key=lambda one: (not one.worker, -one.last_ns))[:_MOST]


def _process(row: Mapping[str, Any]) -> ClientProcess:
    return ClientProcess(
        row["pid"],
        row["proc_start_ns"],
        row["comm"],
        "",
        row["server"] or row["tried"],
        int(row["connects"]),
        int(row["failed"]),
        int(row["closed"]),
        int(row["switches"]),
        row["last_ns"],
    )


def _named(lists: Iterable[str | None], by_end: Mapping[str, tuple[int, int | None]]) -> dict[Any, str]:
    """The consumers of ``queue_lag.workers`` by process: ``NAME PID``, or the address of a connection."""
    found: dict[tuple[int, int | None], str] = {}
    for word in (one.strip() for words in lists for one in (words or "").split(",")):
        name, _, pid = word.rpartition(" ")
        if word in by_end:
            found[by_end[word]] = word
        elif name and pid.isdigit() and not word.startswith("and "):
            found[int(pid), None] = name
    return found
