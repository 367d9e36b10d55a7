"""Known limiters in Redis: what stands in ``scripts/``, and those of the settings, which come first."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules

from agent.limiters import scripts
from agent.limiters.script import SCRIPT_COMMANDS, RedisCall, RedisLimiter


def known() -> tuple[RedisLimiter, ...]:
    found: list[RedisLimiter] = []
    for info in iter_modules(scripts.__path__):
        found += import_module(f"{scripts.__name__}.{info.name}").LIMITERS
    return tuple(found)


class Limiters:
    """Finds which one a call is of. own: of the settings."""

    def __init__(self, own: Iterable[RedisLimiter] = ()) -> None:
        self.all = (*own, *known())

    def commands(self) -> set[str]:
        """All that may be a decision by itself."""
        return {command for one in self.all for command in one.commands} | set(SCRIPT_COMMANDS)

    def find(self, call: RedisCall, text: bytes | None) -> tuple[RedisLimiter, RedisCall] | None:
        """text: the script's, where it was seen."""
        for one in self.all:
            if (matched := one.matching(call, text)) is not None:
                return one, matched
        return None

    def owns(self, call: RedisCall) -> bool:
        """Whether the keys are a known library's, so that another script than those that decide is no limiter of
        anybody else's.
        """
        return any(one.own_keys and one.has_keys(call) for one in self.all)
