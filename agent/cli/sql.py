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
    from agent.cli.output import emit_rows, note
    from agent.store.query import Session, mentioned
    from agent.tables import TABLES

    with Session(store, mentioned(text) or list(TABLES)) as session:
        result = session.run(text)
        for problem in session.notes:
            note(f"note: {problem}")
    emit_rows(result.dicts(), fmt, result.columns, {"columns": result.columns}, chosen=True)
    if not result.rows:
        note("no rows")
        click.get_current_context().exit(NO_ROWS)
