"""tickscope symptoms: what a finding can be about."""

from __future__ import annotations

import click

from agent.cli import options


@click.command("symptoms")
@options.common
def command(fmt: str, store: str) -> None:
    """The symptoms that a finding can be about, in the order in which the first of several names it: of what, in which
    table, and which causes are asked. Needs no store.

    \b
    tickscope symptoms
    tickscope symptoms -o json
    """
    from agent.cli.output import emit_rows
    from agent.correlate.catalogue import causes, symptoms

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
        ],
        fmt,
        ["symptom", "meaning", "causes", "todo"] if fmt == "table" else None,
        below="todo",
    )
