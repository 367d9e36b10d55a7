"""Options that every verb shares."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_STORE = "/var/lib/tickscope"


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """``90``, ``90s``, ``5m``, ``2h`` or ``1d``, as seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
        text = str(value)
        number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
        try:
            seconds = float(number) * units[unit]
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < 1e9:
            self.fail(f"{text!r} is no duration; say 90s, 5m, 2h or 1d", param, ctx)
        return seconds


class Table(click.ParamType):  # type: ignore[type-arg]
    """A table's name; the verb itself checks it, with suggestions."""

    name = "table"

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        return "`tickscope tables` lists them."

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from agent.tables import TABLES

        return [CompletionItem(t.name, help=t.meaning) for t in TABLES.values() if t.name.startswith(incomplete)]


duration = click.option("--duration", type=Duration(), metavar="S", help="Stop by itself after this long: 90s, 5m, 2h.")
table = click.argument("table", type=Table(), metavar="TABLE")


def output(function: F) -> F:
    """``-o FORMAT``, passed as ``fmt``."""
    return click.option("-o", "--output", "fmt", type=click.Choice(["table", "json", "ndjson", "csv"]), default="table",
                        show_default=True, help="Output format.")(function)


def store(function: F) -> F:
    """``--store DIR``, passed as ``store``."""
    return click.option("--store", type=click.Path(file_okay=False, readable=False), envvar="TICKSCOPE_STORE", default=DEFAULT_STORE,
                        show_default=True, show_envvar=True, help="The store's directory.")(function)


def common(function: F) -> F:
    """Both."""
    return output(store(function))
