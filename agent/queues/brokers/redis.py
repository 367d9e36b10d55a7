"""Lag of the consumer groups of a Redis server's streams (Redis 5 and later, Valkey).

What the server counts itself (`XINFO GROUPS` lag, since 7.0) is not taken on trust:
  - it is NULL after an XDEL ahead of the group, and for a group that was set to an arbitrary id;
  - after a trimming of undelivered entries it counts what is gone, and stays wrong when the group has read on
    (redis/redis#13957, valkey-io/valkey#1951).
The ids tell more: a group at or behind the last entry has no lag, one before the first has XLEN; only between these is
the counter asked, and then bounded by what the stream holds. Where it may be wrong the row says so, with the reason.

Ages are taken from entry ids (their first part is the server's clock in ms) against the server's own TIME: a clock that
differs between here and there, or here and now, changes nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Any

import hiredis

from agent.common.address import peer_bytes
from agent.common.clocks import boot_ns
from agent.common.fairness import UpperBound
from agent.common.resp import RedisDown, RedisUrl, RespClient
from agent.queues.catalogue import Broker, Row
from agent.queues.redis_consumers import MAX_CONSUMERS, Consumers
from agent.queues.redis_info import COMMANDS, Counters, errors
from agent.queues.redis_reading import Id, age_s, entry_id, fields, named, shown
from agent.queues.redis_scan import MAX_NAME_BYTES, MAX_STREAMS, Scan, is_pattern

MAX_GROUPS = 256  #: what is beyond is told in a row
#: For docs/limits.md.
BOUNDS = (UpperBound("queues", "consumer groups", MAX_GROUPS, "not watched", "`queue_lag.reason`"),)
PENDING_SAMPLE = 100  #: pending entries looked at for redeliveries: ``redelivered`` is a lower bound beyond that
LOGIN_RETRY_NS = 10_000_000_000  #: a refused login is not repeated each poll: servers log and count these

#: What comes of answers whose parts are not what they are with Redis.
_ODD = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)


@dataclass
class _Group:
    """One group as this poll saw it, and what is remembered of it between polls."""

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


class RedisStreams:
    """One Redis server; ``poll`` gives one row a consumer group, one of the server alone where it has none, or ``down``
    rows when it does not answer.
    """

    def __init__(self, url: RedisUrl, timeout_s: float = 0.5) -> None:
        self.name = f"redis {url.server}"
        self._client = RespClient(url, timeout_s)
        self._named: list[bytes] = [s.encode() for s in url.streams if not is_pattern(s)]
        patterns = [s for s in url.streams if is_pattern(s)]
        self._scan = Scan(patterns) if patterns or not url.streams else None
        self._groups: dict[tuple[bytes, bytes], _Group] = {}
        self._not_before_ns, self._refusal = 0, ""
        self._server, self._values, self._own = Counters(), dict[str, object](), Counter[str]()

    def poll(self) -> list[Row]:
        """Two round trips to the server. Never raises for what the server does."""
        started_ns = boot_ns()
        try:
            if started_ns < self._not_before_ns:
                raise RedisDown(self._refusal, failure="login")
            rows = self._poll(started_ns)
        except RedisDown as error:
            if error.refused_login:
                self._not_before_ns, self._refusal = started_ns + LOGIN_RETRY_NS, str(error)
            rows = self._down(str(error), error.failure)
        except _ODD as error:
            self._client.close()
            rows = self._down(f"its answer cannot be read ({type(error).__name__})")
        peer = None if self._client.peer is None else peer_bytes(*self._client.peer)
        return [{**row, "peer": peer} for row in rows]

    def close(self) -> None:
        self._client.close()

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
            problem.append((b"", "the keyspace is still being looked through: streams may be missing"))
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
        for g in self._groups.values():
            if g.next_id is None and g.lag != 0:
                ms, seq = entry_id(g.info["last-delivered-id"])
                commands.append(("XRANGE", g.stream, f"{ms}-{seq + 1}", "+", "COUNT", 1))
                takers.append((g, "next"))
            if g.info["pending"]:
                commands.append(("XPENDING", g.stream, g.name, "-", "+", PENDING_SAMPLE))
                takers.append((g, "pending"))
            if 0 < g.info["consumers"] <= MAX_CONSUMERS:
                commands.append(("XINFO", "CONSUMERS", g.stream, g.name))
                takers.append((g, "consumers"))
        replies = self._client.pipeline([*commands, *COMMANDS, ("TIME",)])
        now_ns = boot_ns()
        self._values = self._server.parse_info(replies[len(commands) : -1], self._own + errors(replies), now_ns)
        for (g, what), reply in zip(takers, replies, strict=False):
            if isinstance(reply, hiredis.ReplyError) or not reply:
                continue
            if what == "next":
                g.next_id = entry_id(reply[0][0])
            elif what == "consumers":
                g.idlest = g.consumers.longest([fields(entry) for entry in reply], now_ns)
            else:
                g.oldest_pending, g.idle_ms = entry_id(reply[0][0]), max(r[2] for r in reply)
                g.redelivered, g.holder = sum(r[3] > 1 for r in reply), reply[0][1]
        clock = replies[-1]
        return 0 if isinstance(clock, hiredis.ReplyError) else int(clock[0]) * 1000 + int(clock[1]) // 1000

    def _down(self, reason: str, failure: str = "other") -> list[Row]:
        """A row for each group known so far, so that its history goes on; else one for the server."""
        known = list(self._groups.values())
        self._server.forget()
        for g in known:
            g.consumers = Consumers()
        row = {"status": "down", "reason": f"{self.name}: {reason}", "failure": failure}
        return [{**row, "destination": shown(g.stream), "consumer_group": shown(g.name)} for g in known] or [row]


def _count(g: _Group, state: dict[str, Any]) -> None:
    """Sets lag, reason and, where the ids tell it, the next entry: see the module's text. Pure."""
    length, raw = int(state["length"]), g.info.get("lag")
    if length >> 63:
        raise ValueError("no length")
    read, added = g.info.get("entries-read"), state.get("entries-added")
    delivered = entry_id(g.info["last-delivered-id"])
    g.upper_bound = False
    g.reason, g.next_id, g.oldest_pending, g.idle_ms, g.redelivered = "", None, None, None, 0
    g.holder, g.idlest = b"", None
    if length == 0 or delivered >= entry_id(state["last-entry"][0]):
        g.lag, g.counter_wrong = 0, bool(raw)
    elif delivered < (first := entry_id(state["first-entry"][0])):
        removed = 0 if raw is None else raw - length
        g.lag, g.next_id, g.counter_wrong = length, first, removed > 0
        if removed > 0:
            g.reason = f"trimmed: {removed} entries were removed undelivered"
    elif raw is None:
        behind = length - 1 if read is None or added is None else min(length - 1, max(1, added - read))
        g.lag, g.upper_bound = behind, True
        if added is None:
            g.reason = "upper bound: servers before Redis 7 do not count"
        elif read is None:
            g.reason = "upper bound: the group was set to an id inside the stream"
        else:
            g.reason = "upper bound: entries were deleted ahead of the group"
    else:
        g.lag = min(max(1, raw), length - 1)
        if g.counter_wrong or g.lag != raw:
            g.reason = "the server's counter is off after a deletion (redis#13957)"


def _row(g: _Group, state: dict[str, Any], server_ms: int) -> Row:
    added, pending = state.get("entries-added"), g.info["pending"]
    read = None if added is None or g.lag is None or g.upper_bound else added - g.lag
    undelivered = 0.0 if g.lag == 0 else age_s(g.next_id, server_ms)
    pending_s = age_s(g.oldest_pending, server_ms)
    return {
        "destination": shown(g.stream),
        "consumer_group": shown(g.name),
        "lag_messages": g.lag,
        "lag_s": undelivered,
        "exact": not g.reason,
        "inexact_reason": g.reason,
        "oldest_undelivered_s": nan if g.lag == 0 else undelivered,
        "oldest_pending_s": g.idle_ms / 1000 if g.idle_ms is not None and isnan(pending_s) else pending_s,
        "pending": pending,
        "redelivered": g.redelivered,
        "holder": shown(g.holder),
        "idle_consumer": None if g.idlest is None else shown(g.idlest[0]),
        "idle_s": None if g.idlest is None else g.idlest[1],
        "consumers": g.info["consumers"],
        "added": added,
        "acked": None if read is None else read - pending,
        "position": g.info["last-delivered-id"],
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
