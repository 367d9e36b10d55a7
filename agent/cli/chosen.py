"""Finds what a user means by a name, by the beginning of a name, or by a part of one."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from agent.common.printable import printable
from agent.errors import NO_ROWS, USAGE, AgentError

_NEAR, _FEW = 5, 0.3


def chosen(given: str, names: Sequence[str], noun: str, verb: str, remedy: str) -> str:
    """The name that ``given`` identifies: the whole name, its beginning, or a part that no other name has.

    noun, verb, remedy: for the errors, ``no limiter NAME decided anything in that time``. Raises AgentError: exit 3 if
    there is none, 2 if there are several.
    """
    if given in names:
        return given
    for fits in (str.startswith, str.__contains__):
        fitting = [name for name in names if fits(name, given)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            few = "; ".join(map(printable, fitting[:_NEAR])) + (
                f"; and {len(fitting) - _NEAR} more" if len(fitting) > _NEAR else ""
            )
            raise AgentError(
                f"{len(fitting)} {noun}s match {printable(given)}",
                why=few,
                remedy="give more of the name",
                exit_code=USAGE,
            )
    near = difflib.get_close_matches(given, names, _NEAR, _FEW) or names[:_NEAR]
    raise AgentError(
        f"no {noun} {printable(given)} {verb} in that time",
        why=f"there are: {'; '.join(map(printable, near))}",
        remedy=remedy,
        exit_code=NO_ROWS,
    )
