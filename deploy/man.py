"""The manual pages, from the declarations of the commands and settings: ``python -m deploy.man commands|settings``.

deploy/debian/rules runs it when the package is built.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from agent.cli.main import SECTIONS, cli
from agent.common.settings import described
from agent.common.version import VERSION
from agent.config import DEFAULT_FILE, Config
from agent.config_example import beside, yaml_text

_ROOT = Path(__file__).parents[1]


#: What roff would print otherwise.
_CHARACTERS = str.maketrans({"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\`", "^": "\\(ha", "~": "\\(ti"})


def escaped(text: str) -> str:
    """Text that roff prints as it stands, also at the beginning of a line. Long words, such as URLs, may be broken."""
    shown = re.sub(
        r"\S{40,}",
        lambda word: re.sub(r"(?<=[/?&,|=.])(?=\w)", r"\\:", word[0]),
        text.translate(_CHARACTERS),
    )
    return re.sub(r"^\.", r"\\&.", shown, flags=re.MULTILINE)


def _paragraphs(text: str) -> Iterator[str]:
    """Help of a command. What click prints as it stands (after a \\b) is not filled."""
    for part in re.split(r"\n\s*\n", text.strip()):
        if part.lstrip().startswith("\b"):
            yield from (".PP", ".nf", *(escaped(f"    {line.strip()}") for line in part.splitlines()[1:]), ".fi")
        else:
            yield from (".PP", escaped(" ".join(part.split())))


def _heading(name: str, section: int, about: str) -> Iterator[str]:
    day = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
    yield f'.TH {name.upper()} {section} "{day}" "tickscope {VERSION}"'
    yield from (".nh", ".ad l", ".ds AD l")  # names are not hyphenated; AD: of groff 1.23 and newer, ad: of older ones
    yield from (".SH NAME", f"{name} \\- {escaped(about)}")


def _verb(name: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=f"tickscope {name}")
    yield f'.SS "{escaped(" ".join([name, *command.collect_usage_pieces(context)]))}"'
    yield from _paragraphs(command.help or "")
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            metavar = "" if option.is_flag else f" {option.make_metavar(context)}"
            variable = f" [{option.envvar}]" if option.envvar else ""
            yield from (".TP", f"\\fB{escaped(', '.join(option.opts))}\\fR{escaped(metavar)}")
            yield escaped(f"{option.help or ''}{variable}")
    for sub, one in getattr(command, "commands", {}).items():
        yield from _verb(f"{name} {sub}", one)


def commands() -> Iterator[str]:
    """Lines of tickscope(1)."""
    first, *more = re.split(r"\n\s*\n", (cli.help or "").strip(), maxsplit=1)
    yield from _heading("tickscope", 1, " ".join(first.split()).rstrip("."))
    yield from (".SH SYNOPSIS", ".B tickscope", "VERB [ARGS]...", ".SH DESCRIPTION")
    for text in more:
        yield from _paragraphs(text)
    context = click.Context(cli)
    for heading, verbs in SECTIONS.items():
        yield f'.SH "{heading.upper()}"'
        for verb in verbs:
            command = cli.get_command(context, verb)
            assert command is not None
            yield from _verb(verb, command)
    yield '.SH "EXIT STATUS"'
    for status, meaning in re.findall(r"^\| (\d+) \| (.+) \|$", (_ROOT / "docs/commands.md").read_text(), re.MULTILINE):
        yield from (".TP", f".B {status}", escaped(meaning))
    yield from (".SH FILES", ".TP", f".I {escaped(str(DEFAULT_FILE))}", "The settings: tickscope.yaml(5).")
    yield from ('.SH "SEE ALSO"', "tickscope.yaml(5), and the documentation in")
    yield ".I /usr/share/doc/tickscope"


def settings() -> Iterator[str]:
    """Lines of tickscope.yaml(5)."""
    yield from _heading("tickscope.yaml", 5, "settings of tickscope")
    yield from (".SH DESCRIPTION", escaped(f"{DEFAULT_FILE} is a YAML file. A key such as metrics.detail is the key"))
    yield escaped("detail in the section metrics. A flag overrides an environment variable, which overrides the file.")
    yield from ("To check a file:", ".B tickscope config check FILE", ".SH SETTINGS")
    for keys, one in described(Config):
        yield from (".TP", f"\\fB{escaped('.'.join(keys))}\\fR")
        yield escaped(one.doc)
        if one.kind.section is None:
            yield from (".br", escaped(f"Values: {one.kind.form}.{beside(one)} Default: {yaml_text(one.shown)}"))
    yield from ('.SH "SEE ALSO"', "tickscope(1)")


if __name__ == "__main__":
    print("\n".join({"commands": commands, "settings": settings}[sys.argv[1]]()))
