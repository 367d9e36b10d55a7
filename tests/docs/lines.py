"""The command lines of the documents: those of console blocks, and those in backquotes within the text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from tests.docs.session import commands

#: What a shell has before a program: privilege, and variables.
_BEFORE = re.compile(r"[A-Z_]+=.*|sudo")


def written(text: str) -> Iterator[str]:
    """Each command line of a page, as it is written there."""
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        yield from commands(block)
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for inline in re.findall(r"`([^`\n]+)`", outside):
        yield from re.findall(
            r"(?:^|(?<=\())((?:sudo )?(?:[A-Z_]+=\S+ )?(?:\./run\.sh|run\.sh|tickscope|python -m) [^)]+)", inline
        )


def programs(line: str) -> Iterator[list[str]]:
    """The words of each program of a command line, from its name on."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;()<")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, "|"]:
        if set(word) <= set("|&;()<"):
            while words and _BEFORE.fullmatch(words[0]):
                words.pop(0)
            if words:
                yield words
            words = []
        else:
            words.append(word)


def arguments(line: str) -> Iterator[list[str]]:
    """What `tickscope` is given, by each program of a command line that is it. run.sh's is `run` where there is no
    verb, as that script has it.
    """
    for words in programs(line):
        if words[0] == "tickscope":
            yield words[1:]
        elif words[0].endswith("run.sh"):
            yield words[1:] or ["run"]
