"""The sources of the limiter family, which its kinds share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent.instruments.limiters.limiter_sampling import HITS_PER_S
from agent.instruments.limiters.limiter_source import GoLimiters
from agent.instruments.limiters.limiter_waits import Waits
from agent.instruments.limiters.named import Named
from agent.instruments.limiters.sites import Sites
from agent.limiters.naming import Names

if TYPE_CHECKING:
    from agent.contracts import Source
    from agent.instruments.kind import KindContext


def limiters(context: KindContext) -> tuple[GoLimiters, list[Source]]:
    """(what opens instances, sources), made once. Settings: ``limiter_names``; ``limiter_hits_per_s`` (tests set it),
    above which a program is sampled.
    """
    if "limiters" not in context.shared:
        family, kernel, targets, config = context.family, context.kernel, context.targets, context.config
        given = config.get("limiter_names", {})
        names = Names(given if isinstance(given, Mapping) else {})
        wire, most = kernel.loaded.wire, int(str(config.get("limiter_hits_per_s", HITS_PER_S)))
        source = GoLimiters(family, wire, context.helper, targets.unseen, most)
        sites = Sites(family, wire, targets.analyst, source.binaries, names)
        source.called, source.known = sites.called, sites.known
        waits = Waits(sites.called)
        named = Named(sites, waits)
        kernel.listen("limiter_stacks", sites.feed)
        for callback in (source.feed, named.feed):
            kernel.listen("limiter_decisions", callback)
        context.shared["limiters"] = source, [source, sites, named, waits]
    source, sources = context.shared["limiters"]
    return source, sources
