"""The manual pages: roff accepts them, and they have each command, option and setting."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable

import click
import pytest

from agent.cli.main import VERBS, cli
from agent.common.settings import described
from agent.config import Config
from deploy import man


def rendered(lines: Iterable[str]) -> str:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-Kutf8", "-P-c", "-ww", "-rLL=78n"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return re.sub(r".\x08", "", done.stdout).replace("−", "-").replace("‐", "-")


def names(command: click.Command) -> Iterable[str]:
    yield from (name for option in command.params if isinstance(option, click.Option) for name in option.opts)
    for sub, one in getattr(command, "commands", {}).items():
        yield sub
        yield from names(one)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            man.commands,
            lambda: {*VERBS} | {n for verb in VERBS for n in names(cli.get_command(click.Context(cli), verb))},
        ),
        (man.settings, lambda: {".".join(keys) for keys, _ in described(Config)}),
    ],
    ids=["tickscope(1)", "tickscope.yaml(5)"],
)
def test_all_that_is_declared_is_in_the_page(
    lines: Callable[[], Iterable[str]], expected: Callable[[], set[str]]
) -> None:
    shown = set(re.split(r"[\s,]+", rendered(lines())))
    assert expected() - shown == set()


def test_text_is_not_taken_for_a_request() -> None:
    hostile = ".so /etc/passwd\n'br\na\\fB`-^~"
    assert rendered([".nf", man.escaped(hostile)]).split() == hostile.split()
