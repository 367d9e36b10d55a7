"""The setting ``limiter_functions``: a list of declarations. One that is wrong is told with its line, and the others
hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from agent.errors import USAGE, AgentError
from agent.limiters.functions.declared import MisdeclaredError, OwnFunction, parse

if TYPE_CHECKING:
    from agent.limiters.replay.ruled import Declared

MOST = 32
#: (number of the declaration, keys below it) -> its line.
Lines = Mapping[tuple[object, ...], int]


def line(lines: Lines, number: int, at: tuple[str, ...]) -> int:
    """Of the innermost of these keys that there is; 0 where nothing is known of it."""
    return next((found for end in range(len(at), -1, -1) if (found := lines.get((number, *at[:end])))), 0)


def entries(given: object, file: str, lines: Lines) -> list[dict[str, object]]:
    """What the configuration keeps: of each declaration what was ``given`` and ``where``, and with ``wrong`` and
    ``remedy`` what is wrong with it. Raises AgentError (exit code 2).
    """
    if not isinstance(given, list):
        raise AgentError(
            f"limiter_functions cannot be {given!r}"[:200],
            why="it is a list of declarations, which begin with `- name:`",
            exit_code=USAGE,
        )
    if len(given) > MOST:
        raise AgentError(f"limiter_functions has {len(given)} entries", why=f"it may have {MOST}", exit_code=USAGE)
    found, names = list[dict[str, object]](), set[str]()
    for number, one in enumerate(given):
        entry: dict[str, object] = {"given": one, "where": f"{file}:{line(lines, number, ())}"}
        try:
            name = parse(one).name
            if name in names:
                raise MisdeclaredError(("name",), f"{name!r} is there twice", "call the second one otherwise")
            names.add(name)
        except MisdeclaredError as error:
            name = str(one.get("name", number + 1)) if isinstance(one, Mapping) else str(number + 1)
            entry = {
                "name": name[:28],
                "where": f"{file}:{line(lines, number, error.at)}",
                "wrong": error.what,
                "remedy": error.remedy,
            }
        found.append(entry)
    return found


def functions(kept: Iterable[Mapping[str, object]]) -> list[OwnFunction]:
    """Those that hold, of ``entries``."""
    return [parse(one["given"]) for one in kept if "given" in one]


def declare_all(kept: Iterable[Mapping[str, object]]) -> None:
    """From now on, what is seen has those that hold."""
    from agent.limiters.catalogue import declare
    from agent.limiters.functions.seen import all_seen

    declare(all_seen(functions(kept)))


def replayed(found: Iterable[OwnFunction]) -> tuple[Declared, ...]:
    """What the declarations say for ``limiters replay``."""
    from agent.common.settings import Section
    from agent.limiters.model_settings import one as declared

    return tuple(declared(pattern, one.replay, Section()) for one in found for pattern in (one.name, f"{one.name}@*"))


def glob(text: str) -> str:
    """A regular expression of what ``*`` and ``?`` stand for."""
    return "".join({"*": r"[^\n]*", "?": r"[^\n]"}.get(letter, re.escape(letter)) for letter in text)


def matches(one: OwnFunction, path: str) -> bool:
    """Whether a file is the declared program, as far as its path says; always, where a build id is to say it."""
    plain = path.removesuffix(" (deleted)")
    return not one.program or bool(
        re.fullmatch(glob(one.program), plain if "/" in one.program else plain.rpartition("/")[2])
    )


def is_shared(one: OwnFunction) -> bool:
    """Whether the program is a shared library, by its name."""
    return bool(re.search(r"\.so(?:[.*?]|$)", one.program.rpartition("/")[2]))
