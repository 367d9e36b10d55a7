"""Limiters of Go programs that are not seen: what ``status`` says of them."""

from __future__ import annotations

from typing import Any

from agent.errors import printable
from agent.kernel.steps import Steps
from agent.probes.beside.go_binary import Binary, name_of
from agent.targets.asked import Release, Target
from agent.targets.unseen import Unseen, UnseenPrograms


def unseen(programs: UnseenPrograms, one: Binary, target: Target) -> Release:
    """Tells of one that is known; its row of probe_status comes with the others. Returns what forgets it."""
    programs.tell(Unseen(name_of(one), one.path, one.state, one.reason, one.remedy, target.owner.uid))
    return lambda: programs.forget(name_of(one), one.path)


def unprobed(programs: UnseenPrograms, target: Target, packages: list[str]) -> Release:
    """Tells of limiters that the program contains and that are not probed; returns what forgets it."""
    if not packages:
        return lambda: None
    reason = f"contains {', '.join(map(printable, packages))}, whose decisions are not seen"
    return programs.of(
        "limiters",
        target.path,
        target.owner,
        "unavailable",
        reason,
        "declare its function in limiter_functions, or have it send its decisions (docs/limiters.md)",
    )


def in_library(programs: UnseenPrograms, target: Target, facts: dict[str, Any]) -> Steps[Release | None]:
    """Tells of limiters in Go that a program of whatever language loads."""
    yield from ()
    packages = [one for known in facts["probed"] for one in known["packages"]] + facts["others"]
    if not packages:
        return None
    return programs.of(
        "limiter",
        target.path,
        target.owner,
        "unavailable",
        f"Go in a shared library, with {', '.join(map(printable, packages))}: only programs are probed",
        "declare its function in limiter_functions, or have it send its decisions (docs/limiters.md)",
    )
