"""Limiter libraries in Go programs, as agent/limiters/libraries/ declares them. Only programs are probed; in shared
libraries they are only reported.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import TYPE_CHECKING

from agent.binaries import gofacts
from agent.binaries.contract import Analysis
from agent.common.printable import printable
from agent.instruments.declared_functions import declares
from agent.instruments.kind import BinaryKind, KindContext
from agent.targets.asked import ProbeRequest

if TYPE_CHECKING:
    from agent.contracts import Source

#: Signals that every Go runtime handles: faults, and the one for preemption.
_OF_GO = sum(1 << one - 1 for one in (signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, signal.SIGURG))
_REMEDY = "declare its function in limiter_functions, or have it send its decisions (docs/start-limiter.md)"


def analyze(fds: list[int], shared: bool = False) -> list[Analysis]:
    """One for each library, and one for all limiter packages that are not probed. shared: of a shared library."""
    found = gofacts.analyze(fds[0])
    if found is None:
        return []
    if shared:
        packages = [package for one in found.probed for package in one.packages] + found.others
        reason = f"Go in a shared library, with {', '.join(map(printable, packages))}: only programs are probed"
        return [Analysis(state="unavailable", reason=reason, remedy=_REMEDY)] if packages else []
    analyses = [one.analysis() for one in found.probed]
    if found.others:
        reason = f"contains {', '.join(map(printable, found.others))}, whose decisions are not seen"
        analyses.insert(0, Analysis(state="unavailable", reason=reason, remedy=_REMEDY, probe="limiters"))
    return analyses


def runs_go(pid: int) -> bool:
    """Whether the process has a Go runtime, in its executable or a library, by its signal handlers."""
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            caught = next((int(line.split()[1], 16) for line in status if line.startswith(b"SigCgt:")), 0)
    except OSError:
        return False
    return caught & _OF_GO == _OF_GO


def begin(kind: BinaryKind, context: KindContext) -> Iterable[Source]:
    from agent.instruments.limiters.shared_sources import limiters

    source, sources = limiters(context)
    kind.watch(context.targets, source.found)
    others = ProbeRequest(
        kind.name,
        source.found,
        kind.family,
        {"shared": True},
        wanted=lambda path: not declares(context.targets, path),
    )
    context.targets.mapped(runs_go, others)
    return sources


KIND = BinaryKind(name="go limiters", family="limiter", analyze=analyze, executables=True, begin=begin)
