"""Asks for the files that hold the limiters which the settings declare, and tells of declarations that are wrong."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from agent.limiters.catalogue import seen
from agent.log import WARNING, say
from agent.targets.asked import Ask
from agent.targets.unseen import Unseen

if TYPE_CHECKING:
    from agent.limiters.functions.declared import OwnFunction
    from agent.limiters.functions.settings import FunctionSettings
    from agent.probes.beside.golimiter import GoLimiters
    from agent.targets.targets import Targets


_OWN = "own"


def ask(kept: Iterable[FunctionSettings], source: GoLimiters, targets: Targets) -> None:
    """kept: the setting ``limiter_functions``, as the configuration has it."""
    if not (kept := list(kept)):
        return
    from agent.limiters.functions.settings import functions

    for one in kept:
        if one.wrong:
            _tell(one, targets)
    found = functions(kept)
    for program in dict.fromkeys(one.program for one in found):
        _ask(program, [one for one in found if one.program == program], source, targets)


def declares(targets: Targets, path: str) -> bool:
    """Whether functions in this shared library are declared."""
    return any(one.analysis == _OWN and one.wanted(path) for one in targets.files.matching(os.fsencode(path)))


def _ask(program: str, found: list[OwnFunction], source: GoLimiters, targets: Targets) -> None:
    from agent.limiters.functions.seen import asked, own_name
    from agent.limiters.functions.settings import glob, is_shared, matches

    shared, known = is_shared(found[0]), seen()
    declared = [asked(one, known[own_name(one.name)].functions[0], shared) for one in found]
    asks = Ask(_OWN, source.found, "limiter", {"declared": declared}, wanted=partial(matches, found[0]))
    if shared:
        targets.library(glob(program.rpartition("/")[2]).encode(), asks)
    else:
        targets.exe(asks)


def _tell(one: FunctionSettings, targets: Targets) -> None:
    say(
        f"tickscope: {one.where}: {one.wrong}: {one.name} is not watched"
        + (f"\n  try: {one.remedy}" if one.remedy else ""),
        WARNING,
        event="misdeclared",
    )
    targets.unseen.tell(Unseen(f"limiter:{one.name}", one.where, "unavailable", one.wrong, one.remedy))
