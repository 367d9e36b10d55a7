"""Consumers of NATS JetStream, by the monitoring endpoint of a server (2.9 and later).

``/jsz`` reports each stream, its consumers, and their counts at that instant, so a lag is exact. Ages follow from our
own history of sequence numbers, or from the server's times of the first and last message (agent/queues/nats_ages.py).
Of a cluster, each server reports the consumers that it leads: other members' counts differ.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import nan
from urllib.parse import quote

from agent.common.address import peer_bytes
from agent.common.clocks import boot_ns
from agent.common.credentials import Password, password_keys
from agent.common.fairness import UpperBound
from agent.common.http_get import MAX_BODY_BYTES, HttpDown
from agent.common.settings import private_text, setting
from agent.queues.catalogue import Broker
from agent.queues.gone import Gone
from agent.queues.http_server import HttpServer, HttpUrl, http_url, names_of, port_number
from agent.queues.leaders import Leaders
from agent.queues.nats_ages import SeenSequences, message_age, pending_age, undelivered_age
from agent.queues.nats_report import (
    NatsConsumer,
    NatsReport,
    NatsServer,
    NatsStream,
    NotNats,
    read_report,
    read_server,
)
from agent.queues.patterns import is_chosen, is_pattern
from agent.queues.queue import Row
from agent.queues.redis_reading import shown
from agent.queues.timers import QueueTimer, ServerTimers, TimedQueue, elsewhere

TIMEOUT_S = 0.8  # of a poll, with all its requests
MAX_CONSUMERS = 2048
#: Interval between two requests for what changes seldom: the server's name and port, its memory and clients.
SELDOM_NS = 10_000_000_000
LOGIN_RETRY_NS = 10_000_000_000  # a refused login (of a proxy) is not repeated at each poll
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "queues",
        "consumers of a NATS server",
        MAX_CONSUMERS,
        "not watched",
        "`queue_lag.reason`",
        setting="`?streams=` in the URL",
    ),
    UpperBound(
        "queues",
        "report of a NATS server",
        MAX_BODY_BYTES >> 20,
        "its consumers have `status` down",
        "`queue_lag.reason`",
        "MiB",
    ),
)
#: The limit is of accounts: without one, the server leaves out those after 1,024, before 2.12 others at each poll.
_REPORT = "/jsz?accounts=true&streams=true&consumers=true&config=true&limit=1000000"
_EXAMPLE = "http://host:8222?streams=ORDERS,mail*"
_USUAL_ACCOUNT = "$G"
_MOST_NS = 1 << 63
_MOST = (1 << 63) - 1

Key = tuple[bytes, bytes]  #: stream and consumer, as the row has them
_LEADERS = Leaders()


@dataclass(frozen=True)
class NatsUrl(HttpUrl):
    """``http[s]://[user:password@]host[:8222][?streams=a,b*&client=4222]``: the monitoring endpoint. client: the port
    of clients, where the server does not report the one that they use.
    """

    port: int = 8222
    streams: tuple[str, ...] = ()
    client_port: int | None = None

    @classmethod
    def parse(cls, url: str) -> NatsUrl:
        """Raises AgentError for an invalid URL; the message leaves the password out."""
        found = http_url(url, "NATS", _EXAMPLE, cls.port, {"streams": names_of, "client": port_number})
        client = found.pop("client", None)
        return cls(**found, client_port=client)


@dataclass(frozen=True)
class NatsMonitoring(HttpServer):
    """A server as a section of the settings."""

    TITLE = "NATS"

    url: NatsUrl = setting("", private_text(_EXAMPLE, NatsUrl.parse), "its monitoring endpoint")
    password: Password = setting(Password(), password_keys("TICKSCOPE_NATS_"))


@dataclass
class _Known:
    """What is kept of one consumer between polls. read: messages that were delivered, each once. asked_ns: when one of
    its subscribers last asked for messages, as far as polls can show. doubted: it counted more than the stream has.
    removed: messages that it passed over, since they were no longer there. unread: those, and those that it will pass
    over, without the ones at the first poll; None if that cannot be told from messages that it is not to get.
    """

    delivered: SeenSequences = field(default_factory=SeenSequences)
    stream_seq: int | None = None
    deliveries: int = 0
    waits: int = 0
    read: int = 0
    asked_ns: int = 0
    doubted: bool = False
    durable: bool = False
    removed: int = 0
    unread: int | None = None
    _at_first: int = 0

    def update(self, now: NatsConsumer, stream: NatsStream, from_ns: int, to_ns: int) -> None:
        # The stream's last number was read after the counts of the previous poll, so those cannot be newer than it.
        before = self.stream_seq
        was_too_many = before is not None and self.waits > max(0, stream.last - before)
        self.doubted = was_too_many and now.waits > max(0, stream.last - now.delivered)
        if before is None or now.delivered < before or now.deliveries < self.deliveries:
            self.read, self.removed, self.unread = now.delivered, 0, None
        else:  # less than both: messages that were skipped, and messages that were delivered again
            self.read += min(now.delivered - before, now.deliveries - self.deliveries)
            if stream.trims and not now.filtered:
                self.removed += max(0, now.delivered - before - (now.deliveries - self.deliveries))
        if stream.trims and not stream.replaces and not now.filtered:
            removed = self.passed_over(stream, now)
            if self.unread is None:
                self.unread, self._at_first = 0, removed
            self.unread = min(_MOST, max(self.unread, removed - self._at_first))
        if before != now.delivered or now.requests or not self.asked_ns:
            self.asked_ns = to_ns
        self.stream_seq, self.deliveries, self.waits = now.delivered, now.deliveries, now.waits
        self.durable = now.durable
        self.delivered.add(from_ns, to_ns, now.delivered)

    def passed_over(self, stream: NatsStream, now: NatsConsumer) -> int:
        """Messages that were removed before they were delivered to it."""
        return self.removed + max(0, stream.first - now.delivered - 1)


class NatsConsumers(TimedQueue):
    """One NATS server. ``poll`` returns one row per consumer, one row for the server if it has none, or ``down`` rows
    if it does not answer.
    """

    def __init__(self, server: NatsUrl | NatsMonitoring, timeout_s: float = TIMEOUT_S) -> None:
        self._server = server if isinstance(server, NatsMonitoring) else NatsMonitoring(server)
        self._url = self._server.url
        self.name = f"nats {self._url.server}"
        self._timeout_s = timeout_s
        self._client = self._url.client(self._server)
        self._about: NatsServer | None = None
        self._cluster = ""
        self._seldom_ns = self._not_before_ns = 0
        self._refusal = ""
        self._known: dict[Key, _Known] = {}
        self._appended: dict[bytes, SeenSequences] = {}
        self._due: list[QueueTimer] | None = None
        self._gone = Gone([name.encode() for name in self._url.streams if not is_pattern(name)])
        self._missed: set[Key] = set()  # not in the last report; the server was healthy after it
        self._untaken: dict[bytes, int] = {}  # stream -> its first message, if no consumer was to get it

    def poll(self) -> list[Row]:
        """One request, every 10 s a second one. Raises nothing, whatever the server answers."""
        now_ns, self._due = boot_ns(), None
        try:
            if now_ns < self._not_before_ns:
                raise HttpDown(self._refusal, "login")
            rows = self._poll(now_ns, time.monotonic() + self._timeout_s)
        except HttpDown as error:
            if error.failure == "login" and now_ns >= self._not_before_ns:
                self._not_before_ns, self._refusal = now_ns + LOGIN_RETRY_NS, str(error)
            not_http = "is not HTTP" in error.reason
            rows = self._down(f"{error}{': name the monitoring port, http_port' * not_http}", error.failure)
        except NotNats as error:
            self._client.close()
            rows = self._down(f"its answer is not that of a NATS server's monitoring port: {error}")
        common: dict[str, object] = {"peer": self._peer()}
        if self._cluster:
            common["cluster"] = self._cluster
        return [{**common, **row} for row in rows]

    def timers(self) -> ServerTimers | None:
        if self._due is None or self._about is None or self._client.peer is None:
            return None
        return ServerTimers(self._due, self._about.version, elsewhere(self._client.peer[0]))

    def close(self) -> None:
        self._client.close()

    def _peer(self) -> bytes | None:
        """Where clients connect, not where we do."""
        if self._client.peer is None:
            return None
        found = 4222 if self._about is None else self._about.port
        return peer_bytes(self._client.peer[0], self._url.client_port or found)

    def _poll(self, now_ns: int, deadline_s: float) -> list[Row]:
        login = self._server.login()
        if self._about is None or now_ns >= self._seldom_ns:
            self._about = read_server(self._client.get("/varz", deadline_s, login=login))
            self._seldom_ns = now_ns + SELDOM_NS
        from_ns = boot_ns()
        answer = self._client.get(_REPORT, deadline_s, login=login)
        to_ns = boot_ns()
        report = read_report(answer)
        if report.server_id != self._about.server_id:  # it was started again
            self._missed.clear()
            self._about = read_server(self._client.get("/varz", deadline_s, login=login))
        self._cluster = self._about.cluster or report.domain
        common: dict[str, object] = {
            "memory_bytes": self._about.memory_bytes,
            "clients": self._about.clients,
            "clients_limit": self._about.clients_limit,
        }
        due: list[QueueTimer] = []
        rows: list[Row] = [{**common, **row} for row in self._rows(report, from_ns, to_ns, due, deadline_s)]
        self._due = due
        return rows or [{**common, "status": "ok", "reason": "" if report.enabled else "JetStream is not enabled"}]

    def _rows(
        self, report: NatsReport, from_ns: int, to_ns: int, due: list[QueueTimer], deadline_s: float
    ) -> Iterator[Row]:
        """due: takes the timers of the same streams and consumers."""
        named = [(_stream_names(stream), stream) for stream in report.streams]
        named = [
            (names, stream)
            for names, stream in named
            if any(is_chosen(name.decode(errors="replace"), self._url.streams) for name in names)
        ]
        chosen = [(names[0], stream) for names, stream in named]
        self._appended = {name: self._appended.get(name) or SeenSequences() for name, _ in chosen}
        before, self._known = self._known, {}
        was_untaken, self._untaken = self._untaken, {}
        left_out = 0
        for name, stream in chosen:
            self._appended[name].add(from_ns, to_ns, stream.last)
            if self._leads(stream.leader):
                due.extend(_of_stream(name, stream, report.now_ns))
            for consumer in stream.consumers:
                key = name, shown(consumer.name.encode(errors="replace"))
                if not self._leads(consumer.leader or stream.leader):
                    continue
                if len(self._known) == MAX_CONSUMERS:
                    left_out += 1
                    continue
                known = self._known[key] = before.get(key) or _Known()
                known.update(consumer, stream, from_ns, to_ns)
                due.extend(_of_consumer(key, consumer))
                yield self._row(key, consumer, stream, report.now_ns, (from_ns + to_ns) // 2)
            if self._is_untaken(stream):
                self._untaken[name] = stream.first
            if stream.consumers:
                # It may have been acknowledged after the stream's figures were read. Then it is gone at the next poll.
                shows = name in self._untaken and was_untaken.get(name) == stream.first
            else:
                shows = name in self._untaken or (stream.work and self._leads(stream.leader))
            if shows and len(self._known) == MAX_CONSUMERS:
                left_out += 1
            elif shows:
                self._known[name, b""] = before.get((name, b"")) or _Known(durable=True)
                yield self._unconsumed(name, stream, report.now_ns, (from_ns + to_ns) // 2)
        yield from self._gone_rows(before, dict(chosen), to_ns, deadline_s)
        if left_out:
            yield {"reason": f"{left_out} more than {MAX_CONSUMERS} consumers are not watched: choose with ?streams="}
        for missing in self._missing(name for names, _ in named for name in names):
            yield {"destination": missing, "reason": "the server has no such stream"}

    def _missing(self, names: Iterable[bytes]) -> list[bytes]:
        """The streams that the URL names and the server does not have; those with deleted consumers have rows."""
        known = {*names, *self._gone.streams, *(stream for stream, _ in self._known)}
        return [shown(name) for name in sorted(self._gone.named - known)]

    def _leads(self, leader: str | None) -> bool:
        """Whether this server leads it, as the only one outside a cluster."""
        assert self._about is not None
        return not leader or leader == self._about.name

    def _is_untaken(self, stream: NatsStream) -> bool:
        """Whether the first message stays until a consumer has it, and none of them waits for it or has it. Other
        servers' consumers, and what has no leader, are not known well enough.
        """
        return (
            not stream.trims
            and stream.messages > 0
            and stream.leader != ""
            and self._leads(stream.leader)
            and all(
                one.leader != ""
                and self._leads(one.leader or stream.leader)
                and (not one.waits or one.delivered >= stream.first)
                and (not one.pending or one.floor >= stream.first)
                for one in stream.consumers
            )
        )

    def _gone_rows(
        self, before: Mapping[Key, _Known], streams: Mapping[bytes, NatsStream], now_ns: int, deadline_s: float
    ) -> list[Row]:
        """Consumers that were deleted, and work queues without any. In a cluster another server may have become their
        leader. A server that starts reports less than it has, so a report counts if it was healthy before.
        """
        for key in self._known:
            self._gone.back(key)
        _LEADERS.lead(self._cluster, self._known, self, now_ns)
        missing: dict[Key, str] = {}
        for key, known in before.items():
            if key in self._known or _LEADERS.elsewhere(self._cluster, key, self, now_ns):
                continue
            stream = streams.get(key[0])
            if stream is None:
                missing[key] = "the stream was deleted"
            elif key[1] and all(shown(one.name.encode(errors="replace")) != key[1] for one in stream.consumers):
                missing[key] = "the consumer was deleted" if known.durable else "the ephemeral consumer ended"
        doubtful = missing.keys() - self._missed
        self._missed = set()
        if doubtful:
            self._known |= {key: before[key] for key in doubtful}
            if self._healthy(deadline_s):
                self._missed = doubtful
        for key, why in missing.items():
            if key in doubtful:
                continue
            self._gone.add(key, why, now_ns)
            _LEADERS.forget(self._cluster, key)
        for moved in [key for key in self._gone if _LEADERS.elsewhere(self._cluster, key, self, now_ns)]:
            self._gone.back(moved)
        return self._gone.rows(now_ns)

    def _healthy(self, deadline_s: float) -> bool:
        """Whether it has read all its streams since it was started."""
        try:
            return b'"ok"' in self._client.get("/healthz", deadline_s, login=self._server.login())
        except HttpDown:
            return False

    def _row(self, key: Key, consumer: NatsConsumer, stream: NatsStream, server_ns: int, now_ns: int) -> Row:
        known = self._known[key]
        row: dict[str, object] = {
            "destination": key[0],
            "consumer_group": key[1],
            "lag_messages": consumer.waits,
            "exact": True,
            "pending": consumer.pending,
            "redelivered": _redelivered(consumer),
            "consumers": 0 if consumer.push and not consumer.bound else None,
            "removed": known.unread,
            "acked": known.read - consumer.pending,
            "position": consumer.delivered,
        }
        if consumer.leader == "" or (consumer.leader is None and stream.leader == ""):
            why = "it has no leader, so its counts may be old"
            return {**row, "lag_messages": None, "exact": None, "inexact_reason": why, "acked": None, "position": None}
        notes = list(self._notes(known, consumer, stream))
        if known.doubted:
            row |= {"lag_messages": max(0, stream.last - consumer.delivered), "exact": False}
        if consumer.filtered:
            row["in_per_s"] = nan
        else:
            row["added"] = stream.last
        full = 0 < consumer.most_pending <= consumer.pending
        if not consumer.push and not full and consumer.paused_s is None:
            row["asked_s"] = (now_ns - known.asked_ns) / 1e9
        row |= self._ages(key, consumer, stream, server_ns, now_ns, notes)
        row["room"] = _room(stream, None if consumer.filtered else stream.last - consumer.delivered)
        row["inexact_reason"] = "; ".join(notes)
        if consumer.paused_s is not None:
            row["reason"] = f"paused for another {consumer.paused_s:.0f} s"
        elif full and consumer.waits:
            row["reason"] = f"max_ack_pending ({consumer.most_pending}) is reached: delivery waits for acknowledgements"
        return row

    def _notes(self, known: _Known, consumer: NatsConsumer, stream: NatsStream) -> Iterator[str]:
        if known.doubted:
            yield f"upper bound: the server counts {consumer.waits}, more than there are"
        deleted = known.passed_over(stream, consumer) if stream.trims and not consumer.filtered else known.removed
        if deleted:
            yield f"{deleted} messages were deleted before they were delivered"
        given_up = consumer.redelivered - consumer.pending  # the server keeps counting these
        if consumer.most_deliveries and given_up > 0:
            yield f"at least {given_up} messages reached max_deliver, or were deleted"

    def _ages(
        self,
        key: Key,
        consumer: NatsConsumer,
        stream: NatsStream,
        server_ns: int,
        now_ns: int,
        notes: list[str],
    ) -> dict[str, object]:
        """The columns of time. Bounds that are far apart are texts of ``notes``, and the lower one a column."""
        appended, delivered = self._appended[key[0]], self._known[key].delivered
        row: dict[str, object] = {}
        if consumer.waits == 0:
            row |= {"lag_s": 0.0, "lag_error_s": 0.0}
        elif stream.messages and not self._known[key].doubted:
            age = undelivered_age(consumer, stream, server_ns, appended, now_ns)
            row |= age.columns()
            if not age.close:
                notes.append(f"age: {age.text()}")
            if stream.kept_s and age.close:
                row |= {"kept_s": stream.kept_s, "retention_left_s": stream.kept_s - age.age_s}
        if consumer.pending:
            age = pending_age(consumer, stream, server_ns, appended, delivered, now_ns)
            row["oldest_pending_s"] = age.age_s
            if not age.close:
                notes.append(f"pending for {age.text()}")
        return row

    def _down(self, reason: str, failure: str = "other") -> list[Row]:
        """One row for each known consumer, so that its series continues; else one for the server."""
        self._seldom_ns = 0
        row = {"status": "down", "reason": f"{self.name}: {reason}", "failure": failure}
        now_ns = boot_ns()
        known = [key for key in self._known if not _LEADERS.elsewhere(self._cluster, key, self, now_ns)]
        queues = [{"destination": stream} | ({"consumer_group": name} if name else {}) for stream, name in known]
        return [{**row, **one} for one in queues] or [row]

    def _unconsumed(self, name: bytes, stream: NatsStream, server_ns: int, now_ns: int) -> Row:
        """What a stream holds and no consumer is to get: all of a work queue without consumers."""
        row: dict[str, object] = {
            "destination": name,
            "lag_messages": stream.messages,
            "exact": True,
            "pending": 0,
            "consumers": 0,
            "added": stream.last,
            "position": 0,
            "room": _room(stream, stream.messages),
        }
        if stream.consumers:
            each = [one.waits + one.pending for one in stream.consumers]
            most = sum(each) if stream.work else max(each)  # else several consumers may wait for the same messages
            row |= {
                "lag_messages": max(1, stream.messages - most),
                "lag_at_least": max(1, stream.messages - sum(each)),
                "exact": False,
                "added": None,
                "in_per_s": nan,
                "reason": "no consumer is to get these messages: see filters, max_deliver",
            }
        if not stream.messages:
            return {**row, "lag_s": 0.0, "lag_error_s": 0.0}
        age = message_age(stream.first, stream, server_ns, self._appended[name].age(stream.first, now_ns))
        row |= age.columns()
        if not age.close:
            row["inexact_reason"] = f"age: {age.text()}"
        elif stream.kept_s:
            row |= {"kept_s": stream.kept_s, "retention_left_s": stream.kept_s - age.age_s}
        return row


def _of_stream(name: bytes, stream: NatsStream, server_ns: int) -> Iterator[QueueTimer]:
    """When its messages are deleted for their age, and its window of deduplication if it may hold ids."""
    if stream.kept_s and stream.messages:
        due_ns = stream.first_ns + round(stream.kept_s * 1e9)
        if stream.first_ns and due_ns < _MOST_NS:
            yield QueueTimer(name, b"", "retention", due_wall_ns=due_ns, timers=stream.messages)
        else:
            yield QueueTimer(name, b"", "retention", unknown="the age of its first message", timers=stream.messages)
    if stream.window_s and stream.last_ns and server_ns < stream.last_ns + stream.window_s * 1e9:
        why = f"duplicate_window {stream.window_s:g} s; the server does not report its ids"
        yield QueueTimer(name, b"", "dedup", unknown=why)


def _of_consumer(key: Key, consumer: NatsConsumer) -> Iterator[QueueTimer]:
    if consumer.pending:
        times = " ".join(f"{one:g}" for one in consumer.ack_s)
        what = f"BackOff {times} s" if len(consumer.ack_s) > 1 else f"AckWait {times} s"
        why = f"{what}; the server does not report when"
        yield QueueTimer(key[0], key[1], "redelivery", timers=consumer.pending, unknown=why)


def _room(stream: NatsStream, behind: int | None) -> tuple[int, int, str] | None:
    """The limit of the stream that is reached first: what is used, of how much, and what happens then. behind: messages
    after the last one that a consumer was given, None if that is not where it reads on; what it has read is deleted
    without harm, and so is what only others have not, if the stream deletes.
    """
    kept = stream.messages
    if not (stream.work or stream.refuses):  # of a work queue, all messages are for its one consumer
        if behind is None and stream.trims:
            return None
        kept = kept if behind is None else max(0, min(behind, kept))
    used, most = kept, stream.most_messages
    if stream.most_bytes:  # one unit for both, since the nearer limit may be now this one, now that one
        used = used * stream.most_bytes // most if most else 0
        used, most = max(used, stream.bytes_used * kept // max(1, stream.messages)), stream.most_bytes
    return (used, most, "stream full" if stream.refuses else "deleted") if most else None


def _redelivered(consumer: NatsConsumer) -> int | None:
    """The server keeps counting messages that were purged."""
    if consumer.pending == 0:
        return 0
    return consumer.redelivered if consumer.redelivered <= consumer.pending else None


def _stream_names(stream: NatsStream) -> list[bytes]:
    """``ACCOUNT/STREAM``, with % and / of the account as in a URL; of the usual account the stream's name alone. Of an
    account with a tag first ``TAG:ID/STREAM``, the name of its rows: it must not depend on the other accounts.
    """
    if stream.account == _USUAL_ACCOUNT:
        return [shown(stream.name.encode(errors="replace"))]
    accounts = [f"{stream.account}:{stream.account_id}"] * bool(stream.account_id) + [stream.account]
    quoted = [quote(one, safe=" !$&()*+,:;=@[]", errors="replace") for one in accounts]
    return [shown(f"{one}/{stream.name}".encode(errors="replace")) for one in quoted]


BROKER = Broker(
    "nats",
    "NATS JetStream",
    "consumers of streams: messages that wait, unacknowledged and redelivered ones, ages",
    _EXAMPLE,
    "its monitoring endpoint; no streams: all",
    NatsUrl.parse,
    NatsConsumers,
    NatsMonitoring,
)
