"""Which server of a cluster has a queue now. The servers are polled on threads of their own, and any of them may become
the leader of a queue: the others then say nothing of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

Key = tuple[bytes, ...]
#: For how long a server that had a queue counts as its leader.
_LEADS_NS = 3_000_000_000


class Leaders:
    """Shared by the sources of all servers of one kind. server: the source. A cluster without a name is none."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, Key], tuple[object, int]] = {}  # the oldest first
        self._lock = threading.Lock()

    def lead(self, cluster: str | None, keys: Iterable[Key], server: object, now_ns: int) -> None:
        """Notes what a server has. What no server has had for long is forgotten: names come from servers."""
        if not cluster:
            return
        with self._lock:
            for key in keys:
                self._last.pop((cluster, key), None)
                self._last[cluster, key] = server, now_ns
            while self._last and now_ns - next(iter(self._last.values()))[1] >= _LEADS_NS:
                del self._last[next(iter(self._last))]

    def elsewhere(self, cluster: str | None, key: Key, server: object, now_ns: int) -> bool:
        """Whether another server of the cluster has it."""
        last, at_ns = self._last.get((cluster or "", key), (server, 0))
        return last is not server and now_ns - at_ns < _LEADS_NS

    def forget(self, cluster: str | None, key: Key) -> None:
        with self._lock:
            self._last.pop((cluster or "", key), None)
