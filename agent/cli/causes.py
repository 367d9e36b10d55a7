"""tickscope causes: what a finding can name as a cause."""

from __future__ import annotations

import click

from agent.cli import options


@click.command("causes")
@options.common
def command(fmt: str, store: str) -> None:
    """The causes that a finding can name, in the order in which they are asked: what each explains, which tables it is
    looked for in, and what to do about it. Needs no store.

    \b
    tickscope causes
    tickscope causes -o json
    """
    from agent.cli.output import emit_rows
    from agent.correlate.catalogue import causes

    emit_rows(
        [
            {
                "cause": c.name,
                "meaning": c.meaning,
                "explains": " ".join(c.explains) or None,
                "reads": " ".join(sorted(c.reads)) or None,
                "facts": " ".join(c.facts) or None,
                "todo": c.todo,
            }
            for c in causes().values()
        ],
        fmt,
        ["cause", "meaning", "explains", "todo"] if fmt == "table" else None,
        below="todo",
    )
