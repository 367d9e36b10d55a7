"""tickscope tables: lists tables and columns."""

from __future__ import annotations

import click

from agent.cli import options


@click.command("tables")
@click.argument("table", type=options.TableName(), required=False)
@options.common
def command(table: str | None, fmt: str, store: str) -> None:
    """List the tables or, with TABLE, its columns with units and meanings. Needs no store."""
    from agent.ask.names import known
    from agent.cli.output import emit_rows
    from agent.common.table import DERIVED
    from agent.tables import TABLES

    if table is None:
        emit_rows(
            [
                {
                    "table": t.name,
                    "meaning": t.meaning,
                    "measure": t.measure or None,
                    "columns": len(t.columns) + len(DERIVED),
                }
                for t in TABLES.values()
            ],
            fmt,
        )
        return
    columns = TABLES[known(table, TABLES, "table")].columns
    emit_rows(
        [
            {
                "column": c.name,
                "kind": c.kind,
                "unit": c.unit or None,
                "meaning": c.meaning,
                "values": " ".join(c.names) or None,
                "attribute": c.attribute or None,
            }
            for c in (columns[0], *DERIVED, *columns[1:])
        ],
        fmt,
        extra={"table": table},
    )
