"""tickscope query: rows of one table."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from agent.cli import options
from agent.errors import NO_ROWS, USAGE, AgentError

if TYPE_CHECKING:
    from agent.ask.question import Question
    from agent.ask.source import RowSource

#: What each group shows beside its columns.
_SPREAD = ("count", "p50", "p90", "p99", "max")


@click.command("query")
@options.table
@click.option(
    "--since",
    metavar="TIME",
    help="From this time on: 90s, 5m, 2h, 1d, ISO 8601 (local where it names no zone), or boot+SECONDS.",
)
@click.option("--until", metavar="TIME", help="Up to this time, not including it.")
@click.option("--where", metavar="SQL", help="A SQL condition on the table's columns.")
@click.option(
    "--columns", type=options.Columns("count", "p50", "p90", "p99", "max"), metavar="A,B", help="Only these columns."
)
@click.option(
    "--group-by",
    type=options.Columns(),
    metavar="A,B",
    help="One row a group: count, p50, p90, p99 and max of the table's measure.",
)
@click.option(
    "--exact",
    is_flag=True,
    help="Groups: percentiles from the rows, also where millions were counted in advance, at most 1.6 % off.",
)
@click.option("--top", type=click.IntRange(1), metavar="N", help="The N rows with the largest measure (groups: p99).")
@click.option(
    "--limit", type=click.IntRange(1), metavar="N", help="At most N rows: the newest (groups: the largest count)."
)
@options.reading
def command(
    table: str,
    since: str | None,
    until: str | None,
    where: str | None,
    columns: str | None,
    group_by: str | None,
    exact: bool,
    top: int | None,
    limit: int | None,
    fmt: str,
    store: str,
) -> None:
    """Rows of TABLE in order of time.

    Losses that overlap the asked time are shown as gaps: in the JSON document, else on stderr.
    `tickscope tables` lists the tables, `tickscope tables TABLE` its columns.

    \b
    tickscope query tcp_rtt --since 1m --group-by peer
    tickscope query slow_syscall --since 10m --where "syscall = 'fsync'" --top 5
    """
    from agent.ask import names as naming
    from agent.ask.question import Condition, Question
    from agent.cli.gaps import tell
    from agent.cli.output import emit_rows, note
    from agent.store.sources import opened
    from agent.tables import TABLES

    known = TABLES[naming.known(table, TABLES, "table")]
    every = naming.columns(table)
    by = _names(group_by, every)
    names = _names(columns, [*by, *_SPREAD] if by else every)
    if top and not by and not known.measure:
        raise AgentError(
            f"--top: {table} has no measure to order by", remedy="use --limit, or --group-by", exit_code=USAGE
        )
    question = Question(table, where=(Condition(where),) if where else (), group=tuple(by))
    with opened(store, [table, "loss", *naming.mentioned(where or "")], since, until) as source:
        if by:
            spread = source.spread(question, exact=exact)
            rows = spread.rows
            rows = (
                sorted(rows, key=lambda r: r["p99"] if r["p99"] is not None else float("-inf"), reverse=True)[:top]
                if top
                else rows
            )
            rows = rows[:limit]
        else:
            rows = _rows(source, question, known.measure, names or every, top, limit)
        gaps = source.gaps()
        if limit and not by and not top:
            gaps = _reached(gaps, rows, limit, source.boots)
        notes = source.notes
    extra: dict[str, Any] = {"table": table}
    units = {}
    if by:
        unit = known.by_name[known.measure].unit if known.measure else ""
        units = dict.fromkeys(_SPREAD[1:], unit)
        extra["measure"] = {
            "column": known.measure or None,
            "unit": unit or None,
            "percentiles": spread.how,
            "error": spread.error,
        }
    for row in rows:
        row.update({c.name: _parsed(row[c.name]) for c in known.columns if c.kind == "json" and c.name in row})
    emit_rows(
        rows,
        fmt,
        names or ([*by, *_SPREAD] if by else every),
        extra | {"gaps": gaps},
        units=units,
        chosen=bool(names or by),
    )
    tell(
        gaps,
        [*notes, *([f"p50, p90 and p99 are {spread.how}; --exact asks the rows"] if by and spread.error else [])],
        fmt,
    )
    if not rows:
        note(
            f"no rows in {table}"
            + (
                ": widen --since/--until or see `tickscope probes`"
                if since or until
                else " match; see `tickscope probes`"
            )
        )
        click.get_current_context().exit(NO_ROWS)


def _names(text: str | None, among: list[str]) -> list[str]:
    from agent.ask.names import known

    return [known(name.strip(), among, "column") for name in text.split(",") if name.strip()] if text else []


def _rows(
    source: RowSource, question: Question, measure: str, names: list[str], top: int | None, limit: int | None
) -> list[dict[str, Any]]:
    question = replace(
        question, columns=tuple(dict.fromkeys([*names, "boot_id", "t_ns"] if limit and not top else names))
    )
    if top:
        return source.rows(replace(question, largest=measure, limit=min(top, limit or top)))
    return source.rows(question.newest(limit))[::-1] if limit else source.rows(question)


def _reached(
    gaps: list[dict[str, Any]], rows: list[dict[str, Any]], limit: int, boots: list[str]
) -> list[dict[str, Any]]:
    """The gaps in the time that the newest rows take: what was lost before the oldest of them would not be among
    them.
    """
    from agent.ask.source import gap_bounds

    if len(rows) < limit or rows[0]["boot_id"] not in boots:  # whose segment's head is damaged
        return gaps
    oldest = boots.index(rows[0]["boot_id"]), rows[0]["t_ns"]
    return [
        gap
        for gap in gaps
        if gap["boot_id"] not in boots or (boots.index(gap["boot_id"]), gap_bounds(gap)[1]) >= oldest
    ]


def _parsed(value: str | None) -> Any:
    try:
        return None if value is None else json.loads(value)
    except ValueError:
        return value  # Cut off by the column's width: shown as the text it is.
