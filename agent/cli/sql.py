"""tickscope sql: any SQL over the store."""

from __future__ import annotations

import click

from agent.cli import options
from agent.errors import NO_ROWS


@click.command("sql")
@click.argument("text")
@options.common
def command(text: str, fmt: str, store: str) -> None:
    """Run the SQL in TEXT (DuckDB's dialect, read only); every table of `tickscope tables` is a view.

    \b
    tickscope sql "SELECT comm, count(*) FROM slow_syscall GROUP BY ALL ORDER BY 2 DESC"
    """
    from agent.cli.gaps import tell
    from agent.cli.output import emit_rows, note
    from agent.store.query import Session, mentioned
    from agent.tables import TABLES

    asked = mentioned(text)
    with Session(store, [*asked, "loss"] if asked else list(TABLES)) as session:
        result = session.run(text)
        gaps = session.gaps() if asked else []
        notes = session.notes
    emit_rows(result.dicts(), fmt, result.columns, {"columns": result.columns, "gaps": gaps}, chosen=True)
    tell(gaps, notes, fmt)
    if not result.rows:
        note("no rows")
        click.get_current_context().exit(NO_ROWS)
