"""A limiter's time series: requested and admitted units and the limit per interval, and the clock jumps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.cli.clock_series import WallStep

if TYPE_CHECKING:
    from agent.ask.question import Where
    from agent.ask.row_source import RowSource

#: The largest number of intervals in a plot, and the shortest interval.
PIECES = 360
_LEAST_NS = 1_000_000_000
_LISTED = 5


@dataclass(frozen=True)
class Stretch:
    """One interval, CLOCK_BOOTTIME ns. requested, admitted: units per second. limit: of all members with a decision in
    it, units per second; None if unknown or unlimited.
    """

    from_ns: int
    to_ns: int
    requested: float
    admitted: float
    limit: float | None


@dataclass(frozen=True)
class LimiterSeries:
    """One limiter in one boot. Times are CLOCK_BOOTTIME ns. wall_ns: added to a time gives the wall time. steps: jumps
    of the wall clock. members: the members with the most requests, as rows.
    """

    limiter_id: str
    boot_id: str
    from_ns: int
    to_ns: int
    wall_ns: int
    pieces: Sequence[Stretch]
    steps: Sequence[WallStep]
    members: Sequence[dict[str, Any]]

    def most(self) -> float:
        """The largest rate."""
        return max((max(p.requested, p.admitted, p.limit or 0.0) for p in self.pieces), default=0.0)


def series(source: RowSource, limiter_id: str, *where: Where) -> LimiterSeries | None:
    """The series of the newest boot in the source's window with a decision; None if there is none."""
    from agent.ask.question import GroupValue, Question
    from agent.ask.question import Where as Condition
    from agent.ask.row_source import offset_at

    conditions = (Condition("limiter_id", "=", limiter_id), *where)
    spans = source.rows(
        Question(
            "limiter_decision",
            where=conditions,
            group=("boot_id",),
            order=("boot_id",),
            values=(GroupValue("first", "min", "t_ns"), GroupValue("last", "max", "t_ns")),
        )
    )
    if not spans:
        return None
    boot, first, last = (spans[-1][name] for name in ("boot_id", "first", "last"))
    conditions = (*conditions, Condition("boot_id", "=", boot))
    every = max(_LEAST_NS, -(-(last - first + 1) // PIECES))
    pieces = _pieces(source, conditions, first, every)
    return LimiterSeries(
        limiter_id,
        boot,
        first,
        max(last, first + every),
        offset_at(source, boot, last) or 0,
        pieces,
        jumps(source, boot, first, last),
        _members(source, conditions),
    )


def _pieces(source: RowSource, where: Sequence[Where], first: int, every: int) -> list[Stretch]:
    from agent.ask.question import Question
    from agent.ask.sql import conditions

    demand, rate = "coalesce(cost, 1)", "coalesce(limit_per_s, burst * 1e9 / nullif(window_ns, 0))"
    each = (
        f"SELECT (t_ns - {first}) // {every} AS piece, sum({demand}) AS requested, coalesce(sum({demand}) FILTER"
        f" (result IN ('allowed', 'delayed')), 0) AS admitted, last({rate} ORDER BY t_ns) FILTER ({rate} IS NOT NULL)"
        " AS most, bool_or(unlimited) AS free FROM limiter_decision WHERE"
        f" {conditions(Question('limiter_decision', where=tuple(where)), source.window)} GROUP BY piece, pid,"
        " proc_start_ns, member, key"
    )
    found = source.run(
        "SELECT piece, sum(requested), sum(admitted), CASE WHEN count(most) = count(*) AND NOT coalesce(bool_or(free),"
        f" false) THEN sum(most) END FROM ({each}) GROUP BY piece ORDER BY piece"
    )
    lines = {int(row[0]): row for row in found.rows}
    seconds, out = every / 1e9, list[Stretch]()
    for at in range(max(lines, default=-1) + 1):
        begin = first + at * every
        if at not in lines:
            out.append(Stretch(begin, begin + every, 0.0, 0.0, out[-1].limit if out else None))
            continue
        _, demand_units, admitted, most = lines[at]
        limit = None if most is None else float(most)
        out.append(Stretch(begin, begin + every, float(demand_units) / seconds, float(admitted) / seconds, limit))
    return out


def jumps(source: RowSource, boot: str, first: int, last: int) -> list[WallStep]:
    """The jumps of the wall clock in a time of a boot, CLOCK_BOOTTIME ns."""
    import numpy as np

    from agent.ask.question import Question, Where
    from agent.cli.clock_history import actor_of

    jumped = (
        Where("boot_id", "=", boot),
        Where("kind", "in", ("step", "leap")),
        Where("size_ns", "<>", 0),
        Where("ret", ">=", 0, or_unknown=True),
        Where("t_ns", ">=", first),
        Where("t_ns", "<=", last),
    )
    rows = source.rows(
        Question("clock_change", ("t_ns", "size_ns", "pid", "comm", "via"), jumped, within=False, order=("t_ns",))
    )
    walls = source.wall(boot, np.array([row["t_ns"] for row in rows], np.int64)).tolist() if rows else []
    return [WallStep(row["t_ns"], row["size_ns"], actor_of(row), wall) for row, wall in zip(rows, walls, strict=True)]


def _members(source: RowSource, where: Sequence[Where]) -> list[dict[str, Any]]:
    """The members with the most requests, if there are several."""
    from agent.ask.question import GroupValue, Question, Where

    refused = Where("result", "in", ("refused", "error"))
    rows = source.rows(
        Question(
            "limiter_decision",
            where=tuple(where),
            group=("pid", "proc_start_ns", "member"),
            order=("-decisions", "member"),
            limit=_LISTED,
            values=(
                GroupValue("decisions", "count"),
                GroupValue("refused", "count", where=refused),
                GroupValue("limit_per_s", "last", "limit_per_s"),
            ),
        )
    )
    return rows if len(rows) > 1 else []
