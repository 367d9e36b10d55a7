"""What a Redis server reports about itself at each poll: role, limits, and the errors with which it refuses service to
others.

``INFO`` takes some 20 us per section. Values that a version does not report, or that we may not read, are unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import hiredis

from agent.queues.redis_rewound import Replication

Values = dict[str, object]

#: Error replies that mean that the server does not serve, as opposed to a client's mistake. NOGROUP: the consumer
#: group, or its stream, was deleted.
REFUSING = frozenset(
    [
        "OOM",
        "READONLY",
        "MISCONF",
        "LOADING",
        "MASTERDOWN",
        "CLUSTERDOWN",
        "NOREPLICAS",
        "NOAUTH",
        "WRONGPASS",
        "NOPERM",
        "BUSY",
        "NOGROUP",
    ]
)
COMMANDS = tuple(("INFO", section) for section in ("server", "clients", "memory", "stats", "replication", "errorstats"))
_MAX_BYTES, _MAX_LINES = 65536, 512
_MOST = (1 << 63) - 1
_MAX_ID = 64  # characters


class Counters:
    """Keeps one server's counters from poll to poll."""

    def __init__(self) -> None:
        self._errors: dict[str, int] | None = None
        self._t_ns = 0
        self.refused: dict[str, int] = {}  #: kinds and counts since the previous poll
        self.replication: Replication | None = None  #: as of the last poll
        self.version = ""  #: of the server; ``valkey 8.1.1`` of Valkey; empty: not known

    def forget(self) -> None:
        """Forgets the counters, since another server may answer after an outage."""
        self._errors, self.refused = None, {}

    def parse_info(self, replies: Iterable[object], own: Counter[str], t_ns: int) -> Values:
        """Columns of ``queue_lag``, from the replies to ``COMMANDS``. own: kinds of the errors that this poll itself
        caused.
        """
        info: dict[str, str] = {}
        for reply in replies:
            info.update(_lines(reply))
        limit = _number(info.get("maxmemory"))
        self.replication, self.version = _replication(info), _version(info)
        return {
            "server_role": _role(info),
            "memory_bytes": _number(info.get("used_memory")),
            "memory_limit_bytes": limit or None,
            "clients": _number(info.get("connected_clients")),
            "clients_limit": _number(info.get("maxclients")),
            "clients_refused": _number(info.get("rejected_connections")),
            **self._refused(info, own, t_ns),
        }

    def _refused(self, info: dict[str, str], own: Counter[str], t_ns: int) -> Values:
        self.refused = {}
        if "total_error_replies" not in info:  # before Redis 6.2
            return {}
        now = {
            kind: count
            for key, value in info.items()
            if (kind := key.removeprefix("errorstat_")) in REFUSING and kind != key
            if (count := _number(value.removeprefix("count="))) is not None
        }
        before, self._errors = self._errors, now
        since_ns, self._t_ns = t_ns - self._t_ns, t_ns
        if before is None or since_ns <= 0:
            return {}
        more = {kind: count - before.get(kind, 0) - own[kind] for kind, count in now.items()}
        self.refused = more = {kind: n for kind, n in more.items() if n > 0}
        words = ", ".join(f"{kind} {n}" for kind, n in sorted(more.items(), key=lambda e: (-e[1], e[0])))
        return {"errors_per_s": sum(more.values()) * 1e9 / since_ns, "errors": words}


def replication_of(reply: object) -> Replication | None:
    """From the reply to ``INFO replication``; None if it was refused."""
    return _replication(dict(_lines(reply)))


def _lines(reply: object) -> Iterator[tuple[str, str]]:
    if isinstance(reply, bytes) and len(reply) <= _MAX_BYTES:
        for line in reply.decode("utf-8", "replace").split("\r\n")[:_MAX_LINES]:
            key, colon, value = line.partition(":")
            if colon:
                yield key, value


def errors(replies: Iterable[object]) -> Counter[str]:
    """The kinds of the error replies among them."""
    return Counter(str(reply).partition(" ")[0] for reply in replies if isinstance(reply, hiredis.ReplyError))


def _version(info: dict[str, str]) -> str:
    valkey = info.get("valkey_version")
    return (f"valkey {valkey}" if valkey else info.get("redis_version", ""))[:_MAX_ID]


def _role(info: dict[str, str]) -> str | None:
    if info.get("role") == "slave":
        return "replica" if info.get("master_link_status") == "up" else "cut off"
    return "primary" if info.get("role") == "master" else None


def _replication(info: dict[str, str]) -> Replication | None:
    history, offset = info.get("master_replid", ""), _number(info.get("master_repl_offset"))
    if not history or len(history) > _MAX_ID or offset is None:
        return None
    own_from = _number(info.get("second_repl_offset"))
    return Replication(history, offset, info.get("master_replid2", "")[:_MAX_ID], -1 if own_from is None else own_from)


def _number(text: str | None) -> int | None:
    return min(int(text), _MOST) if text is not None and text.isascii() and text.isdigit() and len(text) < 20 else None
