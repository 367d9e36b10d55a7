"""Scripts and functions that may be limiters, without evidence: their text was not seen, and their keys have no such
name. Pure.
"""

from __future__ import annotations

from agent.common.printable import printable
from agent.common.recent import Recent
from agent.limiters.script import RedisCall

_KEPT, _LISTED = 64, 3


class UnknownScripts:
    """The last ones, each with its number of calls, and the beginning of the first call's key."""

    def __init__(self) -> None:
        self._known = Recent[str, tuple[int, str]](_KEPT)

    def note(self, call: RedisCall, prefix: bytes) -> None:
        """Notes a script whose reply may be a limiter's."""
        first = call.reply[0] if isinstance(call.reply, list) and call.reply else call.reply
        if (
            not call.script
            or not call.keys
            or not (first is None or (isinstance(first, (bool, int)) and first in (-1, 0, 1)))
        ):
            return
        times, keys = self._known.get(call.script, (0, printable(prefix)))
        self._known[call.script] = times + 1, keys

    def rows(self) -> list[dict[str, object]]:
        """For ``status``, the most called first."""
        most = sorted(self._known.items(), key=lambda one: -one[1][0])
        return [{"script": printable(script), "asked": n, "keys": keys} for script, (n, keys) in most]

    def text(self) -> str:
        """Empty if there are none."""
        named = [f"{one['script']} (keys {one['keys'] or 'without a prefix'})" for one in self.rows()[:_LISTED]]
        others = " and others" if len(self._known) > _LISTED else ""
        what = "whose text was not seen: those that are limiters are to be declared (redis_limiter_scripts)"
        return f"scripts were asked {what}: {', '.join(named)}{others}" if named else ""
