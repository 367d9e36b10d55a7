"""Lag of the consumer groups of a Redis server's streams (Redis 5 and later, Valkey).

What the server counts itself (`XINFO GROUPS` lag, since 7.0) is not taken on trust:
  - it is NULL after an XDEL ahead of the group, and for a group that was set to an arbitrary id;
  - after a trimming of undelivered entries it counts what is gone, and stays wrong when the group has read on
    (redis/redis#13957, valkey-io/valkey#1951).
The ids tell more: a group at or behind the last entry has no lag, one before the first has XLEN; only between these is the
counter asked, and then bounded by what the stream holds. Where it may be wrong the row says so, with the reason.

Ages are taken from entry ids (their first part is the server's clock in ms) against the server's own TIME: a clock that
differs between here and there, or here and now, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import isnan, nan
from typing import Any

import hiredis
import numpy as np

from agent.batch import Batch, make
from agent.columns import NULL_I64, fitted
from agent.common.address import peer_bytes
from agent.common.clocks import boot_ns
from agent.common.resp import RedisDown, RedisUrl, RespClient
from agent.queues.status import Progress, Sample
from agent.tables import TABLES

MAX_STREAMS = 256  #: found by SCAN; those that the URL names are all asked
MAX_GROUPS = 256  #: what is beyond either is told in a row
PENDING_SAMPLE = 100  #: pending entries looked at for redeliveries: ``redelivered`` is a lower bound beyond that
MAX_NAME_BYTES = 1024  #: of a stream's or a group's name; longer ones are not watched, which a row tells, too
SCAN_STEPS, SCAN_COUNT = 4, 500  #: of the keyspace at most 2,000 keys a poll are looked through for streams
REDISCOVER_NS = 15_000_000_000
LOGIN_RETRY_NS = 10_000_000_000  #: a refused login is not repeated each poll: servers log and count these
_MAX_CURSOR_BYTES, _MAX_ID_BYTES = 32, 64
_EARLIEST_MS, _AHEAD_MS = 1_000_000_000_000, 60_000  # ids before 2001 or a minute ahead of the server are not times

#: What comes of answers whose parts are not what they are with Redis.
_ODD = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)

Id = tuple[int, int]


@dataclass
class _Group:
    """One group as this poll saw it, and what is remembered of it between polls."""

    stream: bytes
    name: bytes
    info: dict[str, Any] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    counter_wrong: bool = False
    lag: int | None = None
    upper_bound: bool = False
    reason: str = ""
    next_id: Id | None = None
    oldest_pending: Id | None = None
    idle_ms: int | None = None
    redelivered: int = 0


def sources(urls: Iterable[str], timeout_s: float = 0.5) -> list[RedisStreams]:
    """One queue for ``QueuePoller`` for each URL. Raises AgentError for what is no Redis URL."""
    return [RedisStreams(RedisUrl.parse(url), timeout_s) for url in urls]


class RedisStreams:
    """One Redis server; ``poll`` gives one queue_lag row a consumer group, or ``down`` rows when it does not answer."""

    def __init__(self, url: RedisUrl, timeout_s: float = 0.5) -> None:
        self.name = f"redis {url.server}"
        self._client = RespClient(url, timeout_s)
        self._named: list[bytes] = [s.encode() for s in url.streams if not _is_pattern(s)]
        patterns = [s for s in url.streams if _is_pattern(s)]
        self._scan = _Scan(patterns) if patterns or not url.streams else None
        self._groups: dict[tuple[bytes, bytes], _Group] = {}
        self._not_before_ns, self._refusal = 0, ""

    def poll(self) -> list[Batch]:
        """Two round trips to the server. Never raises for what the server does."""
        started_ns = boot_ns()
        try:
            if started_ns < self._not_before_ns:
                raise RedisDown(self._refusal, failure="login")
            rows = self._ask(started_ns)
        except RedisDown as error:
            if error.refused_login:
                self._not_before_ns, self._refusal = started_ns + LOGIN_RETRY_NS, str(error)
            rows = self._down(str(error), error.failure)
        except _ODD as error:
            self._client.close()
            rows = self._down(f"its answer cannot be read ({type(error).__name__})")
        now_ns = boot_ns()
        rows["t_ns"], rows["poll_ns"] = now_ns, now_ns - started_ns
        if self._client.peer is not None:
            rows["peer"] = np.void(peer_bytes(*self._client.peer))
        return [Batch("queue_lag", rows)]

    def close(self) -> None:
        self._client.close()

    def _ask(self, now_ns: int) -> Any:
        streams = self._named + [s for s in (self._scan.step(self._client, now_ns) if self._scan else ()) if s not in self._named]
        states: list[tuple[bytes, dict[str, Any]]] = []
        trouble: list[tuple[bytes, str]] = []
        groups_left_out = 0
        seen: dict[tuple[bytes, bytes], _Group] = {}
        replies = self._client.pipeline([(c, sub, s) for s in streams for c, sub in (("XINFO", "STREAM"), ("XINFO", "GROUPS"))])
        for stream, about, groups in zip(streams, replies[::2], replies[1::2], strict=True):
            failed = next((r for r in (about, groups) if isinstance(r, hiredis.ReplyError)), None)
            if failed is not None:
                trouble.append((stream, str(failed)))
                continue
            state = _fields(about)
            states.append((stream, state))
            if not groups:
                trouble.append((stream, "no consumer group"))
            for info in map(_fields, groups):
                key = (stream, _named(info))
                if len(seen) < MAX_GROUPS and len(key[1]) <= MAX_NAME_BYTES:
                    group = seen[key] = self._groups.get(key) or _Group(*key)
                    group.info = info
                    _count(group, state)
                else:
                    groups_left_out += 1
        self._groups = seen
        if self._scan is not None and not self._scan.whole:
            trouble.append((b"", "the keyspace is still being looked through: streams may be missing"))
        for what, limit, beyond in (("streams", MAX_STREAMS, self._scan is not None and self._scan.more), ("groups", MAX_GROUPS, groups_left_out)):
            if beyond:
                trouble.append((b"", f"more than {limit} {what}, or longer names, are not watched: choose with ?streams= in the server's URL"))
        server_ms, t_ns = self._details()
        state_of = dict(states)
        for group in seen.values():
            _progress(group, state_of[group.stream], t_ns)
        return _rows(list(seen.values()), trouble, server_ms)

    def _details(self) -> tuple[int, int]:
        """Second round trip: oldest entries, and TIME last. Returns the server's time in ms and ours of the reply."""
        commands: list[tuple[bytes | str | int, ...]] = []
        takers: list[tuple[_Group, str]] = []
        for g in self._groups.values():
            if g.next_id is None and g.lag != 0:
                ms, seq = _id(g.info["last-delivered-id"])
                commands.append(("XRANGE", g.stream, f"{ms}-{seq + 1}", "+", "COUNT", 1))
                takers.append((g, "next"))
            if g.info["pending"]:
                commands.append(("XPENDING", g.stream, g.name, "-", "+", PENDING_SAMPLE))
                takers.append((g, "pending"))
        replies = self._client.pipeline([*commands, ("TIME",)])
        now_ns = boot_ns()
        for (g, what), reply in zip(takers, replies, strict=False):
            if isinstance(reply, hiredis.ReplyError) or not reply:
                continue
            if what == "next":
                g.next_id = _id(reply[0][0])
            else:
                g.oldest_pending, g.idle_ms = _id(reply[0][0]), max(r[2] for r in reply)
                g.redelivered = sum(r[3] > 1 for r in reply)
        clock = replies[-1]
        return (0 if isinstance(clock, hiredis.ReplyError) else int(clock[0]) * 1000 + int(clock[1]) // 1000), now_ns

    def _down(self, reason: str, failure: str = "other") -> Any:
        """A row for each group known so far, so that its history goes on; else one for the server."""
        known = list(self._groups.values())
        for g in known:
            g.progress = Progress()
        rows = make("queue_lag", max(len(known), 1), system="redis", status="down", reason=f"{self.name}: {reason}"[:128]).rows
        rows["failure"] = TABLES["queue_lag"].code("failure", failure)
        if known:
            rows["destination"] = [g.stream for g in known]
            rows["consumer_group"] = [g.name for g in known]
        return rows


class _Scan:
    """Finds streams by SCAN, a bounded step a poll; what was found counts until the next full pass.

    A keyspace that one SCAN covers is looked through at every poll, so that a new stream shows at once; a larger one after REDISCOVER_NS.
    """

    def __init__(self, wanted: Sequence[str]) -> None:
        self._wanted = wanted
        self._cursor: bytes = b"0"
        self._found: set[bytes] = set()
        self._beyond = False
        self._streams: list[bytes] = []
        self._again_ns = 0
        self.more = False  #: there are streams beyond MAX_STREAMS
        self.whole = False  #: all keys have been looked at once

    def step(self, client: RespClient, now_ns: int) -> list[bytes]:
        """The streams known now, at most MAX_STREAMS. Raises RedisDown."""
        if now_ns < self._again_ns:
            return self._streams
        for step in range(SCAN_STEPS):
            small = step == 0 and self._cursor == b"0"
            (reply,) = client.pipeline([("SCAN", self._cursor, "COUNT", SCAN_COUNT, "TYPE", "stream")])
            if isinstance(reply, hiredis.ReplyError):
                raise RedisDown(f"cannot list streams: {reply}; name them in the URL with ?streams=")
            self._cursor, keys = reply
            if len(self._cursor) > _MAX_CURSOR_BYTES:
                raise ValueError("no cursor")
            self._beyond |= any(len(k) > MAX_NAME_BYTES for k in keys)
            short = (k for k in keys if len(k) <= MAX_NAME_BYTES)
            self._found.update(k for k in short if not self._wanted or any(fnmatchcase(k.decode("utf-8", "replace"), w) for w in self._wanted))
            found, beyond = _first(self._found)  # no more are kept, however long a server goes on
            self._found, self._beyond = set(found), self._beyond or beyond
            self._streams, beyond = _first({*self._streams, *self._found})
            self.more |= beyond or self._beyond
            if self._cursor == b"0":
                self._streams, self.more, self.whole = found, self._beyond, True
                self._found, self._beyond, self._again_ns = set(), False, now_ns if small else now_ns + REDISCOVER_NS
                break
        return self._streams


def _first(names: set[bytes]) -> tuple[list[bytes], bool]:
    """The first MAX_STREAMS by name, and whether there are more."""
    return sorted(names)[:MAX_STREAMS], len(names) > MAX_STREAMS


def _count(g: _Group, state: dict[str, Any]) -> None:
    """Sets lag, reason and, where the ids tell it, the next entry: see the module's text. Pure."""
    length, raw = int(state["length"]), g.info.get("lag")
    read, added = g.info.get("entries-read"), state.get("entries-added")
    delivered = _id(g.info["last-delivered-id"])
    g.upper_bound = False
    g.reason, g.next_id, g.oldest_pending, g.idle_ms, g.redelivered = "", None, None, None, 0
    if length == 0 or delivered >= _id(state["last-entry"][0]):
        g.lag, g.counter_wrong = 0, bool(raw)
    elif delivered < (first := _id(state["first-entry"][0])):
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


def _progress(g: _Group, state: dict[str, Any], t_ns: int) -> None:
    added, lag = state.get("entries-added"), g.lag
    read = None if added is None or lag is None or g.upper_bound else added - lag
    pending, position = g.info["pending"], g.info["last-delivered-id"]
    g.progress.add(Sample(t_ns, lag, pending, g.info["consumers"], position, None if read is None else read - pending, added))


def _rows(groups: list[_Group], trouble: list[tuple[bytes, str]], server_ms: int) -> Any:
    rows = TABLES["queue_lag"].empty(len(groups) + len(trouble))
    rows["system"] = "redis"
    for row, g in zip(rows, groups, strict=False):
        status, why = g.progress.status()
        undelivered = 0.0 if g.lag == 0 else _age_s(g.next_id, server_ms)
        pending_s = _age_s(g.oldest_pending, server_ms)
        for column, value in {
            "destination": _shown(g.stream),
            "consumer_group": _shown(g.name),
            "lag_messages": NULL_I64 if g.lag is None else g.lag,
            "lag_s": undelivered,
            "exact": not g.reason,
            "inexact_reason": g.reason,
            "oldest_undelivered_s": nan if g.lag == 0 else undelivered,
            "oldest_pending_s": g.idle_ms / 1000 if g.idle_ms is not None and isnan(pending_s) else pending_s,
            "pending": g.info["pending"],
            "redelivered": g.redelivered,
            "consumers": g.info["consumers"],
            "in_per_s": g.progress.per_second("added"),
            "out_per_s": g.progress.per_second("acked"),
            "status": status,
            "reason": why,
        }.items():
            row[column] = value
    for row, (stream, why) in zip(rows[len(groups) :], trouble, strict=True):
        row["destination"], row["reason"] = _shown(stream), why
    return rows


def _shown(name: bytes) -> bytes:
    """Names of streams and groups have any length and content."""
    return fitted(name, TABLES["queue_lag"].by_name["destination"].width)


def _age_s(entry: Id | None, server_ms: int) -> float:
    """Age of an entry by its id, never negative; NaN where there is none or its id is no time."""
    if entry is None or not _EARLIEST_MS <= entry[0] <= server_ms + _AHEAD_MS:
        return nan
    return max(0, server_ms - entry[0]) / 1000


def _id(text: bytes) -> Id:
    ms, _, seq = text.partition(b"-")
    return int(ms), int(seq)


def _named(info: dict[str, Any]) -> bytes:
    """A group's name. Raises ValueError where what is kept of the group between polls is not what it is with Redis."""
    name, position = info["name"], info["last-delivered-id"]
    if not isinstance(name, bytes) or not isinstance(position, bytes) or len(position) > _MAX_ID_BYTES:
        raise ValueError("no group")
    if not all(isinstance(info[number], int) for number in ("pending", "consumers")):
        raise ValueError("no numbers")
    return name


def _fields(flat: list[Any]) -> dict[str, Any]:
    return {k.decode(): v for k, v in zip(flat[::2], flat[1::2], strict=True)}


def _is_pattern(name: str) -> bool:
    return any(c in name for c in "*?[")
