"""Decisions of limiter libraries in unmodified Go programs, as agent/limiters/libraries/ declares them; see
bpf/limiter_decision.h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from agent.kernel.probe import Parts, Probe, Program, Ring
from agent.limiters.catalogue import seen
from agent.limiters.library import Seen
from agent.limiters.settings import LimiterSettings

if TYPE_CHECKING:
    from agent.contracts import Source
    from agent.kernel.load import Family
    from agent.kernel.source import KernelSource
    from agent.targets.attacher import Attacher
    from agent.targets.targets import Targets


def setup(family: Family, kernel: KernelSource, helper: Attacher, targets: Targets, parts: Parts) -> Iterable[Source]:
    """Attaches to every Go binary with a library that ``targets`` finds. parts: ``settings`` (LimiterSettings)."""
    from agent.limiters.naming import Names
    from agent.probes.beside.declared_functions import ask, declares
    from agent.probes.beside.go_named import Named
    from agent.probes.beside.go_sites import Sites
    from agent.probes.beside.go_unseen import in_library
    from agent.probes.beside.go_waits import Waits
    from agent.probes.beside.golimiter import GoLimiters
    from agent.targets.asked import Ask

    settings: LimiterSettings = parts.settings
    names = Names(settings.limiter_names)
    source = GoLimiters(family, kernel.loaded.wire, helper, targets.unseen, settings.hits_per_s)
    targets.exe(Ask("go", source.found, "limiter"))
    ask(settings.limiter_functions, source, targets)
    tell = partial(in_library, targets.unseen)
    targets.files.beside_go.append(Ask("go", tell, "limiter", wanted=lambda path: not declares(targets, path)))
    sites = Sites(family, kernel.loaded.wire, targets.analyst, source.binaries, names)
    source.called, source.known = sites.called, sites.known
    waits = Waits(sites.called)
    named = Named(sites, waits)
    kernel.subscribe("limiter_stacks", sites.feed)
    for take in (source.feed, named.feed):  # rows are made once it is known what their limiters are called
        kernel.subscribe("limiter_decisions", take)
    return [source, sites, named, waits]


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
        rings=(
            Ring("limiter_stacks", "limiter_stack"),
            Ring("limiter_decisions", "limiter_decision"),
        ),
        parts=("limiter_decision.h", "limiter_stack.h"),
        text="".join(one.text(number) for number, (name, one) in enumerate(seen().items()) if name in chosen),
        maps=("limiter_binaries", "limiter_counts", "limiter_deciding", "limiter_secret"),
        setup=setup,
        settings=LimiterSettings,
    )


PROBE = probe()
