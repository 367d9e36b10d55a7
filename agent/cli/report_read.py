"""Reads what a report shows: findings with their evidence, panels on one grid of times, clock jumps and losses.

All times in the result are seconds from the span's start (CLOCK_BOOTTIME), floats; null is unknown.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.ask.names import quote
from agent.ask.question import Condition, Question, Where
from agent.ask.row_source import gap_bounds
from agent.ask.sql import literal
from agent.cli.findings import NOT_MERGED, decoded, with_details
from agent.cli.limiters_series import jumps
from agent.cli.report_panels import PANELS, Curve, ReportPanel, Style
from agent.columns import NULL_I64
from agent.common.instants import iso
from agent.tables import TABLES

if TYPE_CHECKING:
    from agent.ask.row_source import RowSource

#: Points of a curve, and the shortest interval between them; of rows that come once a second, and of counts.
PIECES, LEAST_NS, _POLL_NS = 600, 100_000_000, 1_000_000_000
#: Panels of one kind, curves of a panel, panels of the evidence of one finding.
SPLIT, CURVES, EVIDENCE_PANELS = 4, 6, 6
#: Values of a panel of evidence at least: fewer need no picture.
_FEW = 3
#: Columns by which the rows of a panel are found, also if its curves are named otherwise.
NAMES = ("comm", "pid", "peer", "limiter_id", "destination", "consumer_group")
#: ... before a finding, from which their range is its usual one.
_RANGE = 20
#: Losses that are marked, the longest.
_GAPS = 200
#: The tables that panels and marks need.
TABLES_OF = tuple(dict.fromkeys([*(panel.table for panel in PANELS), "clock_change", "clock_offset", "loss"]))
#: What one unit of a column is in that of the curve.
_SCALES = {("us", "ns"): 1e3, ("ms", "ns"): 1e6, ("s", "ns"): 1e9, ("ns", "us"): 1e-3, ("ns", "s"): 1e-9}


@dataclass(frozen=True)
class ReportSpan:
    """A time of one boot, CLOCK_BOOTTIME ns, ``to_ns`` exclusive."""

    boot_id: str
    from_ns: int
    to_ns: int

    def where(self) -> str:
        """The condition on a row of that time."""
        return f"boot_id = {literal(self.boot_id)} AND t_ns >= {self.from_ns} AND t_ns < {self.to_ns}"

    def at(self, t_ns: int) -> float:
        """A time in the result."""
        return round((t_ns - self.from_ns) / 1e9, 6)

    def step_ns(self, table: str, style: Style = "line") -> int:
        """The interval of the points of a curve of that table."""
        steady = style == "bars" or "interval_ns" in TABLES[table].by_name or table in ("queue_lag", "clock_daemon")
        least = _POLL_NS if steady else LEAST_NS
        return max(least, -(-(self.to_ns - self.from_ns) // PIECES))


def panels(
    source: RowSource, span: ReportSpan, concerned: Iterable[int] = (), words: str = "", titles: Collection[str] = ()
) -> list[dict[str, Any]]:
    """The panels that have rows. concerned: pids whose curves come first. words: only curves and panels of subjects
    with this in their name. titles: only these panels of ``PANELS``.
    """
    pids = ", ".join(map(str, sorted(concerned)))
    wanted = [panel for panel in PANELS if not titles or panel.title in titles]
    return [drawn for panel in wanted for drawn in _drawn(source, span, panel, pids, words)]


def _drawn(source: RowSource, span: ReportSpan, panel: ReportPanel, pids: str, words: str) -> list[dict[str, Any]]:
    first = f"bool_or(pid IN ({pids}))" if pids and "pid" in TABLES[panel.table].by_name else "false"
    where = f"{span.where()} AND ({panel.where})"
    if words:
        named = [panel.each, panel.by, *(name for name in NAMES if name in TABLES[panel.table].by_name)]
        where += f" AND contains(lower(concat_ws(' ', {', '.join(named)})), {literal(words.lower())})"
    drawn: dict[str, dict[str, Any]] = {}
    for (each, key, count), lines in _lines(source, span, panel, _chosen(span, panel, where, first)).items():
        if each not in drawn:
            of = f"{panel.each} = {literal(each)}" if each else "true"
            condition = " AND ".join(part for part in (panel.where, of) if part != "true")
            title = f"{panel.title}: {each}" if each else panel.title
            drawn[each] = {"title": title, "kind": panel.title, "more": max(0, count - CURVES), "curves": []}
            drawn[each] |= _described(source, span, panel, condition)
        drawn[each]["curves"] += _curves(panel, key, lines)
    return [one for one in drawn.values() if one["curves"]]


def _described(source: RowSource, span: ReportSpan, panel: ReportPanel, where: str) -> dict[str, Any]:
    step = span.step_ns(panel.table, panel.style) / 1e9
    command = f"tickscope query {panel.table} {bounds(source, span)}{f' --where {shlex.quote(where)}' if where else ''}"
    return {"table": panel.table, "unit": panel.unit, "style": panel.style, "step": step, "command": command}


def bounds(source: RowSource, span: ReportSpan) -> str:
    """The span as options of a verb: in wall time (UTC) where it is known, and did not go back by more than that."""
    import numpy as np

    second = 10**9
    ends = np.array([span.from_ns, span.to_ns + second], np.int64)
    walls = source.wall(span.boot_id, ends).tolist()
    if NULL_I64 in walls or walls[1] <= walls[0]:
        return f"--since boot+{span.from_ns // second} --until boot+{span.to_ns // second + 1}"
    return f"--since {iso(walls[0], 0, utc=True)} --until {iso(walls[1], 0, utc=True)}"


def _pieces(span: ReportSpan, panel: ReportPanel, where: str, more: dict[str, tuple[str, str]] | None = None) -> str:
    """SQL: a row for each value of ``each`` (e) and ``by`` (k) and each interval (piece), with the curves' values (v0,
    v1, ...). more: further columns; each is an aggregate, and the one that joins it with that of other parts.
    """
    values = {f"v{at}": (curve.value, "sum") for at, curve in enumerate(panel.curves)}
    values |= {f"l{at}": (curve.least, "sum") for at, curve in enumerate(panel.curves) if curve.least} | (more or {})
    piece = f"(t_ns - {span.from_ns}) // {span.step_ns(panel.table, panel.style)}"
    sql = (
        f"SELECT {panel.each} AS e, {panel.by} AS k, {piece} AS piece,"
        f" {', '.join(f'{value} AS {name}' for name, (value, _) in values.items())} FROM {panel.table}"
        f" WHERE {where} GROUP BY e, k, piece{f', {panel.parts}' if panel.parts else ''}"
    )
    if panel.parts:
        joined = ", ".join(f"{join}({name}) AS {name}" for name, (_, join) in values.items())
        sql = f"SELECT e, k, piece, {joined} FROM ({sql}) GROUP BY e, k, piece"
    return sql


def _values(panel: ReportPanel) -> list[str]:
    """The columns of ``_pieces`` with values: one of each curve, and then the least ones of those that have them."""
    return [f"{kind}{at}" for kind in "vl" for at, curve in enumerate(panel.curves) if kind == "v" or curve.least]


def _chosen(span: ReportSpan, panel: ReportPanel, where: str, first: str) -> str:
    """SQL: the pieces of the SPLIT first values of ``each``, of each the CURVES first of ``by``, in that order, and of
    how many. first: an aggregate that is true for those before all others. One pass over the rows.
    """
    join = "max" if panel.order.startswith("max(") else "sum"
    values = ", ".join(_values(panel))
    pieces = _pieces(span, panel, where, {"o": (panel.order, join), "f": (first, "bool_or")})
    return (
        f"WITH pieces AS MATERIALIZED ({pieces}),"
        f" subjects AS (SELECT e, k, row_number() OVER (ORDER BY bool_or(f) DESC, {join}(o) DESC NULLS LAST, e, k) AS n"
        " FROM pieces WHERE e IS NOT NULL AND k IS NOT NULL GROUP BY e, k),"
        " ranked AS (SELECT *, min(n) OVER (PARTITION BY e) AS place, row_number() OVER (PARTITION BY e ORDER BY n) AS"
        " nth, count(*) OVER (PARTITION BY e) AS of FROM subjects),"
        " panels AS (SELECT *, dense_rank() OVER (ORDER BY place) AS panel FROM ranked)"
        f" SELECT e, k, of, piece, {values} FROM pieces JOIN panels USING (e, k)"
        f" WHERE panel <= {SPLIT} AND nth <= {CURVES} ORDER BY place, nth"
    )


def _lines(
    source: RowSource, span: ReportSpan, panel: ReportPanel, sql: str
) -> dict[tuple[str, str, int], list[list[float | None]]]:
    """For each (e, k, of) of the query, in its order, the line of each column of ``_values``."""
    step, lines = span.step_ns(panel.table, panel.style), dict[tuple[str, str, int], list[list[float | None]]]()
    count = -(-(span.to_ns - span.from_ns) // step)
    for each, key, of, piece, *row in source.run(sql).rows:
        mine = lines.setdefault((each, key, of), [[None] * count for _ in row])
        for at, value in enumerate(row):
            per_s = at < len(panel.curves) and panel.curves[at].per_s
            mine[at][piece] = _number(value, step / 1e9 if per_s else 1.0)
    return lines


def _curves(panel: ReportPanel, key: str, lines: Sequence[Sequence[float | None]]) -> list[dict[str, Any]]:
    least = iter(lines[len(panel.curves) :])
    made = [
        {"name": " ".join(filter(None, (key, curve.name))), "values": line}
        | ({"least": next(least)} if curve.least else {})
        for curve, line in zip(panel.curves, lines, strict=False)
    ]
    return [one for one in made if any(value is not None for value in one["values"])]


def _number(value: Any, divisor: float = 1.0) -> float | int | None:
    """Short in JSON."""
    if value is None or not math.isfinite(value):
        return None
    number = float(f"{float(value) / divisor:.6g}")
    return int(number) if number.is_integer() else number


def clock(source: RowSource, span: ReportSpan) -> dict[str, Any]:
    """How far the wall clock moved against CLOCK_BOOTTIME in the span (ns): a panel whose points are beside each jump
    too, so that the curve does not fold over itself.
    """
    import numpy as np

    step = span.step_ns("clock_change")
    times_of_jumps = [jump.t_ns for jump in jumps(source, span.boot_id, span.from_ns, span.to_ns)]
    around = [t + d for t in times_of_jumps for d in (-1, 0)]
    times = np.unique(np.clip([*range(span.from_ns, span.to_ns, step), *around, span.to_ns], span.from_ns, span.to_ns))
    walls = source.wall(span.boot_id, times)
    known = walls != NULL_I64
    if not known.any():
        return {}
    offsets = walls - times
    begin = int(offsets[known][0])
    moved = [int(o) - begin if k else None for o, k in zip(offsets.tolist(), known.tolist(), strict=True)]
    return {
        "title": "Wall clock, moved since the start",
        "more": 0,
        "table": "clock_change",
        "unit": "ns",
        "style": "line",
        "command": f"tickscope clock history {bounds(source, span)}",
        "times": [span.at(t) for t in times.tolist()],
        "curves": [{"name": "CLOCK_REALTIME", "values": moved}],
    }


def marks(source: RowSource, span: ReportSpan) -> dict[str, Any]:
    """Jumps of the wall clock, times in which records were lost, and wall time: Unix seconds at these times."""
    import numpy as np

    steps = jumps(source, span.boot_id, span.from_ns, span.to_ns)
    its = [gap for gap in source.gaps() if gap["boot_id"] == span.boot_id]
    bounds = sorted(((*gap_bounds(gap), gap) for gap in its), key=lambda one: one[0] - one[1])[:_GAPS]
    inside = [(a, b, gap) for a, b, gap in bounds if a < span.to_ns and b >= span.from_ns]
    times = sorted({span.from_ns, span.to_ns, *(t for step in steps for t in (step.t_ns - 1, step.t_ns))})
    walls = source.wall(span.boot_id, np.array(times, np.int64)).tolist()
    return {
        "jumps": [{"t": span.at(s.t_ns), "size_ns": s.size_ns, "by": s.actor} for s in steps],
        "gaps": [
            {
                "from": span.at(max(a, span.from_ns)),
                "to": span.at(min(b, span.to_ns)),
                "what": f"{gap['source']} ({gap['stage']})",
                "count": gap["count"],
            }
            for a, b, gap in inside
        ],
        "wall": [[span.at(t), None if w == NULL_I64 else w / 1e9] for t, w in zip(times, walls, strict=True)],
    }


def evidence_panels(
    source: RowSource, span: ReportSpan, evidence: Sequence[dict[str, Any]], since_ns: int
) -> list[dict[str, Any]]:
    """Panels of the rows behind pieces of evidence: a panel a column, a curve for each set of keys, the usual value
    where it is known, and the range of most values before ``since_ns``, the finding's start. Each piece gets ``panel``,
    the number of its panel in the result.
    """
    grouped: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for one in evidence:
        table, column = one.get("table", ""), one.get("column", "")
        if table in TABLES and (not column or _numeric(table, column)) and _known(table, one.get("keys", {})):
            condition = _keys(one.get("keys", {}))
            grouped.setdefault((table, column), {}).setdefault(condition, []).append(one)
    made: list[dict[str, Any]] = []
    for (table, column), conditions in list(grouped.items())[:EVIDENCE_PANELS]:
        unit = TABLES[table].by_name[column].unit if column else ""
        style: Style = "line" if "interval_ns" in TABLES[table].by_name or table == "queue_lag" else "points"
        of = f"({quote(column)})"
        curve = Curve(f"max{of}", least=f"min{of}" if style == "line" else "") if column else Curve("count(*)")
        title = f"{column.removesuffix('_' + unit) if unit else column or 'rows'} of {table}".replace("_", " ")
        panel = ReportPanel(title, table, unit, (curve,), "", style=style)
        curves: list[dict[str, Any]] = []
        names = _names([pieces[0] for pieces in conditions.values()])
        before = max(since_ns - span.from_ns, 0) // span.step_ns(table, style)
        for name, (condition, pieces) in list(zip(names, conditions.items(), strict=True))[:CURVES]:
            where = f"{span.where()} AND {condition}"
            sql = f"SELECT e, k, 1, piece, {', '.join(_values(panel))} FROM ({_pieces(span, panel, where)})"
            for lines in _lines(source, span, panel, sql).values():
                curves += [
                    {**one, **_usual(pieces, unit), **_range(one["values"][:before])}
                    for one in _curves(panel, name, lines)
                ]
        if sum(value is not None for one in curves for value in one["values"]) < _FEW:
            continue
        for piece in (piece for pieces in conditions.values() for piece in pieces):
            piece["panel"] = len(made)
        where = " OR ".join(conditions) if "true" not in conditions else ""
        made.append(
            {"title": title, "more": max(0, len(conditions) - CURVES), "curves": curves}
            | _described(source, span, panel, where)
        )
    return made


def _numeric(table: str, column: str) -> bool:
    found = TABLES[table].by_name.get(column)
    return found is not None and found.kind in ("i64", "f64")


def _known(table: str, keys: dict[str, Any]) -> bool:
    """Whether this version's table has the columns of the keys: evidence may be of another version."""
    return all(name in TABLES[table].by_name for name in keys)


def _keys(keys: dict[str, Any]) -> str:
    parts = [
        f"{quote(name)} IS NULL" if value is None else f"{quote(name)} = {literal(value)}"
        for name, value in sorted(keys.items())
        if value is None or isinstance(value, (str, int, float))
    ]
    return " AND ".join(parts) or "true"


def _names(pieces: Sequence[dict[str, Any]]) -> list[str]:
    """Their objects, or what they measure; those with the same name also have the keys in which they differ."""
    names = [one.get("object") or one.get("what", "").replace("_", " ") for one in pieces]
    keys = [one.get("keys", {}) for one in pieces]
    made = []
    for name, mine in zip(names, keys, strict=True):
        same = [its for other, its in zip(names, keys, strict=True) if other == name]
        differing = [key for key in mine if len({str(its.get(key)) for its in same}) > 1]
        made.append(", ".join([name, *(f"{key} {mine[key]}" for key in differing)]))
    return made


def _usual(pieces: Sequence[dict[str, Any]], unit: str) -> dict[str, Any]:
    """The usual value in the unit of the curve, where its unit is known to be one of the same kind."""
    for one in pieces:
        scale = 1.0 if one.get("unit", "") == unit else _SCALES.get((one.get("unit", ""), unit))
        if one.get("baseline") is not None and scale is not None:
            return {"usual": _number(one["baseline"] * scale)}
    return {}


def _range(values: Sequence[float | None]) -> dict[str, Any]:
    """Between which most of these values are, if they are enough to say so."""
    known = sorted(value for value in values if value is not None)
    return {"range": [known[len(known) // 20], known[-1 - len(known) // 20]]} if len(known) >= _RANGE else {}


def findings_in(source: RowSource, span: ReportSpan) -> list[dict[str, Any]]:
    """The findings that overlap the span in their latest state, with details, in order of their start."""
    overlapping = (
        Where("boot_id", "=", span.boot_id),
        Where("start_ns", "<", span.to_ns),
        Where("end_ns", ">=", span.from_ns),
        Condition(NOT_MERGED),
    )
    rows = source.rows(Question("finding", where=overlapping, within=False, order=("start_ns", "t_ns", "finding_id")))
    return with_details(source, decoded(rows)) if rows else []


def rows_between(source: RowSource, boot: str, where: str, tables: Sequence[str] = TABLES_OF) -> tuple[int, int] | None:
    """The times of the first and the last row of these tables in a boot, CLOCK_BOOTTIME ns."""
    each = " UNION ALL ".join(
        f"SELECT min(t_ns) AS a, max(t_ns) AS b FROM {table} WHERE boot_id = {literal(boot)} AND {where}"
        for table in tables
    )
    first, last = source.run(f"SELECT min(a), max(b) FROM ({each})").rows[0]
    return None if first is None else (first, last)
