"""tickscope sql: any SQL over the store."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import click

from agent.cli import options
from agent.errors import NO_ROWS


@click.command("sql")
@click.argument("text")
@options.since("Only rows from this time on: 90s, 2h, 22:13, yesterday, ISO 8601, or boot+SECONDS.")
@click.option("--until", metavar="TIME", help="Up to this time, not including it.")
@options.reading
def command(text: str, since: str | None, until: str | None, fmt: str, store: str) -> None:
    """Run the SQL in TEXT (DuckDB's dialect, read only). Every table of `tickscope tables` is a view.

    Losses are reported as gaps: those between --since and --until, by default those of the whole store.

    Without ORDER BY, rows are printed while they are read. If a damaged file is found after the first rows, the answer
    ends there with an error and exit status 4. With ORDER BY, damaged files are left out with a note.

    \b
    tickscope sql "SELECT comm, count(*) FROM slow_syscall WHERE basis <> 'so_far' GROUP BY ALL ORDER BY 2 DESC"
    """
    from agent.ask.names import mentioned
    from agent.cli.gaps import report_gaps
    from agent.cli.output import emit_rows, note
    from agent.store.sources import opened
    from agent.tables import TABLES

    tables = mentioned(text)
    with opened(store, [*tables, "loss"] if tables else list(TABLES), since, until, bounded=True) as source:
        columns, batches = source.stream(text)
        gaps: list[dict[str, Any]] = []
        count = 0

        def rows() -> Iterator[dict[str, Any]]:
            nonlocal count
            for row in itertools.chain.from_iterable(batches):
                count += 1
                yield dict(zip(columns, row, strict=True))

        def after() -> dict[str, Any]:
            gaps[:] = source.gaps() if tables else []
            return {"gaps": gaps}

        emit_rows(rows(), fmt, columns, {"columns": columns}, after=after, chosen=True)
        if fmt != "json":
            after()
        notes = source.notes
    report_gaps(gaps, notes, fmt)
    if not count:
        note("no rows")
        click.get_current_context().exit(NO_ROWS)
