"""Keys of a Redis server with an expiry that the settings declare: locks, leases, deduplication windows, others.

Their expiry is a time of the server's wall clock (agent/queues/timers.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import hiredis

from agent.common.fairness import UpperBound
from agent.common.resp import EXPIRING, RedisDown
from agent.queues.patterns import is_pattern
from agent.queues.redis_scan import MAX_STREAMS, Asked, Scan
from agent.queues.timers import QueueTimer

#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "queues",
        "Redis keys of a declared pattern",
        MAX_STREAMS,
        "timers of the others are not known",
        "`timer_effect.consequence`",
        setting="a narrower pattern",
    ),
)
_NO_KEY, _NO_EXPIRY = -2, -1  # PEXPIRETIME's replies
_MOVING = ("MOVED ", "ASK ")
_NS_PER_MS = 1_000_000


class ExpiringKeys:
    """declared: (option of the URL, key or pattern of keys). named: the keys among them that this server of a Redis
    Cluster has; None: all.
    """

    def __init__(self, declared: Sequence[tuple[str, str]]) -> None:
        self._declared = [
            (EXPIRING[option], name, Scan([], ("MATCH", name), option) if is_pattern(name) else None)
            for option, name in declared
        ]
        self.named: Collection[str] | None = None
        self.moved = False  # a named key is of another server of the cluster

    def timers(self, client: Asked, now_ns: int) -> list[QueueTimer]:
        """Those that exist now. Needs Redis 7. Raises RedisDown."""
        found: list[QueueTimer] = []
        self.moved = False
        for kind, name, scan in self._declared:
            keys, why = [name.encode()], ""
            if scan is None and self.named is not None and name not in self.named:
                continue
            if scan is not None:
                try:
                    keys = scan.step(client, now_ns)
                except RedisDown as error:
                    if error.failure != "permission":
                        raise
                    keys, why = [], str(error)
                why = why or (f"the first {MAX_STREAMS} keys are read" if scan.more else "")
                why = why or ("" if scan.whole else "the keyspace is still being scanned")
            found += self._due(client, kind, name.encode(), keys)
            if why:
                found.append(QueueTimer(name.encode(), b"", kind, unknown=why))
        return found

    def _due(self, client: Asked, kind: str, name: bytes, keys: Sequence[bytes]) -> list[QueueTimer]:
        replies = client.pipeline([("PEXPIRETIME", key) for key in keys]) if keys else []
        failed = [reply for reply in replies if isinstance(reply, hiredis.ReplyError)]
        moving = [reply for reply in failed if str(reply).startswith(_MOVING)] if self.named is not None else []
        self.moved |= bool(moving)
        if len(failed) > len(moving):
            why = next(str(reply) for reply in failed if reply not in moving)
            return [QueueTimer(name, b"", kind, unknown=why, timers=len(keys))]
        found = [
            QueueTimer(name, key, kind, due_wall_ns=int(reply) * _NS_PER_MS)
            for key, reply in zip(keys, replies, strict=True)
            if reply not in moving and reply not in (_NO_KEY, _NO_EXPIRY)
        ]
        if moving:
            why = "on its way to another server of the cluster"
            found.append(QueueTimer(name, b"", kind, unknown=why, timers=len(moving)))
        return found
