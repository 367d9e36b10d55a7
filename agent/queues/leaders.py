"""Which server of a cluster has a queue now. The servers are polled on threads of their own, and any of them may become
the leader of a queue: the others then say nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable

Key = tuple[bytes, ...]
#: For how long a server that had a queue counts as its leader.
_LEADS_NS = 3_000_000_000


class Leaders:
    """Shared by the sources of all servers of one kind. server: the source. A cluster without a name is none."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, Key], tuple[object, int]] = {}

    def lead(self, cluster: str | None, keys: Iterable[Key], server: object, now_ns: int) -> None:
        """Notes what a server has."""
        if cluster:
            for key in keys:
                self._last[cluster, key] = server, now_ns

    def elsewhere(self, cluster: str | None, key: Key, server: object, now_ns: int) -> bool:
        """Whether another server of the cluster has it."""
        last, at_ns = self._last.get((cluster or "", key), (server, 0))
        return last is not server and now_ns - at_ns < _LEADS_NS

    def forget(self, cluster: str | None, key: Key) -> None:
        self._last.pop((cluster or "", key), None)
