"""tickscope query: prints rows of one table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import click

from agent.cli import options
from agent.errors import NO_ROWS, USAGE, AgentError

#: Default number of rows on a terminal.
_ON_TERMINAL = 1000
#: What each group shows beside its columns.
_SPREAD = ("count", "p50", "p90", "p99", "max")


@click.command("query")
@options.table
@options.since(
    "From this time on: 90s, 2h, 1w, '10 min ago', 22:13, yesterday, ISO 8601 (local without a zone), or boot+SECONDS."
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
    help="One row per group: count, p50, p90, p99 and max of the table's measure.",
)
@click.option(
    "--exact",
    is_flag=True,
    help="With --group-by: compute percentiles from the rows, not from stored counts (at most 1.6 % off).",
)
@click.option("--top", type=click.IntRange(1), metavar="N", help="The N rows with the largest measure (groups: p99).")
@click.option(
    "--limit",
    type=click.IntRange(0),
    metavar="N",
    help="At most N rows: the newest (groups: the largest count); 0 for all [default: 1000 on a terminal, else all].",
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
    """Print the rows of TABLE in order of time.

    Losses in the queried time are reported as gaps: in the JSON document, else on stderr. `tickscope tables` lists the
    tables, `tickscope tables TABLE` the columns of one.

    \b
    tickscope query tcp_rtt --since 1m --group-by peer
    tickscope query slow_syscall --since 10m --where "syscall = 'fsync'" --top 5
    """
    from agent.ask import names as naming
    from agent.ask.question import Condition, GroupValue, Question
    from agent.cli.gaps import report_gaps
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
    extra: dict[str, Any] = {"table": table}
    units = {}
    more: list[str] = []  # notes
    given = limit
    if limit is None and not by and not top and sys.stdout.isatty():
        limit = _ON_TERMINAL
    with opened(store, [table, "loss", *naming.mentioned(where or "")], since, until) as source:
        if by:
            spread = source.spread(question, exact=exact)
            found = spread.rows
            if top:
                found = sorted(found, key=lambda r: r["p99"] if r["p99"] is not None else float("-inf"), reverse=True)
                found = found[:top]
            answer = _Answer([found[: limit or None]])
            unit = known.by_name[known.measure].unit if known.measure else ""
            units = dict.fromkeys(_SPREAD[1:], unit)
            extra["measure"] = {
                "column": known.measure or None,
                "unit": unit or None,
                "percentiles": spread.how,
                "error": spread.error,
            }
            if spread.error:
                more = [f"p50, p90 and p99 are {spread.how}; --exact asks the rows"]
        elif top:
            narrowed = replace(
                question, columns=tuple(names or every), largest=known.measure, limit=min(top, limit or top)
            )
            answer = _Answer([source.rows(narrowed)])
        else:
            if (
                given is None
                and limit
                and (count := source.rows(replace(question, values=(GroupValue("rows", "count"),)))[0]["rows"]) > limit
            ):
                more = [f"these are the newest {limit} of {count} rows; --limit 0 shows all"]
            narrowed = replace(
                question, columns=tuple(dict.fromkeys([*(names or every), "boot_id", "t_ns"])), limit=limit or None
            )
            answer = _Answer(source.batches(narrowed))
        gaps: list[dict[str, Any]] = []

        def after() -> dict[str, Any]:
            gaps[:] = source.gaps()
            if limit and answer.count == limit and not by and not top:
                gaps[:] = _reached(gaps, answer.first, source.boots)
            return {"gaps": gaps}

        emit_rows(
            answer.rows([c.name for c in known.columns if c.kind == "json"]),
            fmt,
            names or ([*by, *_SPREAD] if by else every),
            extra,
            after=after,
            units=units,
            chosen=bool(names or by),
            measure=known.measure,
        )
        if fmt != "json":
            after()
        notes = source.notes
    report_gaps(gaps, [*notes, *more], fmt)
    if not answer.count:
        note(
            f"no rows in {table}"
            + (
                ": widen --since/--until or see `tickscope probes`"
                if since or until
                else " match; see `tickscope probes`"
            )
        )
        click.get_current_context().exit(NO_ROWS)


class _Answer:
    """Batches of rows as they are read. Keeps their number and the first row."""

    def __init__(self, batches: Iterable[list[dict[str, Any]]]) -> None:
        self._batches = batches
        self.count = 0
        self.first: dict[str, Any] = {}

    def rows(self, texts: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Rows as dictionaries. texts: columns with JSON to decode."""
        for batch in self._batches:
            self.first = self.first or next(iter(batch), {})
            for row in batch:
                self.count += 1
                yield row | {name: _parsed(row[name]) for name in texts if name in row}


def _names(text: str | None, among: list[str]) -> list[str]:
    from agent.ask.names import known

    return [known(name.strip(), among, "column") for name in text.split(",") if name.strip()] if text else []


def _reached(gaps: list[dict[str, Any]], oldest: dict[str, Any], boots: list[str]) -> list[dict[str, Any]]:
    """The gaps since the oldest of the newest rows; earlier losses do not concern them."""
    from agent.ask.row_source import gap_bounds

    if oldest["boot_id"] not in boots:  # the segment's head is damaged
        return gaps
    since = boots.index(oldest["boot_id"]), oldest["t_ns"]
    return [
        gap for gap in gaps if gap["boot_id"] not in boots or (boots.index(gap["boot_id"]), gap_bounds(gap)[1]) >= since
    ]


def _parsed(value: str | None) -> Any:
    try:
        return None if value is None else json.loads(value)
    except ValueError:
        return value  # truncated by the column's width: shown as text
