"""Decisions of limiter libraries in unmodified Go programs, as agent/limiters/libraries/ declares them; see bpf/limiter_decision.h."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from agent.batch import Batch
from agent.kernel.probe import Probe, Program, Ring
from agent.limiters.catalogue import seen
from agent.probes.beside.go_decisions import decided

if TYPE_CHECKING:
    from agent.contracts import Source
    from agent.kernel.load import Family
    from agent.kernel.source import KernelSource
    from agent.targets.attacher import Attacher
    from agent.targets.targets import Targets

#: Uprobe hits a second and binary above which a binary is watched for one second in some only. A hit takes some 15 us.
MAX_HITS_PER_S = 20_000


def decode_decisions(records: np.ndarray) -> Iterable[Batch]:
    """Records of ``struct limiter_decision`` -> limiter_decision rows, in the same order; without those that beside/go_waits.py decodes."""
    at_once = records[(records["asleep"] | records["woke"]) == 0]
    return [Batch("limiter_decision", decided(at_once))] if len(at_once) else []


def setup(
    family: Family, kernel: KernelSource, helper: Attacher, targets: Targets, config: Mapping[str, object]
) -> Iterable[Source]:
    """Attaches to every Go binary with a library that ``targets`` finds. config: ``limiter_max_hits_per_s``."""
    from agent.probes.beside.go_waits import Waits
    from agent.probes.beside.golimiter import GoLimiters
    from agent.targets.asked import Ask

    budget = int(str(config.get("limiter_max_hits_per_s", MAX_HITS_PER_S)))
    source = GoLimiters(family, kernel.loaded.wire, helper, budget, targets.unseen)
    targets.exe(Ask("go", source.found, "limiter"))
    waits = Waits()
    kernel.listen("limiter_decisions", waits.feed)
    return [source, waits]


def _programs() -> Iterable[Program]:
    for one in seen().values():
        for function in one.functions:
            yield from (Program(name, "uprobe", loses=function.loses) for name in (function.entry, function.end))


def _options() -> dict[str, int]:
    """Where arguments, results and fields are, and each library's number. Raises ValueError for a name that two libraries give."""
    out = dict[str, int]()
    for number, (library, one) in enumerate(seen().items()):
        own = one.options() | {f"{one.stem}_LIBRARY".upper(): number}
        if twice := out.keys() & own.keys():
            raise ValueError(
                f"{library}: {', '.join(sorted(twice))} is another library's: give its programs and its file names of their own"
            )
        out |= own
    return out


PROBE = Probe(
    name="limiter",
    programs=tuple(_programs()),
    rings=(Ring("limiter_decisions", "limiter_decision", decode_decisions),),
    options=_options(),
    parts=("limiter_decision.h", *(one.source for one in seen().values() if one.source != "limiter.bpf.c")),
    maps=("limiter_binaries", "limiter_counts"),
    setup=setup,
)
