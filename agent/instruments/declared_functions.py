"""Functions of limiters that the settings declare (``limiter_functions``), in programs of Go, C, C++ and Rust."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from agent.binaries import ownfunction
from agent.binaries.contract import Analysis
from agent.instruments.kind import BinaryKind, KindContext
from agent.limiters.catalogue import seen
from agent.log import WARNING, log_message
from agent.targets.asked import ProbeRequest
from agent.targets.unprobed import UnprobedProgram

if TYPE_CHECKING:
    from agent.contracts import Source
    from agent.limiters.functions.declared import OwnFunction
    from agent.limiters.functions.settings import FunctionSettings
    from agent.targets.asked import Found
    from agent.targets.targets import Targets

NAME = "declared functions"


def analyze(fds: list[int], declared: list[dict[str, Any]], near: bool = False) -> list[Analysis]:
    """One for each declaration for this file (``ownfunction.analyze``). facts ``trouble``: None, or for an unavailable
    one the wrong ``key``, and names ``near`` a missing one.
    """
    found = []
    returned = {one["returned"] for one in declared}
    for one, trouble in ownfunction.analyze(fds[0], declared, near):
        found.append(one.analysis())
        found[-1].facts["trouble"] = trouble
        for attachment in found[-1].attachments:
            attachment.at_return = attachment.program in returned
    return found


def begin(kind: BinaryKind, context: KindContext) -> Iterable[Source]:
    """Sets the kind up; reports wrong declarations, too."""
    kept: list[FunctionSettings] = list(context.settings.limiter_functions)
    if not kept:
        return []
    from agent.instruments.limiters.shared_sources import limiters
    from agent.limiters.functions.settings import functions

    source, _ = limiters(context)
    for one in kept:
        if one.wrong:
            _report(one, context.targets)
    found = functions(kept)
    for program in dict.fromkeys(one.program for one in found):
        _watch(program, [one for one in found if one.program == program], source.found, context.targets)
    return []


def declares(targets: Targets, path: str) -> bool:
    """Whether functions in this shared library are declared."""
    return any(one.analysis == NAME and one.wanted(path) for one in targets.files.matching(os.fsencode(path)))


def _watch(program: str, found: list[OwnFunction], opens: Found, targets: Targets) -> None:
    from agent.limiters.functions.seen import arguments_of, own_name
    from agent.limiters.functions.settings import glob, is_shared, matches

    shared, known = is_shared(found[0]), seen()
    declared = [arguments_of(one, known[own_name(one.name)].functions[0], shared) for one in found]
    asks = ProbeRequest(NAME, opens, "limiter", {"declared": declared}, wanted=partial(matches, found[0]))
    if shared:
        targets.library(glob(program.rpartition("/")[2]).encode(), asks)
    else:
        targets.exe(asks)


def _report(one: FunctionSettings, targets: Targets) -> None:
    log_message(
        f"tickscope: {one.where}: {one.wrong}: {one.name} is not watched"
        + (f"\n  try: {one.remedy}" if one.remedy else ""),
        WARNING,
        event="misdeclared",
    )
    targets.unprobed_programs.report(
        UnprobedProgram(f"limiter:{one.name}", one.where, "unavailable", one.wrong, one.remedy)
    )


KIND = BinaryKind(name=NAME, family="limiter", analyze=analyze, begin=begin)
