"""Lag of the consumer groups of a Redis server's streams (Redis 5 and later, Valkey).

The server's own counter (`XINFO GROUPS` lag, since 7.0) is not reliable:
  - it is NULL after an XDEL ahead of the group, and for a group that was set to an arbitrary id;
  - after undelivered entries were trimmed it counts removed entries, and stays wrong when the group has read on
    (redis/redis#13957, valkey-io/valkey#1951).
The ids are more reliable: a group at or behind the last entry has no lag, one before the first has XLEN. Only between
these the counter is used, bounded by the length of the stream. Where it may be wrong the row says so, with the reason.

Ages are entry ids (their first part is the server's clock in ms) compared with the server's own TIME, so they do not
depend on this host's clock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Any

import hiredis

from agent.common.clocks import boot_ns
from agent.common.fairness import UpperBound
from agent.common.resp import RedisUrl
from agent.queues.catalogue import Broker, Row
from agent.queues.redis_consumers import MAX_CONSUMERS, Consumers
from agent.queues.redis_info import COMMANDS, errors
from agent.queues.redis_reading import Id, age_s, entry_id, fields, named, shown
from agent.queues.redis_scan import MAX_NAME_BYTES, MAX_STREAMS, Scan, is_pattern
from agent.queues.redis_server import RedisServer

MAX_GROUPS = 256  # the number of groups left out is reported in a row
#: For docs/limits.md.
BOUNDS = (UpperBound("queues", "consumer groups", MAX_GROUPS, "not watched", "`queue_lag.reason`"),)
PENDING_SAMPLE = 100  # pending entries read for redeliveries: ``redelivered`` is a lower bound beyond that


@dataclass
class _Group:
    """One group as of this poll, and what is kept of it between polls."""

    stream: bytes
    name: bytes
    info: dict[str, Any] = field(default_factory=dict)
    counter_wrong: bool = False
    lag: int | None = None
    upper_bound: bool = False
    reason: str = ""
    next_id: Id | None = None
    oldest_pending: Id | None = None
    idle_ms: int | None = None
    redelivered: int = 0
    holder: bytes = b""
    consumers: Consumers = field(default_factory=Consumers)
    idlest: tuple[bytes, float] | None = None


class RedisStreams(RedisServer):
    """One Redis server. ``poll`` returns one row per consumer group, one row for the server if it has none, or ``down``
    rows if it does not answer. It takes two round trips.
    """

    def __init__(self, url: RedisUrl, timeout_s: float = 0.5) -> None:
        super().__init__(f"redis {url.server}", url, timeout_s)
        self._named: list[bytes] = [s.encode() for s in url.streams if not is_pattern(s)]
        patterns = [s for s in url.streams if is_pattern(s)]
        self._scan = Scan(patterns) if patterns or not url.streams else None
        self._groups: dict[tuple[bytes, bytes], _Group] = {}
        self._values, self._own = dict[str, object](), Counter[str]()

    def _poll(self, now_ns: int) -> list[Row]:
        streams = self._named + [
            s for s in (self._scan.step(self._client, now_ns) if self._scan else ()) if s not in self._named
        ]
        states: list[tuple[bytes, dict[str, Any]]] = []
        problem: list[tuple[bytes, str]] = []
        groups_left_out = 0
        seen: dict[tuple[bytes, bytes], _Group] = {}
        replies = self._client.pipeline(
            [(c, sub, s) for s in streams for c, sub in (("XINFO", "STREAM"), ("XINFO", "GROUPS"))]
        )
        self._own = errors(replies)
        for stream, about, groups in zip(streams, replies[::2], replies[1::2], strict=True):
            failed = next((r for r in (about, groups) if isinstance(r, hiredis.ReplyError)), None)
            if failed is not None:
                problem.append((stream, str(failed)))
                continue
            state = fields(about)
            states.append((stream, state))
            if not groups:
                problem.append((stream, "no consumer group"))
            for info in map(fields, groups):
                key = (stream, named(info))
                if len(seen) < MAX_GROUPS and len(key[1]) <= MAX_NAME_BYTES:
                    group = seen[key] = self._groups.get(key) or _Group(*key)
                    group.info = info
                    _count(group, state)
                else:
                    groups_left_out += 1
        self._groups = seen
        if self._scan is not None and not self._scan.whole:
            problem.append((b"", "the keyspace is still being scanned: streams may be missing"))
        for what, limit, beyond in (
            ("streams", MAX_STREAMS, self._scan is not None and self._scan.more),
            ("groups", MAX_GROUPS, groups_left_out),
        ):
            if beyond:
                problem.append(
                    (
                        b"",
                        (
                            f"more than {limit} {what}, or longer names, are not watched: choose with ?streams= in the"
                            " server's URL"
                        ),
                    )
                )
        server_ms, state_of = self._details(), dict(states)
        return [
            *({**self._values, **_row(g, state_of[g.stream], server_ms)} for g in seen.values()),
            *({"destination": shown(stream), "reason": why} for stream, why in problem),
            *(() if seen else ({**self._values, "status": "ok"},)),
        ]

    def _details(self) -> int:
        """Second round trip: oldest entries, consumers, the server itself, and TIME last. Returns the server's time in
        ms.
        """
        commands: list[tuple[bytes | str | int, ...]] = []
        takers: list[tuple[_Group, str]] = []
        for group in self._groups.values():
            if group.next_id is None and group.lag != 0:
                ms, seq = entry_id(group.info["last-delivered-id"])
                commands.append(("XRANGE", group.stream, f"{ms}-{seq + 1}", "+", "COUNT", 1))
                takers.append((group, "next"))
            if group.info["pending"]:
                commands.append(("XPENDING", group.stream, group.name, "-", "+", PENDING_SAMPLE))
                takers.append((group, "pending"))
            if 0 < group.info["consumers"] <= MAX_CONSUMERS:
                commands.append(("XINFO", "CONSUMERS", group.stream, group.name))
                takers.append((group, "consumers"))
        replies = self._client.pipeline([*commands, *COMMANDS, ("TIME",)])
        now_ns = boot_ns()
        self._values = self._server.parse_info(replies[len(commands) : -1], self._own + errors(replies), now_ns)
        for (group, what), reply in zip(takers, replies, strict=False):
            if isinstance(reply, hiredis.ReplyError) or not reply:
                continue
            if what == "next":
                group.next_id = entry_id(reply[0][0])
            elif what == "consumers":
                group.idlest = group.consumers.longest([fields(entry) for entry in reply], now_ns)
            else:
                group.oldest_pending, group.idle_ms = entry_id(reply[0][0]), max(r[2] for r in reply)
                group.redelivered, group.holder = sum(r[3] > 1 for r in reply), reply[0][1]
        clock = replies[-1]
        return 0 if isinstance(clock, hiredis.ReplyError) else int(clock[0]) * 1000 + int(clock[1]) // 1000

    def _interrupted(self) -> list[Row]:
        for group in self._groups.values():
            group.consumers = Consumers()
        return [{"destination": shown(g.stream), "consumer_group": shown(g.name)} for g in self._groups.values()]


def _count(group: _Group, state: dict[str, Any]) -> None:
    """Sets lag, reason and, where the ids give it, the next entry, as the module's docstring describes. Pure."""
    length, raw = int(state["length"]), group.info.get("lag")
    if length >> 63:
        raise ValueError("no length")
    read, added = group.info.get("entries-read"), state.get("entries-added")
    delivered = entry_id(group.info["last-delivered-id"])
    group.upper_bound = False
    group.reason, group.next_id, group.oldest_pending, group.idle_ms, group.redelivered = "", None, None, None, 0
    group.holder, group.idlest = b"", None
    if length == 0 or delivered >= entry_id(state["last-entry"][0]):
        group.lag, group.counter_wrong = 0, bool(raw)
    elif delivered < (first := entry_id(state["first-entry"][0])):
        removed = 0 if raw is None else raw - length
        group.lag, group.next_id, group.counter_wrong = length, first, removed > 0
        if removed > 0:
            group.reason = f"trimmed: {removed} entries were removed undelivered"
    elif raw is None:
        behind = length - 1 if read is None or added is None else min(length - 1, max(1, added - read))
        group.lag, group.upper_bound = behind, True
        if added is None:
            group.reason = "upper bound: servers before Redis 7 do not count"
        elif read is None:
            group.reason = "upper bound: the group was set to an id inside the stream"
        else:
            group.reason = "upper bound: entries were deleted ahead of the group"
    else:
        group.lag = min(max(1, raw), length - 1)
        if group.counter_wrong or group.lag != raw:
            group.reason = "the server's counter is off after a deletion (redis#13957)"


def _row(group: _Group, state: dict[str, Any], server_ms: int) -> Row:
    added, pending = state.get("entries-added"), group.info["pending"]
    read = None if added is None or group.lag is None or group.upper_bound else added - group.lag
    undelivered = 0.0 if group.lag == 0 else age_s(group.next_id, server_ms)
    pending_s = age_s(group.oldest_pending, server_ms)
    return {
        "destination": shown(group.stream),
        "consumer_group": shown(group.name),
        "lag_messages": group.lag,
        "lag_s": undelivered,
        "exact": not group.reason,
        "inexact_reason": group.reason,
        "oldest_undelivered_s": nan if group.lag == 0 else undelivered,
        "oldest_pending_s": group.idle_ms / 1000 if group.idle_ms is not None and isnan(pending_s) else pending_s,
        "pending": pending,
        "redelivered": group.redelivered,
        "holder": shown(group.holder),
        "idle_consumer": None if group.idlest is None else shown(group.idlest[0]),
        "idle_s": None if group.idlest is None else group.idlest[1],
        "consumers": group.info["consumers"],
        "added": added,
        "acked": None if read is None else read - pending,
        "position": group.info["last-delivered-id"],
    }


BROKER = Broker(
    "redis",
    "Redis Streams",
    "consumer groups of streams: lag, age, pending and redelivered entries",
    "redis://[user:password@]host:port/db?streams=orders,mails",
    "no streams: found by itself",
    RedisUrl.parse,
    RedisStreams,
)
