"""Known limiters in Redis: the files in ``scripts/``, and those of the settings, which take precedence."""

from __future__ import annotations

from collections.abc import Iterable

from agent.common.declared import all_declared
from agent.limiters import scripts
from agent.limiters.script import SCRIPT_COMMANDS, RedisCall, RedisLimiter


def known() -> tuple[RedisLimiter, ...]:
    return tuple(all_declared(scripts, "LIMITERS", RedisLimiter))


class Limiters:
    """Finds the limiter of a call. own: of the settings."""

    def __init__(self, own: Iterable[RedisLimiter] = ()) -> None:
        self.all = (*own, *known())

    def commands(self) -> set[str]:
        """All commands that may be a decision by themselves."""
        return {command for one in self.all for command in one.commands} | set(SCRIPT_COMMANDS)

    def find(self, call: RedisCall, text: bytes | None) -> tuple[RedisLimiter, RedisCall] | None:
        """text: the script's, if it was seen."""
        for one in self.all:
            if (matched := one.matching(call, text)) is not None:
                return one, matched
        return None

    def owns(self, call: RedisCall) -> bool:
        """Whether the keys belong to a known library, so that its other scripts are not taken for a limiter."""
        return any(one.own_keys and one.has_keys(call) for one in self.all)
