"""A queue's time series: its lag per interval, the changes of its state, and the clock jumps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.cli.clock_series import WallStep
from agent.cli.limiters_series import PIECES, jumps

if TYPE_CHECKING:
    from agent.ask.row_source import RowSource

#: The shortest interval.
_LEAST_NS = 1_000_000_000
#: Changes of the state that are listed, the newest.
_CHANGES = 10


@dataclass(frozen=True)
class LagPiece:
    """One interval, CLOCK_BOOTTIME ns: the largest lag of each partition in it, added up, and the longest delay. None
    is unknown.
    """

    from_ns: int
    to_ns: int
    lag: int | None
    behind_s: float | None


@dataclass(frozen=True)
class QueueSeries:
    """One queue and consumer group in one boot. Times are CLOCK_BOOTTIME ns. wall_ns: added to a time gives the wall
    time. changes: of the state, as rows, the oldest first. steps: jumps of the wall clock.
    """

    boot_id: str
    from_ns: int
    to_ns: int
    wall_ns: int
    pieces: Sequence[LagPiece]
    changes: Sequence[dict[str, Any]]
    steps: Sequence[WallStep]


def series(source: RowSource, row: dict[str, Any]) -> QueueSeries:
    """The series of the queue and group of this row, all partitions, in the boot of the row and the source's window."""
    from agent.ask.question import Condition, GroupValue, Question, Where
    from agent.ask.row_source import offset_at
    from agent.ask.sql import conditions

    names = ("system", "cluster" if row["cluster"] else "peer", "destination", "consumer_group")
    where = (
        Where("boot_id", "=", row["boot_id"]),
        *(Condition(f"{n} IS NULL") if row[n] is None else Where(n, "=", row[n]) for n in names),
    )
    span = (
        GroupValue("first", "min", "t_ns"),
        GroupValue("last", "max", "t_ns"),
        GroupValue("polls", "distinct", "t_ns"),
    )
    (ends,) = source.rows(Question("queue_lag", where=where, values=span))
    first, last = ends["first"], ends["last"]
    # Two polls at least, so that no interval is without one.
    every = max(_LEAST_NS, 2 * (last - first) // max(ends["polls"] - 1, 1), -(-(last - first + 1) // PIECES))
    its = conditions(Question("queue_lag", where=where), source.window)
    each = (
        f"SELECT (t_ns - {first}) // {every} AS piece, max(coalesce(lag_messages, lag_bytes)) AS lag,"
        f" max(coalesce(lag_s, oldest_undelivered_s)) AS behind_s FROM queue_lag WHERE {its} GROUP BY piece, partition"
    )
    found = source.run(f"SELECT piece, sum(lag), max(behind_s) FROM ({each}) GROUP BY piece ORDER BY piece")
    values = {int(piece): (lag, behind_s) for piece, lag, behind_s in found.rows}
    pieces = []
    for at in range(max(values) + 1):
        lag, behind_s = values.get(at, (None, None))
        begin = first + at * every
        pieces.append(LagPiece(begin, begin + every, None if lag is None else int(lag), behind_s))
    states = (
        "SELECT t_ns, partition, lag(status) OVER (PARTITION BY partition ORDER BY t_ns) AS before, status, reason FROM"
        f" queue_lag WHERE {its}"
    )
    changes = source.run(
        f"SELECT * FROM ({states}) WHERE before IS NOT NULL AND status IS DISTINCT FROM before ORDER BY t_ns DESC LIMIT"
        f" {_CHANGES}"
    )
    return QueueSeries(
        row["boot_id"],
        first,
        max(last, first + every),
        offset_at(source, row["boot_id"], last) or 0,
        pieces,
        changes.dicts()[::-1],
        jumps(source, row["boot_id"], first, last),
    )
