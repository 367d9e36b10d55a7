"""``tickscope config``: checks, shows and documents the settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from agent.cli import options
from agent.errors import USAGE

_SHOWN = ("setting", "value", "source", "default", "values")
_SHORTEST, _LONGEST = 12, 34  #: a shortened value on a screen


class SettingName(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """The name of a setting or a section, as a tuple of keys."""

    name = "setting"

    def _known(self) -> dict[str, str]:
        from agent.common.settings import described
        from agent.config import Config

        return {".".join(keys): one.doc for keys, one in described(Config)}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        from agent.ask.names import known

        if isinstance(value, tuple):
            return value
        known(value, self._known(), "setting")
        return tuple(str(value).split("."))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name, help=doc) for name, doc in self._known().items() if name.startswith(incomplete)]


_name = click.argument("name", type=SettingName(), metavar="[SECTION]", default=())
_file = click.option(
    "--config", "file", type=click.Path(dir_okay=False), envvar="TICKSCOPE_CONFIG", help="Settings (YAML)."
)


@click.group("config", cls=options.VerbGroup, subcommand_metavar="VERB [ARGS]...")
def command() -> None:
    """Check, show and document the settings. Needs no running agent.

    \b
    tickscope config check
    tickscope config show otlp
    tickscope config example > tickscope.yaml
    """


@command.command("check")
@click.argument("file", type=click.Path(dir_okay=False), metavar="[FILE]", envvar="TICKSCOPE_CONFIG", required=False)
@options.output
def check(file: str | None, fmt: str) -> None:
    """Report all errors in the settings that `tickscope run` would use: those of FILE (by default TICKSCOPE_CONFIG or
    /etc/tickscope/tickscope.yaml) and of the environment. Exit status 2 if there is an error.

    Files that settings name are opened as the agent would open them; only root can check this for all of them. Also
    warns of files with secrets that all users can read.
    """
    from agent.cli.output import echo, emit_rows, note
    from agent.config import chosen_file
    from agent.config_check import ERROR, SettingProblem
    from agent.config_check import check as problems_of

    path, chosen = chosen_file(os.environ, file)
    problems = problems_of(path, chosen, os.environ)
    if fmt == "table":
        for one in problems:
            echo(f"{one.where}: {one.severity}: {one.what}")
            for label, text in (("why", one.why), ("try", one.remedy)):
                if text:
                    echo(f"  {label}: {text}", 7)
    else:
        rows = ({name: value or None for name, value in one._asdict().items()} for one in problems)
        emit_rows(rows, fmt, SettingProblem._fields, {"file": str(path)})
    errors = sum(one.severity == ERROR for one in problems)
    there = path if path.exists() else f"no {path}: all settings have their defaults"
    note(f"{there}: {_counted(errors, 'error')}, {_counted(len(problems) - errors, 'warning')}")
    if errors:
        click.get_current_context().exit(USAGE)


def _counted(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


@command.command("show")
@_name
@_file
@options.settings()
@options.brokers
@options.output
def show(name: tuple[str, ...], file: str | None, fmt: str, **flags: Any) -> None:
    """Show each setting with its value, the source of the value (a flag, a variable of the environment, FILE:LINE or
    default) and its default; of one SECTION or setting, if it is named. Passwords, tokens and headers are masked.

    Takes the flags of `tickscope run`. The environment is that of this command: that of a service may differ.

    \b
    tickscope config show
    tickscope config show otlp
    tickscope config show syscalls --syscalls full
    """
    from agent.cli.output import emit_rows, note
    from agent.config import Given, chosen_file

    path, chosen = chosen_file(os.environ, file)
    given = {key: value for key, value in flags.items() if value not in (None, ())}
    found = Given.read(path, chosen).beside(os.environ, given)
    found.config()  # raises for what cannot be used
    rows = _rows(found, name)
    if fmt == "table":
        emit_rows(_for_table(list(rows), found.place.file, shorten=not name), fmt, _SHOWN, measure="source")
        if found.place.lines:
            note(f"settings file: {path}")
    else:
        emit_rows(rows, fmt, (*_SHOWN, "meaning"), {"file": str(path)})


def _for_table(rows: list[dict[str, Any]], file: str, *, shorten: bool) -> list[dict[str, Any]]:
    """Rows with values as YAML and sources without the directory. shorten: on a screen, values, and then sources, are
    shortened so that both fit.
    """
    from agent.cli.layout import room
    from agent.config_example import yaml_text

    folder = f"{file.rpartition('/')[0]}/"
    out = [
        {
            **row,
            "value": yaml_text(row["value"]),
            "default": yaml_text(row["default"]),
            "source": row["source"].removeprefix(folder),
        }
        for row in rows
    ]
    if shorten and (width := room(sys.stdout)) is not None:
        left = width - max(len(row["setting"]) for row in out) - 4
        source = min(max(len(row["source"]) for row in out), max(left - _SHORTEST, _SHORTEST))
        for row in out:
            row["source"] = _cut(row["source"], source)
            row["value"] = _cut(row["value"], min(_LONGEST, max(left - source, _SHORTEST)))
    return out


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _rows(found: Any, name: tuple[str, ...]) -> Iterable[dict[str, Any]]:
    from agent.common.settings import described
    from agent.config import Config

    for keys, one in described(Config):
        if one.kind.section is None and keys[: len(name)] == name:
            yield {
                "setting": ".".join(keys),
                "value": found.shown(keys, one),
                "source": found.source(keys) or "default",
                "default": one.shown,
                "values": one.kind.form,
                "meaning": one.doc,
            }


@command.command("example")
@_name
@options.output
def example(name: tuple[str, ...], fmt: str) -> None:
    """Print a settings file (YAML) with each setting, its default and its description, all commented out; of one
    SECTION, if it is named.

    \b
    tickscope config example > tickscope.yaml
    tickscope config example ntp
    """
    from agent.cli.output import emit_rows, quiet_pipe
    from agent.common.settings import TOP
    from agent.config import Given
    from agent.config_example import example as text_of

    if fmt == "table":
        with quiet_pipe():
            print(text_of(name), end="")
    else:
        emit_rows(_rows(Given({}, TOP), name), fmt, ("setting", "default", "values", "meaning"))


@command.command("schema")
def schema() -> None:
    """Print the JSON Schema (draft 2020-12) of the settings file, for editors.

    The first line of `tickscope config example` names the installed copy.
    """
    from agent.cli.output import quiet_pipe
    from agent.config_example import schema_text

    with quiet_pipe():
        print(schema_text(), end="")
