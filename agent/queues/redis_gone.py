"""Consumer groups that were deleted, with their stream or alone. Their clients get NOGROUP until somebody makes the
group again, and the server no longer reports their lag.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.queues.catalogue import Row
from agent.queues.redis_reading import shown

MAX_GONE = 64  # the oldest are forgotten
_SHOWN_NS = 60_000_000_000  # after the deletion, or the last NOGROUP reply to a client

Key = tuple[bytes, bytes]  #: stream, group


@dataclass
class _Deleted:
    why: str
    at_ns: int
    seen_ns: int  # of the last sign that somebody misses it


class Gone:
    """The deleted groups of one server. named: streams of the settings, whose groups are shown until they are back."""

    def __init__(self, named: list[bytes]) -> None:
        self.named = frozenset(named)
        self._groups: dict[Key, _Deleted] = {}

    @property
    def streams(self) -> list[bytes]:
        return list(dict.fromkeys(stream for stream, _ in self._groups))

    def add(self, key: Key, why: str, now_ns: int) -> None:
        self._groups.setdefault(key, _Deleted(why, now_ns, now_ns))
        while len(self._groups) > MAX_GONE:
            del self._groups[next(iter(self._groups))]

    def explain(self, how: str, now_ns: int) -> None:
        """What was found missing at this poll was so since another server, or other data, answer."""
        for deleted in self._groups.values():
            if how and deleted.at_ns == now_ns:
                deleted.why = how + deleted.why.replace("was deleted", "is missing")

    def back(self, key: Key) -> None:
        self._groups.pop(key, None)

    def rows(self, refused: int, now_ns: int) -> list[Row]:
        """One row each. refused: NOGROUP replies to the server's clients since the previous poll."""
        out: list[Row] = []
        for key, deleted in list(self._groups.items()):
            if refused:
                deleted.seen_ns = now_ns
            if key[0] not in self.named and now_ns - deleted.seen_ns > _SHOWN_NS:
                del self._groups[key]
                continue
            ago = f"{(now_ns - deleted.at_ns) / 1e9:.0f} s ago"
            clients = f"; the server's clients got NOGROUP {refused} times" if refused else ""
            why = f"{deleted.why}; {ago}{clients}"
            out.append({"destination": shown(key[0]), "consumer_group": shown(key[1]), "status": "gone", "reason": why})
        return out
