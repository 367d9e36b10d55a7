"""Scripts and functions that may be somebody's limiter, of which nothing says so: their text was not seen, and their
keys have no such name. Pure.
"""

from __future__ import annotations

from collections import OrderedDict

from agent.common.printable import printable
from agent.limiters.script import RedisCall

_KEPT, _LISTED = 64, 3


class UnknownScripts:
    """The last ones, each with how often it was asked, and how the key of its first call began."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._keys: dict[str, str] = {}

    def note(self, call: RedisCall, prefix: bytes) -> None:
        """Of one whose answer may be a limiter's yes or no."""
        first = call.reply[0] if isinstance(call.reply, list) and call.reply else call.reply
        if (
            not call.script
            or not call.keys
            or not (first is None or (isinstance(first, (bool, int)) and first in (-1, 0, 1)))
        ):
            return
        self._keys.setdefault(call.script, printable(prefix))
        self._counts[call.script] = self._counts.get(call.script, 0) + 1
        self._counts.move_to_end(call.script)
        if len(self._counts) > _KEPT:
            self._keys.pop(self._counts.popitem(last=False)[0])

    def rows(self) -> list[dict[str, object]]:
        """For ``status``, those that were asked most first."""
        most = sorted(self._counts.items(), key=lambda one: -one[1])
        return [{"script": printable(script), "asked": n, "keys": self._keys[script]} for script, n in most]

    def text(self) -> str:
        """Nothing where there are none."""
        named = [f"{one['script']} (keys {one['keys'] or 'without a prefix'})" for one in self.rows()[:_LISTED]]
        others = " and others" if len(self._counts) > _LISTED else ""
        what = "whose text was not seen: those that are limiters are to be declared (redis_limiter_scripts)"
        return f"scripts were asked {what}: {', '.join(named)}{others}" if named else ""
