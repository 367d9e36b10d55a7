"""tickscope sql: any SQL over the store."""

from __future__ import annotations

import click

from agent.cli import options
from agent.errors import NO_ROWS


@click.command("sql")
@click.argument("text")
@click.option(
    "--since", metavar="TIME", help="The tables from this time on: 90s, 5m, 2h, 1d, ISO 8601, or boot+SECONDS."
)
@click.option("--until", metavar="TIME", help="Up to this time, not including it.")
@options.reading
def command(text: str, since: str | None, until: str | None, fmt: str, store: str) -> None:
    """Run the SQL in TEXT (DuckDB's dialect, read only); every table of `tickscope tables` is a view.

    Losses are told as gaps: those of the time between --since and --until, without them those of the whole store.

    \b
    tickscope sql "SELECT comm, count(*) FROM slow_syscall GROUP BY ALL ORDER BY 2 DESC"
    """
    from agent.ask.names import mentioned
    from agent.cli.gaps import tell
    from agent.cli.output import emit_rows, note
    from agent.store.sources import opened
    from agent.tables import TABLES

    asked = mentioned(text)
    with opened(store, [*asked, "loss"] if asked else list(TABLES), since, until, bounded=True) as source:
        result = source.run(text)
        gaps = source.gaps() if asked else []
        notes = source.notes
    emit_rows(result.dicts(), fmt, result.columns, {"columns": result.columns, "gaps": gaps}, chosen=True)
    tell(gaps, notes, fmt)
    if not result.rows:
        note("no rows")
        click.get_current_context().exit(NO_ROWS)
