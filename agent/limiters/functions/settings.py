"""The setting ``limiter_functions``: a list of declarations. A wrong one is reported with its line; the others are
used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent.common.settings import Place, SettingError
from agent.limiters.functions.declared import OwnFunction, declaration_schema, parse
from agent.limiters.model_settings import Declared

MOST = 32


@dataclass(frozen=True)
class FunctionSettings:
    """A declaration of ``limiter_functions``. given: as in the file (agent/limiters/functions/declared.py parses it).
    where: ``FILE:LINE``. wrong: why it cannot be used, empty if it can.
    """

    name: str
    where: str
    given: Mapping[str, Any]
    wrong: str = ""
    remedy: str = ""


def entries_schema() -> dict[str, Any]:
    return {"type": "array", "items": declaration_schema(), "maxItems": MOST}


def entries(given: object, place: Place) -> tuple[FunctionSettings, ...]:
    """The declarations of a list, each with its line. Raises AgentError (exit code 2) if it is no list."""
    if not isinstance(given, list):
        raise place.wrong(given, "must be a list of declarations, each beginning with `- name:`")
    if len(given) > MOST:
        raise place.error(f"limiter_functions has {len(given)} entries", f"at most {MOST} are allowed")
    found, names = list[FunctionSettings](), set[str]()
    for number, one in enumerate(given):
        here = place.below(number)
        try:
            name = parse(one).name
            if name in names:
                raise SettingError(
                    ("name",), f"name: {name!r} is used twice", remedy="give the second one another name"
                )
            names.add(name)
            found.append(FunctionSettings(name, here.where, one))
        except SettingError as error:
            name = str(one.get("name", number + 1)) if isinstance(one, Mapping) else str(number + 1)
            wrong = here.below(*error.keys).error(error.what, error.why, error.remedy)
            found.append(FunctionSettings(name[:28], wrong.where, {}, error.what, error.remedy or error.why))
            if here.examination is not None:
                here.examination.errors.append(wrong)
    return tuple(found)


def functions(kept: Iterable[FunctionSettings]) -> list[OwnFunction]:
    """The usable declarations."""
    return [parse(one.given) for one in kept if not one.wrong]


def declare_all(kept: Iterable[FunctionSettings]) -> None:
    """Adds the usable declarations to the observed functions."""
    from agent.limiters.catalogue import declare
    from agent.limiters.functions.seen import all_seen

    declare(all_seen(functions(kept)))


def replayed(found: Iterable[OwnFunction]) -> tuple[Declared, ...]:
    """The declared models for ``limiters replay``."""
    return tuple(replace(one.replay, pattern=pattern) for one in found for pattern in (one.name, f"{one.name}@*"))


def glob(text: str) -> str:
    """A glob with ``*`` and ``?`` as a regular expression."""
    return "".join({"*": r"[^\n]*", "?": r"[^\n]"}.get(letter, re.escape(letter)) for letter in text)


def matches(one: OwnFunction, path: str) -> bool:
    """Whether a file's path matches the declared program; always true if a build id identifies it."""
    plain = path.removesuffix(" (deleted)")
    return not one.program or bool(
        re.fullmatch(glob(one.program), plain if "/" in one.program else plain.rpartition("/")[2])
    )


def is_shared(one: OwnFunction) -> bool:
    """Whether the program's name is that of a shared library."""
    return bool(re.search(r"\.so(?:[.*?]|$)", one.program.rpartition("/")[2]))
