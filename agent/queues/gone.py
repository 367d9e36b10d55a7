"""Queues and consumer groups that were deleted, with their stream or topic, or alone. Their server no longer reports
their lag.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agent.columns import fitted
from agent.queues.queue import Row
from agent.tables import TABLES

MAX_GONE = 64  # the oldest are forgotten
_SHOWN_NS = 60_000_000_000  # after the deletion, or the last sign that a client misses the group

Key = tuple[bytes, ...]  #: stream or topic, group, and partition if it has any
_COLUMNS = ("destination", "consumer_group", "partition")
_WIDTHS = {name: TABLES["queue_lag"].by_name[name].width for name in _COLUMNS}


@dataclass
class _Deleted:
    why: str
    at_ns: int
    seen_ns: int  # of the last sign that somebody misses it


class Gone:
    """Deleted groups of one server. named: streams or groups of the settings, which are shown until they are back."""

    def __init__(self, named: Iterable[bytes]) -> None:
        self.named = frozenset(named)
        self._groups: dict[Key, _Deleted] = {}

    @property
    def streams(self) -> list[bytes]:
        return list(dict.fromkeys(key[0] for key in self._groups))

    def __iter__(self) -> Iterator[Key]:
        return iter(self._groups)

    def __contains__(self, key: object) -> bool:
        return key in self._groups

    def add(self, key: Key, why: str, now_ns: int) -> None:
        self._groups.setdefault(key, _Deleted(why, now_ns, now_ns))
        while len(self._groups) > MAX_GONE:
            del self._groups[next(iter(self._groups))]

    def explain(self, how: str, now_ns: int) -> None:
        """What was found missing at this poll was so since another server, or other data, answer."""
        for deleted in self._groups.values():
            if how and deleted.at_ns == now_ns:
                deleted.why = how + deleted.why.removesuffix(" or renamed").replace("was deleted", "is missing")

    def back(self, key: Key) -> None:
        self._groups.pop(key, None)

    def rows(self, now_ns: int, missed: str = "") -> list[Row]:
        """One row each. missed: how the server's clients missed a group since the previous poll."""
        out: list[Row] = []
        for key, deleted in list(self._groups.items()):
            if missed:
                deleted.seen_ns = now_ns
            if self.named.isdisjoint(key[:2]) and now_ns - deleted.seen_ns > _SHOWN_NS:
                del self._groups[key]
                continue
            ago = f"{(now_ns - deleted.at_ns) / 1e9:.0f} s ago"
            why = "; ".join(filter(None, (deleted.why, ago, missed)))
            names = {column: fitted(name, _WIDTHS[column]) for column, name in zip(_COLUMNS, key, strict=False)}
            out.append({**names, "status": "gone", "reason": why})
        return out
