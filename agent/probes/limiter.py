"""Decisions of limiter libraries in unmodified Go programs, as agent/limiters/libraries/ declares them; see bpf/limiter_decision.h."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, cast

import numpy as np

from agent.batch import Batch
from agent.kernel.probe import Probe, Program, Ring
from agent.limiters.catalogue import seen
from agent.limiters.library import Seen
from agent.probes.beside.go_decisions import decided

if TYPE_CHECKING:
    from agent.contracts import Source
    from agent.kernel.load import Family
    from agent.kernel.source import KernelSource
    from agent.targets.attacher import Attacher
    from agent.targets.targets import Targets


def decode_decisions(records: np.ndarray) -> Iterable[Batch]:
    """Records of ``struct limiter_decision`` -> limiter_decision rows, in the same order; without those that beside/go_waits.py decodes, and our own (beside/hit_cost.py)."""
    at_once = records[((records["asleep"] | records["woke"]) == 0) & (records["proc"]["pid"] != os.getpid())]
    return [Batch("limiter_decision", decided(at_once))] if len(at_once) else []


def setup(
    family: Family, kernel: KernelSource, helper: Attacher, targets: Targets, config: Mapping[str, object]
) -> Iterable[Source]:
    """Attaches to every Go binary with a library that ``targets`` finds. config: ``limiter_share``, of a thread's time that
    a program's probes may take all of the time."""
    from agent.probes.beside.declared_functions import ask
    from agent.probes.beside.go_waits import Waits
    from agent.probes.beside.golimiter import GoLimiters
    from agent.probes.beside.hit_cost import COST
    from agent.probes.beside.share import EXACT
    from agent.targets.asked import Ask

    source = GoLimiters(
        family, kernel.loaded.wire, helper, COST, targets.unseen, float(str(config.get("limiter_share", EXACT)))
    )
    targets.exe(Ask("go", source.found, "limiter"))
    ask(cast("Iterable[Mapping[str, object]]", config.get("limiter_functions", ())), source, targets)
    waits = Waits()
    for callback in (COST.feed, source.feed, waits.feed):
        kernel.listen("limiter_decisions", callback)
    return [source, waits]


def _programs(chosen: Mapping[str, Seen]) -> Iterable[Program]:
    """Raises ValueError for a name that two libraries give."""
    libraries = dict[str, str]()
    for library, one in chosen.items():
        loses = {
            name: (function.loses, function.returned) for function in one.functions for name in function.programs()
        }
        for name, (what, returned) in loses.items():
            if name in libraries:
                raise ValueError(f"{library}: {name} is also a program of {libraries[name]}: give it another name")
            libraries[name] = library
            yield Program(name, "uretprobe" if name == returned else "uprobe", loses=what)


def probe(only: Callable[[str], bool] = lambda library: True) -> Probe:
    """The family as ``catalogue.seen`` has its libraries now; of those that ``only`` names."""
    chosen = {name: one for name, one in seen().items() if only(name)}
    return Probe(
        name="limiter",
        programs=tuple(_programs(chosen)),
        rings=(Ring("limiter_decisions", "limiter_decision", decode_decisions),),
        parts=("limiter_decision.h",),
        text="".join(one.text(number) for number, (name, one) in enumerate(seen().items()) if name in chosen),
        maps=("limiter_binaries", "limiter_counts", "limiter_deciding"),
        setup=setup,
    )


PROBE = probe()
