"""tickscope query: rows of one table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from agent.cli import options
from agent.errors import NO_ROWS, USAGE, AgentError

if TYPE_CHECKING:
    from agent.store.query import Session


@click.command("query")
@options.table
@click.option("--since", metavar="TIME", help="From this time on: 90s, 5m, 2h, 1d, ISO 8601 (local where it names no zone), or boot+SECONDS.")
@click.option("--until", metavar="TIME", help="Up to this time, not including it.")
@click.option("--where", metavar="SQL", help="A SQL condition on the table's columns.")
@click.option("--columns", metavar="A,B", help="Only these columns.")
@click.option("--group-by", metavar="A,B", help="One row a group: count, p50, p90, p99 and max of the table's measure.")
@click.option("--top", type=click.IntRange(1), metavar="N", help="The N rows with the largest measure (groups: p99).")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N rows: the newest (groups: the largest count).")
@options.common
def command(table: str, since: str | None, until: str | None, where: str | None, columns: str | None, group_by: str | None,
            top: int | None, limit: int | None, fmt: str, store: str) -> None:
    """Rows of TABLE in order of time.

    Losses that overlap the asked time are shown as gaps: in the JSON document, else on stderr.
    `tickscope tables` lists the tables, `tickscope tables TABLE` its columns.

    \b
    tickscope query tcp_rtt --since 1m --group-by peer
    tickscope query slow_syscall --since 10m --where "syscall = 'fsync'" --top 5
    """
    from agent.cli.gaps import tell
    from agent.cli.output import emit_rows, note
    from agent.store import group, query
    from agent.store import names as naming
    from agent.tables import TABLES

    known = TABLES[naming.known(table, TABLES, "table")]
    every = naming.columns(table)
    by = _names(group_by, every)
    names = _names(columns, [*by, "count", *group.QUANTILES, "max"] if by else every)
    if top and not by and not known.measure:
        raise AgentError(f"--top: {table} has no measure to order by", remedy="use --limit, or --group-by", exit_code=USAGE)
    with query.Session(store, [table, "loss", *query.mentioned(where or "")], since, until) as session:
        condition = " AND ".join([*session.window.rows(), f"({where}\n)" if where else "true"])
        if by:
            rows = group.grouped(session, known, by, condition)
            rows = sorted(rows, key=lambda r: r["p99"] if r["p99"] is not None else float("-inf"), reverse=True)[:top] if top else rows
            rows = rows[:limit]
        else:
            rows = _rows(session, table, known.measure, names or every, condition, top, limit)
        gaps = session.gaps()
        notes = session.notes
    extra: dict[str, Any] = {"table": table}
    units = {}
    if by:
        unit = known.by_name[known.measure].unit if known.measure else ""
        units = dict.fromkeys([*group.QUANTILES, "max"], unit)
        extra["measure"] = {"column": known.measure or None, "unit": unit or None, "percentiles": group.how(known)}
    for row in rows:
        row.update({c.name: _parsed(row[c.name]) for c in known.columns if c.kind == "json" and c.name in row})
    emit_rows(rows, fmt, names or ([*by, "count", *group.QUANTILES, "max"] if by else every), extra | {"gaps": gaps},
              units=units, chosen=bool(names))
    tell(gaps, notes, fmt)
    if not rows:
        note(f"no rows in {table}" + (": widen --since/--until or see `tickscope probes`" if since or until else " match; see `tickscope probes`"))
        click.get_current_context().exit(NO_ROWS)


def _names(text: str | None, among: list[str]) -> list[str]:
    from agent.store.names import known

    return [known(name.strip(), among, "column") for name in text.split(",") if name.strip()] if text else []


def _rows(session: Session, table: str, measure: str, names: list[str], where: str, top: int | None, limit: int | None) -> list[dict[str, Any]]:
    from agent.store.names import quote

    time = session.order()
    picked = ", ".join(map(quote, names))
    if top:
        order = f"abs({quote(measure)}) DESC NULLS LAST, {time}"
        return session.run(f"SELECT {picked} FROM {table} WHERE {where} ORDER BY {order} LIMIT {min(top, limit or top)}").dicts()
    if limit:
        newest = ", ".join(f"{key} DESC" for key in time.rsplit(", ", 1))
        return session.run(f"SELECT {picked} FROM {table} WHERE {where} ORDER BY {newest} LIMIT {limit}").dicts()[::-1]
    return session.run(f"SELECT {picked} FROM {table} WHERE {where} ORDER BY {time}").dicts()


def _parsed(value: str | None) -> Any:
    try:
        return None if value is None else json.loads(value)
    except ValueError:
        return value  # Cut off by the column's width: shown as the text it is.
