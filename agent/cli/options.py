"""Options that every verb shares."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from agent.common.duration import parse_ns
from agent.common.printable import printable
from agent.errors import AgentError

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_STORE = "/var/lib/tickscope"
#: Names from the store that a completion offers at most.
_OFFERED = 50


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """``90``, ``90s``, ``5m``, ``2h`` or ``1d``, as seconds."""

    name = "duration"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = parse_ns(str(value), bare="s") / 1e9
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < 1e9 or (not seconds and not self._zero):
            self.fail(f"{str(value)!r} is not a duration: use 90s, 5m, 2h or 1d", param, ctx)
        return seconds


class VerbGroup(click.Group):
    """A group of verbs that suggests the nearest name for an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if args[0].startswith("-"):
                raise
            near = self.nearest(args[0])
            hint = f"Did you mean {near[0]}?" if near else f"The verbs are {', '.join(self.list_commands(ctx))}."
            raise click.UsageError(f"No such verb '{args[0]}'. {hint}", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Verbs"):
            formatter.write_dl(
                [(name, command.get_short_help_str(200)) for name, command in commands if command is not None]
            )

    def nearest(self, name: str) -> list[str]:
        import difflib

        return difflib.get_close_matches(name, self.list_commands(click.Context(self)), 1)


class TableName(click.ParamType):  # type: ignore[type-arg]
    """A table's name; the verb itself checks it, with suggestions."""

    name = "table"

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        return "`tickscope tables` lists them."

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from agent.tables import TABLES

        return [CompletionItem(t.name, help=t.meaning) for t in TABLES.values() if t.name.startswith(incomplete)]


class Columns(click.ParamType):  # type: ignore[type-arg]
    """Comma-separated columns of the table; the verb itself checks them, with suggestions. more: further
    valid names.
    """

    name = "columns"

    def __init__(self, *more: str) -> None:
        self._more = more

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Completes the last name and keeps those before it."""
        from agent.ask.names import columns
        from agent.common.table import DERIVED
        from agent.tables import TABLES

        names = [
            ctx.params.get("table"),
            *ctx.args,
        ]  # if an option lacks its value, click has not parsed the arguments
        table = next((TABLES[name] for name in names if name and name in TABLES), None)
        if table is None:
            return []
        before, comma, last = incomplete.rpartition(",")
        meanings = {c.name: c.meaning for c in (*DERIVED, *table.columns)}
        taken = set(before.split(","))
        return [
            CompletionItem(f"{before}{comma}{n}", help=meanings.get(n))
            for n in (*columns(table.name), *self._more)
            if n.startswith(last) and n not in taken
        ]


class Catalogue(click.ParamType):  # type: ignore[type-arg]
    """The name of a cause or a symptom. kind: ``causes`` or ``symptoms``."""

    name = "name"

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def _known(self) -> Any:
        from agent.correlate import catalogue

        return getattr(catalogue, self._kind)()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from agent.ask.names import known

        return known(str(value), self._known(), self._kind.removesuffix("s"))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        known = self._known().items()
        return [CompletionItem(name, help=one.meaning) for name, one in known if name.startswith(incomplete)]


class StoredName(click.ParamType):  # type: ignore[type-arg]
    """A text that the verb itself checks, completed with the names that rows of the last hour, or since --since, have
    in this column of a table, the newest first.
    """

    def __init__(self, name: str, table: str, column: str) -> None:
        self.name, self._table, self._column = name, table, column

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from agent.ask.question import GroupValue, Question, Where
        from agent.store.sources import opened

        store, since = ctx.params.get("store") or DEFAULT_STORE, ctx.params.get("since") or "1h"
        question = Question(
            self._table,
            (self._column,),
            (Where(self._column, "starts", incomplete),),
            group=(self._column,),
            values=(GroupValue("last_ns", "max", "t_ns"),),
            order=("-last_ns",),
            limit=_OFFERED,
        )
        with contextlib.suppress(AgentError), opened(store, [self._table], since) as source:
            names = [row[self._column] for row in source.rows(question)]
            return [CompletionItem(name) for name in names if name and name.isprintable()]
        return []


class LabKind(click.ParamType):  # type: ignore[type-arg]
    """A kind of fault of the laboratory; the verb itself checks it."""

    name = "kind"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from agent.lab.kind import kinds

        return [CompletionItem(n, help=kind.meaning) for n, kind in kinds().items() if n.startswith(incomplete)]


class FindingId(click.ParamType):  # type: ignore[type-arg]
    """A finding's id, the start of one, or ``last``; the verb itself checks it."""

    name = "finding"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from agent.ask.question import Question, Where
        from agent.store.sources import opened

        found: list[tuple[str, str]] = []
        with contextlib.suppress(AgentError), opened(ctx.params.get("store") or DEFAULT_STORE, ["finding"]) as source:
            begins = Where("finding_id", "starts", incomplete)
            newest = Question("finding", ("finding_id", "sentence"), (begins,), order=("-start_ns",), limit=_OFFERED)
            found = [(row["finding_id"], printable(row["sentence"])) for row in source.rows(newest)]
        return [
            CompletionItem(name, help=text)
            for name, text in [("last", "the finding that started last"), *found]
            if name.startswith(incomplete)
        ]


duration = click.option("--duration", type=Duration(), metavar="S", help="Stop after this time: 90s, 5m, 2h.")
table = click.argument("table", type=TableName(), metavar="TABLE")


def since(text: str, default: str | None = None) -> Callable[[F], F]:
    """``--since TIME``."""
    return click.option("--since", metavar="TIME", default=default, show_default=default is not None, help=text)


def brokers(function: F) -> F:
    """An option per kind of broker, passed under its name: servers whose queues are polled."""
    from agent.queues import catalogue

    for name, one in reversed(catalogue.brokers().items()):
        function = click.option(
            one.flag,
            name,
            multiple=True,
            metavar="SERVER",
            help=f"{one.title}: a server to watch, {one.form} ({one.note}).",
        )(function)
    return function


def settings(*names: str) -> Callable[[F], F]:
    """An option for each setting that has one, or for these, passed under its key; None if not given."""
    from agent.config import flags

    def add(function: F) -> F:
        for key, one in reversed(flags().items()):
            if not names or key in names:
                meaning = f"{one.doc[0].upper()}{one.doc[1:]} [default: {one.default}]."
                form: Any = click.Choice(one.kind.choices) if one.kind.choices else click.STRING
                form = click.Path(file_okay=False) if one.kind.metavar == "DIRECTORY" else form
                metavar = None if one.kind.choices else one.kind.metavar
                flag = f"--{key.replace('_', '-')}"
                function = click.option(flag, key, type=form, metavar=metavar, help=meaning)(function)
        return function

    return add


def live_output(function: F) -> F:
    """``-o FORMAT``, passed as ``fmt``, of a verb that prints each row when it happens, and ends."""
    return _format("table", "Output format.")(function)


def output(function: F) -> F:
    """``-o FORMAT``, passed as ``fmt``. On a terminal, a pager shows what the verb prints."""

    @functools.wraps(function)
    def shown(*args: Any, no_pager: bool, **kwargs: Any) -> Any:
        from agent.cli.pager import paged

        with paged(not no_pager):
            return function(*args, **kwargs)

    text = "Do not page the output on a terminal (default: $PAGER, or less)."
    return live_output(click.option("--no-pager", is_flag=True, help=text)(cast(F, shown)))


def stream(default: str = "table") -> Callable[[F], F]:
    """``-o FORMAT``, passed as ``fmt``, of a verb that goes on until it is interrupted."""
    return _format(default, "Output format (json is ndjson: a stream has no end).")


def _format(default: str, text: str) -> Callable[[F], F]:
    choice = click.Choice(["table", "json", "ndjson", "csv"])
    return click.option("-o", "--output", "fmt", type=choice, default=default, show_default=True, help=text)


def _store(*names: str, text: str = "The store's directory.", **more: Any) -> Callable[[F], F]:
    return click.option(
        *names,
        "store",
        envvar="TICKSCOPE_STORE",
        default=DEFAULT_STORE,
        show_default=True,
        show_envvar=True,
        help=text,
        **more,
    )


def store(function: F) -> F:
    """``--store DIR``, passed as ``store``."""
    return _store("--store", type=click.Path(file_okay=False, readable=False))(function)


def place(function: F) -> F:
    """``--store DIR`` or ``--from FILE``, passed as ``store``: anything that has rows (agent/store/sources.py)."""
    text = "The store's directory, or a recording (tickscope record)."
    return _store("--store", "--from", text=text, type=click.Path(readable=False), metavar="DIR|FILE")(function)


def common(function: F) -> F:
    """Output format, and a store that the verb does not open (TICKSCOPE_STORE may name a recording)."""
    return output(_store("--store", type=click.Path(readable=False))(function))


def reading(function: F) -> F:
    """Output format and a source of rows, for verbs that only read."""
    return output(place(function))
