"""Whether limiters in Redis are read from the wire now, and why or why not; and what new settings change of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from agent.contracts import Stating

if TYPE_CHECKING:
    from agent.config import Config
    from agent.contracts import Source
    from agent.kernel.load import Loaded

_NAME, _TLS = "redis_limiters", "redis_tls"


def state(sources: Iterable[Source], loaded: Loaded, config: Config) -> dict[str, Any]:
    """For ``status``. config: as it was at the start. ``tls``: who is read that may ask by TLS, and who not; null
    without ``redis_tls``.
    """
    return {**_plain(sources, loaded, config), "tls": _of(sources, _TLS)}


def _of(sources: Iterable[Source], name: str) -> dict[str, Any] | None:
    found = (s for s in sources if isinstance(s, Stating) and getattr(s, "name", "") == name)
    return next((dict(source.state()) for source in found), None)


def _plain(sources: Iterable[Source], loaded: Loaded, config: Config) -> dict[str, Any]:
    if (found := _of(sources, _NAME)) is not None:
        return found
    family = loaded.families.get("redis")
    if config.redis_limiters == "off":
        why = "redis_limiters was off when tickscope started: on or auto needs a restart"
    else:
        why = (family.reason if family is not None else "") or "the redis family is left out"
    return {"state": "off", "why": why, "mode": config.redis_limiters, "attached": False}


def appliers(sources: Iterable[Source]) -> dict[str, Callable[[Config], None]]:
    """Of the settings that can change; none where nothing was loaded at the start."""
    uses = {getattr(source, "name", ""): getattr(source, "use", None) for source in sources}
    wire, both = uses.get(_NAME), [use for name in (_NAME, _TLS) if (use := uses.get(name)) is not None]
    if wire is None:
        return {}

    def switch(config: Config) -> None:
        for use in both:
            use(config)

    return {"redis_limiters": switch, "redis_ports": wire, "redis_decisions_per_s": wire}
