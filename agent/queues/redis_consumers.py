"""The consumers of a group: who has been idle for longest, among those that recently worked; and who holds entries and
asks for nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from agent.columns import fitted
from agent.common.fairness import UpperBound
from agent.queues.listing import listed

MAX_CONSUMERS = 1024  # of a group; larger groups are not queried
MAX_AT_ONCE = 4096  # of all groups in one poll; the next poll queries the others
MAX_NAME_BYTES = 256
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "queues", "consumers of a Redis group", MAX_CONSUMERS, "its consumers are not queried", "null in `idle_s`"
    ),
)
_WORKS_NS = 60_000_000_000  # a consumer counts as working for this long after its last request
IDLE_MS = 60_000  # one that holds entries, without a request for so long
_SHOWN_BYTES = 32  # of a name in a list
_MOST = 1 << 48


class Held(NamedTuple):
    """Pending entries of consumers that have been idle for IDLE_MS; their names with the numbers, most first."""

    entries: int
    names: bytes


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
        idle = {fitted(e["name"], MAX_NAME_BYTES): int(e["idle"]) for e in entries[:MAX_CONSUMERS]}
        if self._t_ns:
            self._active_ns |= {name: t_ns for name, ms in idle.items() if ms < since_ms}
        self._active_ns = {n: at for n, at in self._active_ns.items() if n in idle and t_ns - at < _WORKS_NS}
        self._t_ns = t_ns
        if not self._active_ns:
            return None
        name = max(self._active_ns, key=lambda n: (idle[n], n))
        return name, idle[name] / 1000


def held(entries: list[dict[str, Any]]) -> Held:
    """What idle consumers hold. Raises as ``Consumers.longest``."""
    idle = [
        (min(int(e["pending"]), _MOST), e["name"])
        for e in entries[:MAX_CONSUMERS]
        if e["pending"] and int(e["idle"]) >= IDLE_MS
    ]
    some = sorted(idle, key=lambda one: (-one[0], one[1]))
    names = (f"{fitted(name, _SHOWN_BYTES).decode('utf-8', 'replace')} {n}" for n, name in some)
    return Held(sum(n for n, _ in some), listed(names, "idle_holders"))
