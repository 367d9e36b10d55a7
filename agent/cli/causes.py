"""tickscope causes: the catalogue of causes, and the description of a cause or symptom."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from agent.cli import options


class Name(click.ParamType):  # type: ignore[type-arg]
    """A cause's or a symptom's name; the verb itself checks it, with suggestions."""

    name = "name"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from agent.correlate.catalogue import Cause, Symptom, causes, symptoms

        known: dict[str, Cause | Symptom] = {**symptoms(), **causes()}
        return [CompletionItem(name, help=one.meaning) for name, one in known.items() if name.startswith(incomplete)]


@click.command("causes")
@click.argument("name", type=Name(), metavar="[NAME]", default="")
@options.common
def command(name: str, fmt: str, store: str) -> None:
    """List the causes that a finding can have: the symptoms that each explains, the tables that it uses, and what to
    do. With NAME, describe one cause or symptom. Needs no store.

    If two causes have the same score, the first in this order wins.

    \b
    tickscope causes
    tickscope causes broker_slow
    tickscope causes -o json
    """
    from agent.cli.output import emit_rows

    if name and fmt == "table":
        describe(name)
        return
    emit_rows(
        _known(name, rows()),
        fmt,
        ["cause", "meaning", "explains", "todo"] if fmt == "table" else None,
        below="todo",
    )


def rows() -> list[dict[str, Any]]:
    """Every cause as a row."""
    from agent.correlate.catalogue import causes

    return [
        {
            "cause": c.name,
            "meaning": c.meaning,
            "explains": " ".join(c.explains) or None,
            "reads": " ".join(sorted(c.reads)) or None,
            "facts": " ".join(c.facts) or None,
            "todo": c.todo,
        }
        for c in causes().values()
    ]


def _known(name: str, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with that name, all if it is empty. Raises AgentError (exit 2) if there is none."""
    from agent.ask.names import known

    if name:
        known(name, [row["cause"] for row in found], "cause")
    return [row for row in found if name in ("", row["cause"])]


def describe(name: str) -> None:
    """Prints the description of a cause, a symptom, or both. Raises AgentError (exit 2) for an unknown name."""
    from agent.ask.names import known
    from agent.cli.output import echo, quiet_pipe
    from agent.correlate.catalogue import causes, symptoms

    known(name, {**causes(), **symptoms()}, "cause or symptom")
    with quiet_pipe():
        if cause := causes().get(name):
            echo(f"cause    {name}: {cause.meaning}", 9)
            echo(f"explains {', '.join(cause.explains) or 'nothing'}", 9)
            echo(f"seen in  {', '.join(sorted(cause.reads)) or 'no table of its own'}", 9)
            echo(f"next     {cause.todo}", 9)
        if symptom := symptoms().get(name):
            echo(f"symptom  {name}: {symptom.meaning}", 9)
            of = [c.name for c in causes().values() if name in c.explains]
            echo(f"causes   {', '.join(of) or 'none is checked'}", 9)
            echo(f"seen in  {symptom.table}", 9)
            echo(f"next     {symptom.todo}", 9)
