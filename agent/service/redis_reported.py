"""Whether limiters in Redis are read from the wire now, and why or why not; and what new settings change of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from agent.config import Applier, redis_limiters
from agent.contracts import Stating

if TYPE_CHECKING:
    from agent.contracts import Source
    from agent.kernel.loaded_families import Loaded

_NAME = "redis_limiters"
#: What can change while the agent runs.
SETTINGS = ("redis_limiters", "redis_ports", "redis_decisions_per_s")


def state(sources: Iterable[Source], loaded: Loaded, mode: str) -> dict[str, Any]:
    """For ``status``. mode: ``redis_limiters`` at the start."""
    for source in sources:
        if isinstance(source, Stating) and getattr(source, "name", "") == _NAME:
            return dict(source.state())
    family = loaded.families.get("redis")
    if mode == "off":
        why = "redis_limiters was off when tickscope started: on or auto needs a restart"
    else:
        why = (family.reason if family is not None else "") or "the redis family is left out"
    return {"state": "off", "why": why, "mode": mode, "attached": False}


def appliers(sources: Iterable[Source]) -> dict[str, Applier]:
    """Of the settings that can change; none where nothing was loaded at the start."""
    uses = {getattr(source, "name", ""): getattr(source, "use", None) for source in sources}
    use = uses.get(_NAME)
    if use is None:
        return {}
    return dict.fromkeys(
        SETTINGS, Applier(lambda redis, queues: use(redis_limiters(redis, queues)), ("redis", "queues"))
    )
