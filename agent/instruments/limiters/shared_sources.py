"""The sources of the limiter family, shared by its kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.instruments.limiters.limiter_source import GoLimiters
from agent.instruments.limiters.limiter_waits import Waits
from agent.instruments.limiters.named import Named
from agent.instruments.limiters.sites import Sites
from agent.limiters.naming import Names

if TYPE_CHECKING:
    from agent.contracts import Source
    from agent.instruments.kind import KindContext
    from agent.limiters.settings import LimiterSettings


def limiters(context: KindContext) -> tuple[GoLimiters, list[Source]]:
    """(the opener of instances, sources), created once."""
    if "limiters" not in context.shared:
        family, kernel, targets, wire = context.family, context.kernel, context.targets, context.kernel.loaded.wire
        settings: LimiterSettings = context.settings
        names = Names(settings.limiter_names)
        source = GoLimiters(family, wire, context.helper, targets.unprobed_programs, settings.hits_per_s)
        sites = Sites(family, wire, targets.analyzers, source.binaries, names)
        source.called, source.known = sites.called, sites.known
        waits = Waits(sites.called)
        named = Named(sites, waits)
        kernel.subscribe("limiter_stacks", sites.feed)
        for take in (source.feed, named.feed):  # rows are made once their limiters' names are known
            kernel.subscribe("limiter_decisions", take)
        context.shared["limiters"] = source, [source, sites, named, waits]
    source, sources = context.shared["limiters"]
    return source, sources
