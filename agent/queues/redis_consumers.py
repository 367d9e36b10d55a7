"""The consumer of a group that has been idle for longest, among those that recently worked. A consumer that has left
does not count.
"""

from __future__ import annotations

from typing import Any

MAX_CONSUMERS = 64  # of a group; larger groups are not queried
MAX_NAME_BYTES = 256
_WORKS_NS = 60_000_000_000  # a consumer counts as working for this long after its last request


class Consumers:
    """The consumers of one group, from poll to poll. A server before 7.2 counts a consumer's idle time since its last
    delivery, later ones since its last request.
    """

    def __init__(self) -> None:
        self._active_ns: dict[bytes, int] = {}  # when it was last seen with a request since the previous poll
        self._t_ns = 0

    def longest(self, entries: list[dict[str, Any]], t_ns: int) -> tuple[bytes, float] | None:
        """(name, seconds). entries: of ``XINFO CONSUMERS``. Raises KeyError or TypeError if an entry is malformed."""
        since_ms = (t_ns - self._t_ns) / 1e6
        idle = {e["name"]: int(e["idle"]) for e in entries[:MAX_CONSUMERS] if len(e["name"]) <= MAX_NAME_BYTES}
        if self._t_ns:
            self._active_ns |= {name: t_ns for name, ms in idle.items() if ms < since_ms}
        self._active_ns = {n: at for n, at in self._active_ns.items() if n in idle and t_ns - at < _WORKS_NS}
        self._t_ns = t_ns
        if not self._active_ns:
            return None
        name = max(self._active_ns, key=lambda n: (idle[n], n))
        return name, idle[name] / 1000
