"""Scripts and functions that may be limiters, without evidence: their text was not seen, and their keys have no such
name. Pure.
"""

from __future__ import annotations

from collections import OrderedDict

from agent.common.printable import printable
from agent.limiters.script import RedisCall

_KEPT, _LISTED = 64, 3


class UnknownScripts:
    """The last ones, each with its number of calls, and the beginning of the first call's key."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._keys: dict[str, str] = {}

    def note(self, call: RedisCall, prefix: bytes) -> None:
        """Notes a script whose reply may be a limiter's."""
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
        """For ``status``, the most called first."""
        most = sorted(self._counts.items(), key=lambda one: -one[1])
        return [{"script": printable(script), "asked": n, "keys": self._keys[script]} for script, n in most]

    def text(self) -> str:
        """Empty if there are none."""
        named = [f"{one['script']} (keys {one['keys'] or 'without a prefix'})" for one in self.rows()[:_LISTED]]
        others = " and others" if len(self._counts) > _LISTED else ""
        what = "whose text was not seen: those that are limiters are to be declared (redis_limiter_scripts)"
        return f"scripts were asked {what}: {', '.join(named)}{others}" if named else ""
