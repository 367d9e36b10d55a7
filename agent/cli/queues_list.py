"""The queues of brokers and of the kernel in their latest state, as ``tickscope queues`` gives them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from agent.common.address import with_port

if TYPE_CHECKING:
    from agent.ask.row_source import RowSource

#: Columns of a row, for brokers and the kernel alike.
COLUMNS = (
    *("system", "queue", "consumer_group", "length", "limit", "exact", "inexact_reason", "oldest_s", "pending"),
    *("oldest_pending_s", "consumers", "in_per_s", "out_per_s", "overflows", "drops", "status", "reason", "peer"),
    *("t_ns", "wall_ns", "host", "cluster", "partition", "lag_s", "drains_in_s", "limit_in_s", "forecast_err_s"),
    *("trend", "delayed", "redelivery_s", "lag_at_least", "group_state", "workers", "tasks", "lag_bytes"),
    *("redelivered", "retention_left_s", "rebalances", "held_idle", "idle_holders", "holder", "priorities", "removed"),
    "consumer_capacity",
)
_NAMED = {"queue": "destination", "length": "lag_messages", "oldest_s": "oldest_undelivered_s"}
#: A queue's identity; the server that answers may change (a fail-over). Before there was ``cluster``, it was the peer.
IDENTITY = ("host", "system", "cluster", "destination", "partition", "consumer_group")
#: ``trend`` has this number of values, each of this time; the last one ends with the newest poll.
PIECES, PIECE_NS = 10, 30_000_000_000
#: A queue is missing if its cluster was polled without it for longer than this and than two intervals (``_patience``).
#: Rows of one poll may reach the store in pieces.
_MISSING_NS = 10_000_000_000
#: What is polled at one interval.
_SERVER = ("boot_id", "host", "system", "cluster", "peer")
Key = tuple[Any, ...]
Row = dict[str, Any]


def read(since: str, store: str) -> tuple[list[Row], list[Row], list[Row], list[str]]:
    """(queues of brokers, queues of the kernel, gaps, notes)."""
    from agent.store.sources import opened

    with opened(store, ["queue_lag", "socket_queue", "loss"], since) as source:
        return of_brokers(source), of_kernel(source), source.gaps(), source.notes


def of_brokers(source: RowSource) -> list[Row]:
    """The queues of brokers, with the columns of the output."""
    return [named(row) for row in latest(source)]


def named(row: Row) -> Row:
    """A row of ``latest`` with the columns of the output."""
    return {name: row.get(_NAMED.get(name, name)) for name in COLUMNS}


def latest(source: RowSource) -> list[Row]:
    """The queues of brokers, and servers without any: the latest row of each in ``queue_lag``, with ``trend`` (the
    largest ``lag_messages`` in each of ten pieces of 30 s, None where unknown), sorted by system and name.
    """
    from agent.ask.question import Question

    # The peer too, since it identifies the server of a row without a cluster.
    found = source.rows(Question("queue_lag", latest=(*IDENTITY, "peer"), order=("t_ns",)))
    found.sort(key=lambda row: _when(source, row))
    rows = {_place(row): row for row in found}  # the newest of each
    newest: dict[Key, tuple[int, int]] = {}
    for key, row in rows.items():
        when, consumed = _when(source, row), [key[:4]] if row["consumer_group"] is not None else []
        for one in (key[:3], key[:2], (*key[:3], row["peer"]), *consumed):
            newest[one] = max(newest.get(one, when), when)
    late = {key: _late(_when(source, row), newest[key[:3]]) for key, row in rows.items()}
    if any(words is not None for words in late.values()):
        patience = _patience(source)
        late = {
            key: _late(_when(source, row), newest[key[:3]], patience.get(key[:3], _MISSING_NS))
            for key, row in rows.items()
        }
    kept = {key: row for key, row in rows.items() if not _superseded(source, key, row, newest, late[key])}
    trends = _trends(source, list(kept.values()))
    return [{**_missing(kept[key], late[key]), "trend": trends.get(key)} for key in sorted(kept, key=_order)]


def of_kernel(source: RowSource) -> list[Row]:
    """The kernel's queues as of the last poll, the longest first."""
    from agent.ask.question import Question

    rows = source.rows(Question("socket_queue", latest=("host",), order=("kind", "-queue")))
    rows = [row for row in rows if row["kind"] != "connection" or row["queue"]]  # at the agent's start there are all
    return sorted(map(_kernel, rows), key=lambda row: (row["system"] or "", -(row["length"] or 0), row["queue"] or ""))


def key_of(row: Row) -> Key:
    """The identity of a queue: host, system, cluster, destination, partition, consumer group."""
    return tuple((row.get(name) or row.get("peer")) if name == "cluster" else row.get(name) for name in IDENTITY)


def _place(row: Row) -> Key:
    """The identity of a queue, or of a server that is down: another one of its cluster does not stand for it."""
    server = (row["peer"],) if row["destination"] is None and row["status"] == "down" else ()
    return *key_of(row), *server


def _order(key: Key) -> tuple[object, ...]:
    host, system, cluster, destination, partition, group, *server = (str(part or "") for part in key)
    return system, destination, group, len(partition), partition, cluster, host, server


def _when(source: RowSource, row: Row) -> tuple[int, int]:
    """The time of a row, comparable between boots."""
    return source.boots.index(row["boot_id"]) if row["boot_id"] in source.boots else -1, row["t_ns"]


def _superseded(source: RowSource, key: Key, row: Row, newest: dict[Key, tuple[int, int]], late: str | None) -> bool:
    """Whether a row says nothing any more, since later polls have other rows: one about a server (without a cluster,
    about all servers of its kind; while others of the cluster answer, one that does not is shown), about a queue
    without consumers that has some now, or about one whose server was down. late: as ``_late`` has it.
    """
    when = _when(source, row)
    if row["destination"] is not None:
        consumed = row["consumer_group"] is None and when < newest.get(key[:4], when)
        return consumed or (late is not None and row["status"] == "down")
    if not key[2]:
        return when < newest[key[:2]]
    return when < newest[*key[:3], row["peer"]] or (
        when < newest[key[:3]] and (late is not None or row["peer"] is None or row["status"] != "down")
    )


def _patience(source: RowSource) -> dict[Key, int]:
    """By host, system and cluster: the time after which a queue that is in no poll is missing, ns. Servers of one
    cluster are polled one by one, each at the interval of the settings, so it is two of these at least: of the server
    with most polls, whose median is not that of a pause of the agent, or of a short time as leader.
    """
    from agent.ask.question import Question
    from agent.ask.sql import conditions

    its = ", ".join(_SERVER)
    found = source.run(
        f"SELECT {its}, count(*) AS polls, quantile_disc(gap_ns, 0.5) AS gap_ns FROM"
        f" (SELECT {its}, t_ns - lag(t_ns) OVER (PARTITION BY {its} ORDER BY t_ns) AS gap_ns FROM"
        f" (SELECT DISTINCT {its}, t_ns FROM queue_lag WHERE {conditions(Question('queue_lag'), source.window)}))"
        f" WHERE gap_ns IS NOT NULL GROUP BY {its} ORDER BY polls"
    )
    return {key_of(row)[:3]: max(_MISSING_NS, 2 * row["gap_ns"]) for row in found.dicts()}  # the last one counts


def _late(when: tuple[int, int], newest: tuple[int, int], patience_ns: int = _MISSING_NS) -> str | None:
    """For how long a queue is missing in the latest polls of its cluster, in words; None if it is not."""
    if newest[0] == when[0] and newest[1] - when[1] <= patience_ns:
        return None
    return f" for {(newest[1] - when[1]) / 1e9:.0f} s" if newest[0] == when[0] else ""


def _missing(row: Row, late: str | None) -> Row:
    """The row, with status ``unknown`` if its queue is missing."""
    if late is None or row["status"] == "gone":  # a deleted queue is in the polls for a while only
        return row
    return {**row, "status": "unknown", "reason": f"missing in the polls{late}: was it deleted?"}


def _trends(source: RowSource, rows: Sequence[Row]) -> dict[Key, list[int | None]]:
    """The recent lag of each queue in the newest boot of these rows, at most PIECES values each."""
    from agent.ask.question import Question, Where
    from agent.ask.sql import conditions

    if not rows:
        return {}
    last = max(rows, key=lambda row: _when(source, row))
    until = last["t_ns"] + 1
    since = until - PIECES * PIECE_NS
    recent = (Where("boot_id", "=", last["boot_id"]), Where("t_ns", ">=", since), Where("t_ns", "<", until))
    identity = ", ".join(IDENTITY)
    found = source.run(
        f"SELECT {identity}, peer, (t_ns - ({since})) // {PIECE_NS} AS piece,"
        f" max(coalesce(lag_messages, lag_bytes)) AS lag FROM queue_lag"
        f" WHERE {conditions(Question('queue_lag', where=recent), source.window)}"
        " AND coalesce(lag_messages, lag_bytes) IS NOT NULL"
        f" GROUP BY {identity}, peer, piece"
    )
    out: dict[Key, list[int | None]] = {}
    for row in found.dicts():
        pieces = out.setdefault(key_of(row), [None] * PIECES)
        pieces[row["piece"]] = max(pieces[row["piece"]] or 0, row["lag"])  # several servers answered within it
    return out


def _kernel(row: Row) -> Row:
    """A kernel queue as a row of the output."""
    place = (
        with_port(row["saddr"] or "*", row["sport"]) + (f" {row['peer']}" if row["peer"] else "")
        if row["sport"] is not None
        else None
    )
    same = {name: row[name] for name in ("limit", "overflows", "drops", "peer", "t_ns", "wall_ns", "host")}
    return (
        dict.fromkeys(COLUMNS) | same | {"system": row["kind"], "queue": row["device"] or place, "length": row["queue"]}
    )


def now() -> Iterable[Row]:
    """The kernel's queues, read now."""
    from agent.queues.live import kernel_queues

    return (dict.fromkeys(COLUMNS) | row for row in kernel_queues())
