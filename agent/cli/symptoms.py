"""tickscope symptoms: the catalogue of symptoms."""

from __future__ import annotations

import click

from agent.cli import options
from agent.cli.causes import Name, describe


@click.command("symptoms")
@click.argument("name", type=Name(), metavar="[NAME]", default="")
@options.common
def command(name: str, fmt: str, store: str) -> None:
    """List the symptoms that a finding can have: their subject, table and possible causes. With NAME, describe one.
    Needs no store.

    A finding with several symptoms is named after the first of them in this order.

    \b
    tickscope symptoms
    tickscope symptoms -o json
    """
    from agent.ask.names import known
    from agent.cli.output import emit_rows
    from agent.correlate.catalogue import causes, symptoms

    if name:
        known(name, symptoms(), "symptom")
    if name and fmt == "table":
        describe(name)
        return
    emit_rows(
        [
            {
                "symptom": s.name,
                "meaning": s.meaning,
                "subject": s.subject,
                "unit": s.unit or None,
                "table": s.table,
                "causes": " ".join(c.name for c in causes().values() if s.name in c.explains) or None,
                "todo": s.todo,
            }
            for s in symptoms().values()
            if name in ("", s.name)
        ],
        fmt,
        ["symptom", "meaning", "causes", "todo"] if fmt == "table" else None,
        below="todo",
    )
