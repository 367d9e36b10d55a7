"""Lag of the consumer groups of a Redis server's streams (Redis 5 and later, Valkey).

agent/queues/redis_lag.py says how the lag is found. Ages are entry ids (their first part is the server's clock in ms)
compared with the server's own TIME, so they do not depend on this host's clock.

A command that the server's ACL refuses costs only what it would have reported; a row names the missing rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Any

import hiredis

from agent.common.clocks import boot_ns
from agent.common.credentials import Password, password_keys
from agent.common.fairness import UpperBound
from agent.common.resp import RedisDown, RedisUrl, Reply, ReplyTooLarge
from agent.common.settings import private_text, setting
from agent.queues.catalogue import Broker
from agent.queues.gone import Gone
from agent.queues.patterns import is_pattern
from agent.queues.queue import Queue, Row
from agent.queues.redis_consumers import MAX_AT_ONCE, MAX_CONSUMERS, Consumers, Held, held
from agent.queues.redis_expiring import ExpiringKeys
from agent.queues.redis_info import COMMANDS
from agent.queues.redis_lag import Lag
from agent.queues.redis_lists import ListQueues
from agent.queues.redis_pending import SAMPLE, SAMPLES, PendingEntries
from agent.queues.redis_places import ClusterStreams, SentinelStreams
from agent.queues.redis_reading import Id, Stream, after, age_s, entry_id, fields, named, shown, shown_id
from agent.queues.redis_removed import RemovedEntries
from agent.queues.redis_reply_size import ReplySize
from agent.queues.redis_rewound import DataHistory
from agent.queues.redis_rights import Command, Rights, missing_rule
from agent.queues.redis_scan import MAX_NAME_BYTES, MAX_STREAMS, Scan
from agent.queues.redis_section import RedisServerSection
from agent.queues.redis_server import RedisServer
from agent.queues.redis_tail import EntryField, Tail
from agent.queues.redis_walk import walk

Key = tuple[bytes, bytes]  #: stream, consumer group
MAX_GROUPS = 1024  # the number of groups left out is reported in a row
#: For docs/limits.md.
BOUNDS = (UpperBound("queues", "consumer groups of a Redis server", MAX_GROUPS, "not watched", "`queue_lag.reason`"),)
_MAX_HEADS = 256  # entries that are read in one poll for their ids
_CHECKED_AT_ONCE = 10  # of these, pending entries that may have been deleted
_RULES_CHARACTERS = 80
_REPORTED = ("SCAN", "PEXPIRETIME")  # commands whose absence other rows report
_AWAY = ("LOADING", "MASTERDOWN", "CLUSTERDOWN")  # replies to whatever is asked
MOVED = "it is on another server of a Redis Cluster"
TOO_LARGE = "its first and its last entry are too large to be read"
NOT_READ = "not read in this poll: entries of other streams are too large"
_UNREADABLE_NS = 60_000_000_000  # such a stream is not read again for so long
#: Replies of a poll that may be too large, each of up to 8 MiB: 6 find one such stream among MAX_STREAMS. And how many
#: of those that were unreadable are tried again in a poll.
_REFUSED, _AGAIN = 8, 2


@dataclass
class _Group:
    """One group as of this poll, and what is kept of it between polls. before: its position at the previous poll.
    problem: why this poll has no answer. removed: entries that left the queue unread, by trimming or deletion, as far
    as two polls show it; some of them may have been read. unread: those that were not, with certainty. doubtful: how
    many of those that left the queue were read is not known.
    """

    stream: Stream
    name: bytes
    info: dict[str, Any]
    delivered: Id = (0, 0)
    before: Id = (0, 0)
    problem: str = ""
    refused: bool = False
    lag: Lag = field(default_factory=Lag)
    next_id: Id | None = None
    pending: PendingEntries = field(default_factory=PendingEntries)
    consumers: Consumers = field(default_factory=Consumers)
    idlest: tuple[bytes, float] | None = None
    held: Held | None = None
    removed: int = 0
    unread: RemovedEntries = field(default_factory=RemovedEntries)
    doubtful: bool = False
    _exactly: tuple[int, int, int | None, int] | None = None  # lag, entries-added, entries-read, length

    def see(self, stream: Stream, info: dict[str, Any], now_ns: int) -> None:
        self.stream, self.info, self.problem, self.refused = stream, info, "", False
        self.next_id, self.idlest, self.held = None, None, None
        self.before, self.delivered = self.delivered, entry_id(info["last-delivered-id"])
        self.lag.see(info, self.delivered, stream, now_ns)
        if info["pending"]:
            self.pending.forget()
        else:
            self.pending.none()

    def count_removed(self) -> None:
        """After the lag was judged."""
        lag, added, read = self.lag.value, self.stream.added, self.info.get("entries-read")
        before, self._exactly, self.doubtful = self._exactly, None, False
        self.unread.see(self.stream, self.info, self.delivered, None if self.lag.reason else lag)
        if lag is None or self.lag.reason or added is None:
            return
        self._exactly = lag, added, read, self.stream.length
        if before is None:
            return
        left = before[0] + added - before[1] - lag
        if self.delivered == self.before:
            self.removed += max(0, left)
        elif read is not None and before[2] is not None and read >= before[2]:
            self.removed += max(0, left - (read - before[2]))
        else:
            ends = self.stream.max_deleted, self.stream.first
            here = self.stream.first is None or any(at is not None and at > self.before for at in ends)
            self.doubtful = here and self.stream.length < before[3] + added - before[1]


class RedisStreams(RedisServer):
    """One Redis server. ``poll`` returns one row per consumer group, one row for the server if it has none, or ``down``
    rows if it does not answer.
    """

    def __init__(self, url: RedisUrl, timeout_s: float = 0.5, shard: bool = False) -> None:
        super().__init__(f"redis {url.database}", url, timeout_s)
        self._shard = shard
        self._rights, self._user = Rights(), url.user or "default"
        self.moved = False  # a stream is of another server of the cluster
        self._named: list[bytes] = [s.encode() for s in url.streams if not is_pattern(s)]
        patterns = [s for s in url.streams if is_pattern(s)]
        self._lists = ListQueues(url.queues) if url.queues else None
        self._expiring = ExpiringKeys(url.expiring) if url.expiring else None
        message, number = url.message
        self._tail = Tail(EntryField.parse(message), EntryField.parse(number) if number else None) if message else None
        self._scan = Scan(patterns) if patterns or not (url.streams or url.queues or url.expiring) else None
        self._groups: dict[Key, _Group] = {}
        self._found: list[Stream] = []  # in this poll
        self._unlisted = ""  # why this poll could not list the streams, if it is no missing rule
        self._gone, self._history = Gone(self._named), DataHistory()
        self._values = dict[str, object]()
        self._now_ns = self._turn = 0
        self._heads, self._reply_size, self._sample = _MAX_HEADS, ReplySize(MAX_STREAMS), SAMPLE
        self._unreadable: dict[bytes, int] = {}  # streams whose entries are too large -> until when

    def choose(self, named: list[bytes], expiring: Collection[str]) -> None:
        """Queries these streams, and keys with an expiry, from now on, beside those that match a pattern."""
        self._named = named
        if self._expiring is not None:
            self._expiring.named = expiring
        self._gone.named = frozenset(named)

    def pipeline(self, commands: Sequence[Command]) -> list[Reply]:
        """As ``RespClient.pipeline``, without the commands that were refused lately."""
        replies = self._rights.pipeline(self._client, commands, self._now_ns)
        away = next((r for r in replies if isinstance(r, hiredis.ReplyError) and str(r).startswith(_AWAY)), None)
        if away is not None:
            raise RedisDown(str(away))
        return replies

    def _poll(self, now_ns: int) -> list[Row]:
        self.moved = False
        self._now_ns = now_ns
        self._turn += 1
        self._rights.errors = Counter()
        problems = self._see(self._streams(now_ns))
        alive = [group for group in self._groups.values() if not group.problem]
        counted = [(group.stream, group.lag.counting) for group in alive if group.lag.counting is not None]
        walk(counted, self.pipeline, self._turn)
        for group in alive:
            group.lag.judge(group.info, group.stream)
            group.count_removed()
        self._read_heads(alive)
        server_ms = self._details(alive)
        problems += [
            (group.stream.name, f"group {shown(group.name).decode('utf-8', 'replace')}: {what}")
            for group in alive
            for what in _remarks(group, self._sample)
        ]
        rows = self._rewound(alive, server_ms)
        rows += [_unread(group) for group in self._groups.values() if group.problem]
        refused = self._server.refused.get("NOGROUP", 0)
        rows += self._gone.rows(now_ns, f"the server's clients got NOGROUP {refused} times" if refused else "")
        if self._tail is not None:
            self._ordered = self._tail.read(self._found, self.pipeline, now_ns)
            problems += self._tail.problems()
            self._due = self._tail.ids.timers()
        if self._lists is not None:
            rows += self._lists.rows(self.pipeline, server_ms / 1000)
        if self._expiring is not None:
            self._due = [*(self._due or []), *self._expiring.timers(self, now_ns)]
            self.moved |= self._shard and self._expiring.moved
        rows += self._limits()
        rows += [
            {"destination": shown(stream), "reason": "; ".join(why for name, why in problems if name == stream)}
            for stream in dict.fromkeys(stream for stream, _ in problems)
        ]
        missing = self._rights.missing(now_ns)
        if missing:
            why = f"refused by the ACL; ACL SETUSER {self._user} {_listed(missing)}"
            rows.append({"status": "unknown", "failure": "permission", "reason": why})
        if unknown := [name for name in self._rights.unknown(now_ns) if name not in _REPORTED]:
            why = f"the server does not know {', '.join(unknown)}: renamed, or of a newer version"
            rows.append({"status": "unknown", "failure": "permission", "reason": why})
        if self._unlisted:
            rows.append({"status": "unknown", "failure": "permission", "reason": self._unlisted})
        elif not missing and not any("status" in row or "lag_messages" in row for row in rows):
            rows.append({"status": "ok"})
        return [{**self._values, **row} for row in rows]

    def _rewound(self, groups: list[_Group], server_ms: int) -> list[Row]:
        """Rows of groups, and of the server if it lost writes."""
        streams = {group.stream.name: group.stream for group in groups}
        self._history.see(self._server.replication, streams.values(), self._now_ns)
        self._gone.explain(self._history.how, self._now_ns)
        rows: list[Row] = []
        for group in groups:
            self._history.group(group.stream.name, group.name, group.before, group.delivered, self._now_ns)
            why = self._history.why(group.stream.name, group.name)
            rows.append({**_row(group, server_ms), **({"status": "rewound", "reason": why} if why else {})})
        why = self._history.why()
        return [*rows, {"status": "rewound", "reason": why}] if why else rows

    def _streams(self, now_ns: int) -> list[bytes]:
        """Those to query: of the settings, found by SCAN, and with groups that are known, or were deleted."""
        found: list[bytes] = []
        self._unlisted = ""
        if self._scan is not None:
            try:
                found = self._scan.step(self, now_ns)
            except RedisDown as error:
                if error.failure != "permission":
                    raise
                self._unlisted = "" if "+scan" in self._rights.missing(now_ns) else str(error)
        known = [group.stream.name for group in self._groups.values()]
        return list(dict.fromkeys([*self._named, *found, *known, *self._gone.streams]))

    def _see(self, streams: list[bytes]) -> list[tuple[bytes, str]]:
        """First round trip: the streams and their groups. Returns problems by stream."""
        problems: list[tuple[bytes, str]] = []
        found: dict[Key, _Group] = {}
        named_here: set[Key] = set()
        why: dict[bytes, str] = {}
        self._left_out, self._found = 0, []
        replies = self._about(streams)
        for name, about, groups in zip(streams, replies[::2], replies[1::2], strict=True):
            failed = next((r for r in (about, groups) if isinstance(r, hiredis.ReplyError)), None)
            if failed is not None:
                why[name] = str(failed).partition(", with args")[0]
                if why[name].startswith("ASK ") and self._shard:
                    why[name] = f"it is being moved to {why[name].rpartition(' ')[2]}"
                    continue
                if why[name].startswith(("MOVED", "ASK")):
                    self.moved = True
                    why[name] = f"{MOVED}: use redis+cluster://"
                rule = missing_rule(("XINFO", "STREAM" if failed is about else "GROUPS", name), failed)
                why[name] = f"missing ACL rule {rule}" if rule else why[name]
                chosen = name in self._named and not (self._shard and self.moved)
                if why[name] == TOO_LARGE or (chosen and not (rule and rule.startswith("+"))):
                    problems.append((name, why[name]))
                continue
            stream = Stream.read(name, about)
            self._found.append(stream)
            if not groups:
                problems.append((name, "no consumer group"))
            for info in map(fields, groups):
                key = (name, named(info))
                named_here.add(key)
                if len(found) < MAX_GROUPS and len(key[1]) <= MAX_NAME_BYTES:
                    group = found[key] = self._groups.get(key) or _Group(stream, key[1], info)
                    group.see(stream, info, self._now_ns)
                    self._gone.back(key)
                else:
                    self._left_out += 1
        before, self._groups = self._groups, found
        for key, group in before.items():
            if key not in named_here:
                self._lost(group, key, why.get(key[0], ""))
        self._history.forget(before.keys() - self._groups.keys(), {name for name, _ in self._groups})
        gone = self._gone.streams
        return [(name, what) for name, what in problems if name not in gone or not what.endswith("no such key")]

    def _about(self, streams: list[bytes]) -> list[Reply]:
        """``XINFO STREAM`` and ``GROUPS`` of each. The former has two entries with their content: fewer streams are
        queried at a time if these are large. Those of which one reply is too large have an error, as have the others
        if too many were; the next poll reads them.
        """
        now_ns, found, refused = self._now_ns, dict[bytes, list[Reply]](), 0
        self._unreadable = {name: self._unreadable[name] for name in streams if name in self._unreadable}
        waiting = [name for name in streams if name not in self._unreadable]
        while waiting and refused < _REFUSED:
            some = waiting[: self._reply_size.number]
            read = self._xinfo(some)
            found |= read
            if read:
                self._reply_size.received()
            else:
                refused += 1
                if len(some) > 1:
                    self._reply_size.refused(len(some))
                    continue
                self._reply_size.refused_single()
                self._unreadable[some[0]] = now_ns + _UNREADABLE_NS
            waiting = waiting[len(some) :]
        for name in [name for name, until_ns in self._unreadable.items() if until_ns <= now_ns][:_AGAIN]:
            found |= self._xinfo([name])
            self._unreadable[name] = now_ns + _UNREADABLE_NS
        self._unreadable = {name: until_ns for name, until_ns in self._unreadable.items() if name not in found}
        refusals = {name: hiredis.ReplyError(NOT_READ) for name in waiting}
        too_large = hiredis.ReplyError(TOO_LARGE)
        return [reply for name in streams for reply in found.get(name) or [refusals.get(name, too_large)] * 2]

    def _xinfo(self, streams: list[bytes]) -> dict[bytes, list[Reply]]:
        """The replies by stream; empty if they are too large together."""
        try:
            replies = self.pipeline([("XINFO", sub, name) for name in streams for sub in ("STREAM", "GROUPS")])
        except ReplyTooLarge:
            return {}
        return {name: replies[2 * at : 2 * at + 2] for at, name in enumerate(streams)}

    def _lost(self, group: _Group, key: Key, why: str) -> None:
        """A known group that this poll did not find. why: the server's error about its stream."""
        if why.startswith(MOVED):
            return
        if why and not why.endswith("no such key") and not why.startswith("WRONGTYPE"):
            group.problem, group.refused = why, why.startswith("missing ACL rule")
            self._groups[key] = group
            return
        if not why:
            why = "the group was deleted"
        else:
            why = "the stream was deleted or renamed" if why.endswith("no such key") else "the key is no stream since"
        self._gone.add(key, why, self._now_ns)

    def _limits(self) -> list[Row]:
        out = []
        refused = self._unlisted or "+scan" in self._rights.missing(self._now_ns)
        if self._scan is not None and not self._scan.whole and not refused:
            out.append("the keyspace is still being scanned: streams may be missing")
        for what, limit, beyond in (
            ("streams", MAX_STREAMS, self._scan is not None and self._scan.more),
            ("groups", MAX_GROUPS, self._left_out),
        ):
            if beyond:
                out.append(
                    f"more than {limit} {what}, or longer names, are not watched: choose with ?streams= in the"
                    " server's URL"
                )
        return [{"destination": b"", "reason": why} for why in out]

    def _read_heads(self, groups: list[_Group]) -> None:
        """The oldest undelivered entry of groups with a lag. A reply that is too large leaves them unknown; the next
        poll asks for fewer.
        """
        some = [group for group in groups if group.lag.value != 0]
        at = self._turn * self._heads % len(some) if len(some) > self._heads else 0
        some = [*some[at:], *some[:at]][: self._heads]
        commands: list[Command] = [("XRANGE", g.stream.name, after(g.delivered), "+", "COUNT", 1) for g in some]
        for group, reply in zip(some, self._entries(commands), strict=False):
            if not isinstance(reply, hiredis.ReplyError) and reply:
                group.next_id = entry_id(reply[0][0])

    def _entries(self, commands: Sequence[Command]) -> list[Reply]:
        """Replies with entries, which may be large; empty if they are too large."""
        if not commands:
            return []
        try:
            replies = self.pipeline(commands)
        except ReplyTooLarge:
            self._heads = max(1, self._heads // 4)
            return []
        self._heads = min(_MAX_HEADS, self._heads + 1)
        return replies

    def _details(self, groups: list[_Group]) -> int:
        """Last round trips: pending entries, consumers, TIME, the server itself. Returns the server's time in ms."""
        commands: list[Command] = []
        takers: list[tuple[_Group, str]] = []
        consumers = 0
        at = self._turn % len(groups) if groups else 0
        self._sample = min(SAMPLE, SAMPLES // max(1, sum(bool(group.info["pending"]) for group in groups)))
        for group in [*groups[at:], *groups[:at]]:
            key = group.stream.name, group.name
            if group.info["pending"]:
                commands.append(("XPENDING", *key, "-", "+", self._sample))
                takers.append((group, "pending"))
            if 0 < group.info["consumers"] <= min(MAX_CONSUMERS, MAX_AT_ONCE - consumers):
                consumers += group.info["consumers"]
                commands.append(("XINFO", "CONSUMERS", *key))
                takers.append((group, "consumers"))
        replies = self.pipeline([*commands, ("TIME",), *COMMANDS])
        now_ns = boot_ns()
        for (group, what), reply in zip(takers, replies, strict=False):
            if isinstance(reply, hiredis.ReplyError) or (what == "consumers" and not reply):
                continue
            if what == "consumers":
                entries = [fields(entry) for entry in reply]
                group.idlest, group.held = group.consumers.longest(entries, now_ns), held(entries)
            else:
                group.pending.read(reply, group.stream)
        self._look_for_deleted([group for group, what in takers if what == "pending"])
        clock, *info = replies[len(commands) :]
        self._values = self._server.parse_info(info, self._rights.errors, now_ns)
        return 0 if isinstance(clock, hiredis.ReplyError) else int(clock[0]) * 1000 + int(clock[1]) // 1000

    def _look_for_deleted(self, groups: list[_Group]) -> None:
        """Pending entries that may have been deleted, a few a poll."""
        some = [(g, entry) for g in groups for entry in g.pending.doubtful(g.stream)[:_CHECKED_AT_ONCE]]
        some = some[: min(_CHECKED_AT_ONCE, self._heads)]
        commands: list[Command] = [
            ("XRANGE", g.stream.name, shown_id(entry), shown_id(entry), "COUNT", 1) for g, entry in some
        ]
        for (group, entry), reply in zip(some, self._entries(commands), strict=False):
            if not isinstance(reply, hiredis.ReplyError):
                group.pending.checked(entry, bool(reply))
        for group in groups:
            group.pending.judge()

    def _interrupted(self) -> list[Row]:
        self.moved = False
        known = self._groups.values()
        for group in known:
            group.consumers = Consumers()
        queues = [{"destination": shown(one.stream.name), "consumer_group": shown(one.name)} for one in known]
        lists = self._lists.known if self._lists is not None else ()
        return [*queues, *({"destination": shown(name.encode())} for name in lists)]


def _listed(rules: list[str]) -> str:
    """As many rules as a reason has room for."""
    some, length = list[str](), 0
    for rule in rules:
        length += len(rule) + 1
        if some and length > _RULES_CHARACTERS:
            return f"{' '.join(some)} (and {len(rules) - len(some)} more)"
        some.append(rule)
    return " ".join(some)


def _remarks(group: _Group, sample: int) -> list[str]:
    """What an operator would otherwise hunt for."""
    out = []
    if group.lag.removed:
        out.append(f"{group.lag.removed} entries were removed before they were delivered")
    if group.pending.deleted:
        least = "at least " if group.pending.deleted >= sample else ""
        out.append(f"{least}{group.pending.deleted} pending entries no longer exist (deleted or trimmed): XACK them")
    return out


def _unread(group: _Group) -> Row:
    failure = {"failure": "permission"} if group.refused else {}
    return {
        "destination": shown(group.stream.name),
        "consumer_group": shown(group.name),
        "status": "unknown",
        "reason": group.problem,
        **failure,
    }


def _row(group: _Group, server_ms: int) -> Row:
    lag, added, count = group.lag, group.stream.added, group.info["pending"]
    read = None if added is None or lag.value is None or lag.reason else added - lag.value
    undelivered = 0.0 if lag.value == 0 else age_s(group.next_id, server_ms)
    pending, idle_ms = group.pending, group.pending.idle_ms
    pending_s = age_s(pending.oldest, server_ms)
    return {
        "destination": shown(group.stream.name),
        "consumer_group": shown(group.name),
        "lag_messages": lag.value,
        "lag_at_least": lag.at_least,
        "lag_s": undelivered,
        "exact": not lag.reason,
        "inexact_reason": lag.reason,
        "oldest_undelivered_s": nan if lag.value == 0 else undelivered,
        "oldest_pending_s": idle_ms / 1000 if idle_ms is not None and isnan(pending_s) else pending_s,
        "pending": count,
        "pending_deleted": pending.deleted,
        "removed": group.unread.count,
        "redelivered": pending.redelivered,
        "holder": shown(pending.holder),
        "idle_consumer": None if group.idlest is None else shown(group.idlest[0]),
        "idle_s": None if group.idlest is None else group.idlest[1],
        "held_idle": None if group.held is None else group.held.entries,
        "idle_holders": None if group.held is None else group.held.names,
        "consumers": group.info["consumers"],
        "added": added,
        "acked": None if read is None or group.doubtful else read - count - group.removed,
        "position": group.info["last-delivered-id"],
    }


@dataclass(frozen=True)
class RedisSection(RedisServerSection):
    """A server as a section of the settings."""

    TITLE = "Redis"

    url: RedisUrl = setting("", private_text("redis://host:6379/0?streams=orders,mail*", RedisUrl.parse), "its address")
    password: Password = setting(Password(), password_keys("TICKSCOPE_REDIS_"))


def opened(server: RedisUrl | RedisSection) -> Queue:
    url = server.redis if isinstance(server, RedisSection) else server
    if url.kind == "cluster":
        return ClusterStreams(url, RedisStreams)
    return SentinelStreams(url, RedisStreams) if url.kind == "sentinel" else RedisStreams(url)


BROKER = Broker(
    "redis",
    "Redis Streams",
    "consumer groups of streams: lag, age, pending and redelivered entries; declared lists",
    "redis://[user:password@]host:port/db?streams=orders,mails",
    "no streams: all; lists by ?rq=, ?bullmq=, ?sidekiq=, ?lists=; redis+sentinel://host:26379/SERVICE/db, redis+cluster://host:port",
    RedisUrl.parse,
    opened,
    RedisSection,
)
