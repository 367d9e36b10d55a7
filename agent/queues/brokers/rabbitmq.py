"""Queues of a RabbitMQ node (3.10 and later), by its Prometheus endpoint, and by its management API if it is set.

Counts come from ``/metrics/detailed`` of rabbitmq_prometheus, because the management API of 4.0 leaves out the counts
of a new quorum queue for seconds. A queue that the node does not list is unknown, not empty.

A queue's counts are those of its last statistics, which the server makes every 5 s by default; channels count messages
at once. So ``lag_messages`` has bounds (agent/queues/rabbitmq_ready.py), rates are those of the channels, and ``lag_s``
is the time since the channels had published all but the messages that are ready.

The management API adds what the metrics lack: which queues are delay queues, where consumers are and how many messages
they may hold, blocked publishers, and the port of AMQP.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf, isnan, nan
from urllib.parse import quote

from agent.common.address import peer_bytes
from agent.common.clocks import boot_ns
from agent.common.credentials import Password, password_keys
from agent.common.fairness import UpperBound
from agent.common.http_get import HttpDown
from agent.common.settings import private_text, setting
from agent.queues.age_bounds import AgeBounds, age_since
from agent.queues.asking import Asking
from agent.queues.catalogue import Broker
from agent.queues.end_offsets import EndOffsets
from agent.queues.gone import Gone
from agent.queues.http_server import HttpServer, HttpUrl, http_url, names_of, port_number
from agent.queues.judged import UNANSWERED
from agent.queues.leaders import Leaders
from agent.queues.listing import listed
from agent.queues.patterns import is_chosen, is_pattern
from agent.queues.prometheus_text import MetricSample, NotPrometheus, metric_samples, whole_number
from agent.queues.queue import Row
from agent.queues.rabbitmq_management import RETRY_NS, Management
from agent.queues.rabbitmq_ready import STATISTICS_NS, ChannelTotals, ReadyBounds
from agent.queues.redis_reading import shown
from agent.queues.timers import QueueTimer, ServerTimers, TimedQueue, elsewhere

TIMEOUT_S = 0.8  # of a poll, with all its requests
MAX_QUEUES = 1024
#: Interval between two requests for what changes seldom, in turns alarms and the first message of each queue.
SELDOM_NS = 2_500_000_000
LOGIN_RETRY_NS = 10_000_000_000  # a refused login is not repeated at each poll: servers log and count refusals
#: Statistics of channels are left out for this long if, so many polls in a row, an answer with them took half of a
#: poll's time, and the next one without them did not. Lost packets and a server that is stopped delay both.
TOO_SLOW_NS, _SLOW_POLLS = 60_000_000_000, 3
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "queues", "RabbitMQ queues", MAX_QUEUES, "not watched", "`queue_lag.reason`", setting="`?queues=` in the URL"
    ),
)

_LEADERS = Leaders()
_NODES: dict[str, list[RabbitQueues]] = {}  #: that are watched, by the identity of their cluster
_DETAILED = "rabbitmq_detailed_"
_FAMILIES = (
    *("queue_coarse_metrics", "queue_consumer_count", "node_coarse_metrics", "node_metrics"),
    "connection_churn_metrics",
    "stream_consumer_metrics",  # 4.0; 3.10 reports no such family
)
#: With the first message of each queue, and much else.
_HEADS = "queue_metrics"
#: Families with the messages that were published and delivered, by queue (newer versions) or by channel and queue.
_BY_QUEUE = ("queue_delivery_metrics", "queue_exchange_metrics")
_BY_CHANNEL = ("channel_queue_metrics", "channel_queue_exchange_metrics")
_HAS_BY_QUEUE = f"# TYPE {_DETAILED}queue_messages_acked_total".encode()
_READY, _UNACKED, _HAS_CONSUMERS = _FIGURES = ("queue_messages_ready", "queue_messages_unacked", "queue_consumers")
#: Work of the queue's process: it changes with each of its statistics; 0: a stream, which has no such process.
_WORK = "queue_process_reductions_total"
#: Of a stream: messages that were not yet sent to the slowest of its consumers by the stream protocol that are
#: connected to this node, also if another one leads the stream; missing without such a consumer.
_OFFSET_LAG = "stream_consumer_max_offset_lag"
_GAUGES = {f"{_DETAILED}{name}".encode(): name for name in (*_FIGURES, _WORK, _OFFSET_LAG)}
_NODE = {
    f"{_DETAILED}process_resident_memory_bytes".encode(): "memory_bytes",
    f"{_DETAILED}resident_memory_limit_bytes".encode(): "memory_limit_bytes",
}
_INFO, _HEAD, _CAPACITY = (
    f"{_DETAILED}{name}".encode() for name in ("queue_info", "queue_head_message_timestamp", "queue_consumer_capacity")
)
_IDENTITY = b"rabbitmq_identity_info"
#: Two clusters may have one name, as brokers in containers with one host name have by default.
_IDENTITY_LABELS = b"rabbitmq_cluster", b"rabbitmq_cluster_permanent_id"
#: They only grow while the node runs.
_SINCE_START = _UPTIME, _CLOSED, _DELETED = tuple(
    f"{_DETAILED}{name}".encode() for name in ("erlang_uptime_seconds", "channels_closed_total", "queues_deleted_total")
)
#: 0 while a virtual host does not run on this node: then none of its queues is listed. Asked for if queues are missing.
_VHOSTS, _RUNS = "vhost_status", b"rabbitmq_cluster_vhost_status"
#: Counters -> the totals to which they add.
_COUNTERS = {
    f"{_DETAILED}{prefix}_{name}".encode(): totals
    for prefix, name, totals in (
        ("queue", "messages_published_total", ("published",)),
        ("queue_exchange", "messages_published_total", ("published",)),
        *(
            (prefix, name, totals)
            for prefix in ("channel", "queue")
            for name, totals in (
                ("messages_acked_total", ("acked",)),
                ("messages_delivered_ack_total", ("delivered",)),
                ("get_ack_total", ("delivered",)),
                ("messages_delivered_total", ("delivered", "acked")),  # in automatic mode: done when delivered
                ("get_total", ("delivered", "acked")),
                ("messages_redelivered_total", ("redelivered",)),
            )
        ),
    )
}
_WANTED = frozenset((*_GAUGES, *_NODE, *_COUNTERS, _INFO, _HEAD, _CAPACITY, _IDENTITY, *_SINCE_START, _RUNS))
#: The labels that such a metric may have. A name that RabbitMQ 3.10 does not escape may look like more labels.
_QUEUE = frozenset((b"vhost", b"queue"))
_ANY = _QUEUE | {b"channel", b"queue_vhost", b"exchange_vhost", b"exchange", b"queue_type", b"membership"}
_LABELS = dict.fromkeys((*_GAUGES, _HEAD, _CAPACITY), _QUEUE)
_ALARMS = {
    b"rabbitmq_alarms_memory_used_watermark": "MEMORY_ALARM",
    b"rabbitmq_alarms_free_disk_space_watermark": "DISK_ALARM",
}
_ALARM_WORDS = {"MEMORY_ALARM": "memory", "DISK_ALARM": "disk"}
_CONNECTIONS, _BUILD = b"rabbitmq_connections", b"rabbitmq_build_info"
#: Of another node of the cluster, or of a command that asks this node.
_OTHER, _COMMAND = b"erlang_vm_dist_node_state", b"rabbitmqcli"
_NODE_WANTED = frozenset((*_ALARMS, _CONNECTIONS, _BUILD, _OTHER))
_MOST = (1 << 63) - 1
#: A queue has another source of messages if this many more are in it, or left it, than channels published, in so many
#: statistics in a row.
_UNCOUNTED, _IN_A_ROW = 50, 3

#: Queues of Celery for tasks with a countdown, which are delay queues.
_DELAYS = re.compile(rb"celery_delayed_[0-9]+")

_BY_COUNTS = "by statistics and channels' counts"
Name = tuple[bytes, bytes]  #: virtual host, queue


_EXAMPLE = "http://host:15692?queues=orders,mail*&management=15672"


@dataclass(frozen=True)
class RabbitUrl(HttpUrl):
    """``http[s]://[user:password@]host[:15692][?queues=a,b*&management=15672&amqp=5672]``."""

    port: int = 15692
    queues: tuple[str, ...] = ()
    management: int | None = None
    amqp: int | None = None

    @classmethod
    def parse(cls, url: str) -> RabbitUrl:
        """Raises AgentError for an invalid URL; the message leaves the password out."""
        options = {"queues": names_of, "management": port_number, "amqp": port_number}
        return cls(**http_url(url, "RabbitMQ", _EXAMPLE, cls.port, options))


@dataclass(frozen=True)
class RabbitServer(HttpServer):
    """A server as a section of the settings."""

    TITLE = "RabbitMQ"

    url: RabbitUrl = setting(
        "", private_text("http://host:15692?queues=orders&management=15672", RabbitUrl.parse), "its address"
    )
    password: Password = setting(Password(), password_keys("TICKSCOPE_RABBITMQ_"))


@dataclass
class _Totals:
    """Messages of a queue since the first poll, as counted by channels."""

    published: int = 0
    delivered: int = 0
    acked: int = 0
    redelivered: int = 0

    @property
    def delivered_first(self) -> int:
        return self.delivered - self.redelivered

    @property
    def progress(self) -> tuple[int, int]:
        """How far the queue was read: not by messages that are given back and delivered again."""
        return self.delivered_first, self.acked


class _Counters:
    """Running totals of queues from the counters of channels, which begin at 0 and end with the channel."""

    def __init__(self) -> None:
        self._last: dict[tuple[bytes, bytes], int] = {}
        self._begun = False
        self.totals: dict[Name, _Totals] = {}
        self.publishing: set[Name] = set()  # queues into which a channel has published
        self.consuming: set[Name] = set()  # queues from which a channel has taken messages

    def forget(self) -> None:
        """The next values are a new start: counts of the time between are unknown."""
        self._last, self._begun = {}, False

    def take(self, samples: Iterable[tuple[Name, MetricSample, int]], old: Collection[Name] = ()) -> None:
        """old: queues that are not new, although they were not counted before."""
        now: dict[tuple[bytes, bytes], int] = {}
        for name, sample, count in samples:
            key = sample.name, sample.raw
            now[key] = count
            before = self._last.get(key, 0 if self._begun and name not in old else count)
            more = count - before if count >= before else count
            totals = self.totals.setdefault(name, _Totals())
            for total in _COUNTERS[sample.name]:
                setattr(totals, total, getattr(totals, total) + more)
            (self.publishing if _COUNTERS[sample.name] == ("published",) else self.consuming).add(name)
        self._last, self._begun = now, True

    def keep(self, names: set[Name]) -> None:
        """Forgets the queues that are gone."""
        self.totals = {name: totals for name, totals in self.totals.items() if name in names}
        self.publishing &= names
        self.consuming &= names


@dataclass
class _Queue:
    """One queue as of this poll, and what is kept of it between polls. seen: totals when the present statistics were
    first seen. taken_ns: the last delivery. redelivered: since the previous poll. lost: at least so many messages that
    channels published since the queue was empty were refused, dropped, expired or purged. consumed: it has had a
    consumer.
    """

    vhost: bytes
    name: bytes
    gauges: dict[str, int] = field(default_factory=dict)
    totals: _Totals = field(default_factory=_Totals)
    seen: _Totals = field(default_factory=_Totals)
    taken_ns: int = 0
    redelivered: int = 0
    arrivals: EndOffsets = field(default_factory=EndOffsets)
    bounds: ReadyBounds = field(default_factory=ReadyBounds)
    least_balance: int | None = None
    most_balance: int | None = None
    falls: int = 0
    lost: int = 0
    surpluses: int = 0
    uncounted: bool = False
    stream: bool = False
    consumed: bool = False

    def update(self, gauges: dict[str, int], totals: _Totals, now_ns: int, off_ns: int) -> None:
        """The answer was made at most ``off_ns`` before or after ``now_ns``."""
        before = self.totals
        if totals.delivered != before.delivered or not self.gauges:
            self.taken_ns = now_ns
        if gauges != self.gauges:
            self.seen = replace(totals)
            if self.gauges:  # the first statistics may be old
                self._balance(gauges, totals, before)
        # The totals fall if another node leaves the cluster.
        self.redelivered = max(0, totals.redelivered - before.redelivered) if self.gauges else 0
        statistic = gauges.get(_READY) if gauges != self.gauges else None
        self.gauges, self.totals = gauges, replace(totals)
        self.consumed |= bool(gauges.get(_HAS_CONSUMERS))
        self.bounds.poll(self.counted, statistic, now_ns)
        self.arrivals.add(now_ns, totals.published, off_ns)

    def _balance(self, gauges: dict[str, int], now: _Totals, before: _Totals) -> None:
        """Finds out whether messages come from elsewhere, such as a dead-letter exchange, or are lost."""
        ready, unacked = gauges.get(_READY), gauges.get(_UNACKED)
        if ready is None or unacked is None:
            return
        balance = ready + unacked + now.acked - now.published
        if self.least_balance is None or balance < self.least_balance:
            self.least_balance = balance
        flow = now.published - before.published + now.acked - before.acked
        if self.most_balance is None or balance > self.most_balance or not ready:
            self.most_balance = balance
        fell = self.most_balance - balance - 2 * flow
        self.falls = self.falls + 1 if fell > 0 else 0
        self.lost = 0 if not ready else max(self.lost, fell) if self.falls >= _IN_A_ROW else self.lost
        more = balance > self.least_balance + _UNCOUNTED + 2 * flow
        self.surpluses = self.surpluses + 1 if more else 0
        self.uncounted |= self.surpluses >= _IN_A_ROW

    @property
    def counted(self) -> ChannelTotals:
        return ChannelTotals(self.totals.published, self.totals.delivered_first)

    def least_age_s(self, behind: int, now_ns: int) -> float:
        """Age of the oldest of the ``behind`` messages that were published last, or less."""
        if behind <= 0:
            return 0.0
        arrived = self.arrivals.between(self.totals.published - behind)
        return max(0, now_ns - (arrived[1] if arrived else self.arrivals.first_ns)) / 1e9

    def ready_bounds(self) -> tuple[int, int] | None:
        """The least and the largest number of ready messages now; None if channels do not count all that leave: a
        restarted server says of messages that it delivers first that they are delivered again.
        """
        acked = self.totals.acked - self.seen.acked - self.gauges.get(_UNACKED, 0)
        return None if acked > self.totals.delivered_first - self.seen.delivered_first else self.bounds.now()

    def age(self, now_ns: int) -> AgeBounds | None:
        """Of the first ready message, by what channels published; None if it is not known how many are ready."""
        ready = self.ready_bounds()
        if ready is None:
            return None
        arrived = self.arrivals.between(self.totals.published - ready[1]) if ready[1] else (now_ns, now_ns)
        return AgeBounds(self.least_age_s(ready[0], now_ns), (now_ns - arrived[0]) / 1e9 if arrived else inf, True)

    def waiting(self) -> int | None:
        """Ready messages now, by what channels did since the statistics. One that is delivered again was given back
        before: neither changes the number. A restarted server says so of messages that it delivers first: these
        are seen when they are acknowledged.
        """
        ready, now, seen = self.gauges.get(_READY), self.totals, self.seen
        if ready is None:
            return None
        left = max(now.delivered_first - seen.delivered_first, now.acked - seen.acked - self.gauges.get(_UNACKED, 0))
        return max(0, ready + now.published - seen.published - left)


class _Answer:
    """An answer of ``/metrics/detailed``. known: labels of earlier ones. heads: times of first messages, None if
    it was not asked for them. capacities: of consumers, 0 to 1. since_start: uptime in seconds, channels that have
    closed, and queues that were deleted, since the node started, by name of the metric. stopped: virtual hosts that do
    not run. unread: lines that cannot be read. Raises NotPrometheus.
    """

    def __init__(self, answer: bytes, known: dict[bytes, dict[bytes, bytes]]) -> None:
        self.node: dict[str, object] = {}
        self.cluster = self.identity = ""
        self.gauges: dict[Name, dict[str, int]] = {}
        self.counted: list[tuple[Name, MetricSample, int]] = []
        self.streams: set[Name] = set()
        self.heads: dict[Name, int] | None = None
        self.capacities: dict[Name, float] = {}
        self.since_start: dict[bytes, float] = {}
        self.stopped: set[bytes] = set()
        self.unread: list[bytes] = []
        identified = False
        for sample in metric_samples(answer, _WANTED, self.unread, _COUNTERS, known):
            if sample.name in _NODE:
                self.node[_NODE[sample.name]] = whole_number(sample.value)
            elif sample.name in _SINCE_START:
                if sample.value >= 0:
                    self.since_start[sample.name] = sample.value
            elif sample.name == _RUNS:
                self.stopped |= {sample.labels.get(b"vhost", b"")} if sample.value == 0 else set()
            elif sample.name == _IDENTITY:
                identified = True
                named, its_id = (sample.labels.get(name, b"").decode(errors="replace") for name in _IDENTITY_LABELS)
                self.cluster, self.identity = named, f"{named} {its_id}".strip()
            else:
                self._take(sample)
        if self.unread and not identified:
            raise NotPrometheus(self.unread[0][:40].decode(errors="replace"))

    def _take(self, sample: MetricSample) -> None:
        """A sample of a queue."""
        vhost, queue = sample.labels.get(b"queue_vhost", sample.labels.get(b"vhost")), sample.labels.get(b"queue")
        if vhost is None or queue is None or not _LABELS.get(sample.name, _ANY).issuperset(sample.labels):
            self.unread.append(sample.raw)
            return
        name, count = (vhost, queue), whole_number(sample.value)
        if sample.name == _HEAD and self.heads is None:
            self.heads = {}
        if sample.name == _CAPACITY:
            if 0 <= sample.value <= 1:
                self.capacities[name] = sample.value
            return
        if count is None:
            return
        if sample.name == _HEAD:
            assert self.heads is not None
            self.heads[name] = count
        elif sample.name in _GAUGES:
            self.gauges.setdefault(name, {})[_GAUGES[sample.name]] = count
        elif sample.name != _INFO:
            self.counted.append((name, sample, count))
        elif sample.labels.get(b"queue_type") == b"rabbit_stream_queue":
            self.streams.add(name)


class RabbitQueues(TimedQueue):
    """One RabbitMQ node. ``poll`` returns one row per queue, one row for the node if it has none, or ``down`` rows if
    it does not answer.
    """

    def __init__(self, server: RabbitUrl | RabbitServer, timeout_s: float = TIMEOUT_S) -> None:
        self._server = server if isinstance(server, RabbitServer) else RabbitServer(server)
        url = self._server.url
        self.name = f"rabbitmq {url.server}"
        self._timeout_s = timeout_s
        self._client = url.client(self._server)
        self._management = (
            None if url.management is None else Management(url.client(self._server, url.management), url.amqp is None)
        )
        self._queues: dict[Name, _Queue] = {}
        self._hidden = ""  # what the API does not show of the queues that there were when it was asked
        self._gone = Gone(name.encode() for name in url.queues if not is_pattern(name))
        self._consumed = set[Name]()  # queues that have had a consumer, also if the node does not list them now
        #: Queues that the node no longer lists: since when, 0 for the next answer, and deletions before that.
        self._vanished: dict[Name, tuple[int, float | None]] = {}
        #: Queues of this node that were deleted since it started, as of the last two answers: an answer has a queue
        #: before it has the count. None: unknown, at first and after an outage.
        self._deleted: tuple[float | None, float | None] = None, None
        self._since_start: dict[bytes, float] = {}
        self._stopped: set[bytes] = set()  # virtual hosts
        self._clustered = False
        self._counters = _Counters()
        self._labels: dict[bytes, dict[bytes, bytes]] = {}
        self._families: tuple[str, ...] = _BY_QUEUE
        self._slow_until_ns = self._not_before_ns = self._seldom_ns = self._slow = self._unanswered = 0
        self._counting = True
        self._closed: float | None = None  # channels of this node, ever
        self._wanted: set[Name] = set()  # queues whose counts are kept
        self._offset_lags: dict[Name, int] = {}  # of streams
        self._refusal = ""
        self._cluster: str | None = None
        self._identity = ""  # of the cluster
        self._version = ""
        self._timers: list[QueueTimer] | None = None
        #: For alarms, connections and whether there are other nodes. A node that reports metrics of each object
        #: (``prometheus.return_per_object_metrics``) may take seconds for them.
        self._node = Asking()
        self._node_unknown = ""  # why; empty: they are known
        self._alarms: tuple[str, ...] = ()
        self._clients: int | None = None
        #: Times of first ready messages, set by their publishers, seconds since 1970, as of _heads_ns.
        self._heads: dict[Name, int] | None = None
        self._heads_ns = 0
        self._capacities: dict[Name, float] = {}
        self._heads_next = False

    def poll(self) -> list[Row]:
        """One request, every 2.5 s a second one and up to three to the management API. Raises nothing, whatever the
        server answers.
        """
        now_ns = boot_ns()
        self._timers = None
        try:
            if now_ns < self._not_before_ns:
                raise HttpDown(self._refusal, "login")
            rows = self._poll(now_ns, time.monotonic() + self._timeout_s)
            self._unanswered = 0
        except HttpDown as error:
            if error.failure == "login" and now_ns >= self._not_before_ns:
                self._not_before_ns, self._refusal = now_ns + LOGIN_RETRY_NS, str(error)
            rows = self._down(str(error), error.failure)
        except ValueError as error:
            self._client.close()
            rows = self._down(f"its answer is not of Prometheus's text format: {error}")
        common: dict[str, object] = {"peer": self._peer()}
        if self._cluster is not None:
            common["cluster"] = self._cluster
        return [{**common, **row} for row in rows]

    def timers(self) -> ServerTimers | None:
        """Of queues; those of messages with an ``expiration`` of their own are not known."""
        if self._timers is None:
            return None
        return ServerTimers(self._timers, self._version, elsewhere(self._client.peer[0] if self._client.peer else ""))

    def close(self) -> None:
        self._leave()
        self._client.close()
        if self._management is not None:
            self._management.close()

    def _peer(self) -> bytes | None:
        """Where clients connect, not where we do."""
        if self._client.peer is None:
            return None
        found = None if self._management is None else self._management.amqp_port
        return peer_bytes(self._client.peer[0], self._server.url.amqp or found or 5672)

    def _poll(self, now_ns: int, deadline_s: float) -> list[Row]:
        login = self._server.login()
        counting = self._counting = now_ns >= self._slow_until_ns and self._slow < _SLOW_POLLS
        asked_s, asked_ns = time.monotonic(), boot_ns()
        families = (*_FAMILIES, *((_VHOSTS,) if self._vanished else ()), *(self._families if counting else ()))
        try:
            answer = self._client.get(_detailed(*families), deadline_s, login=login)
        finally:
            self._note_slow(now_ns, counting, time.monotonic() - asked_s > self._timeout_s / 2)
        if counting and self._families is _BY_QUEUE and _HAS_BY_QUEUE not in answer:
            self._families = _BY_CHANNEL
        if not counting:
            self._counters.forget()
        answered_ns = boot_ns()
        node, problems = self._read(answer, (asked_ns + answered_ns) // 2, (answered_ns - asked_ns) // 2)
        if now_ns >= self._seldom_ns:
            self._seldom_ns = now_ns + SELDOM_NS
            self._ask_more(now_ns, deadline_s, login)
        if self._node_unknown:
            problems.append((b"", f"alarms are unknown: /metrics: {self._node_unknown}"))
        if now_ns < self._slow_until_ns:
            problems.append((b"", "rates are unknown: the server takes too long to report its channels"))
        if self._management is not None:
            before = self._management.queues
            self._management.ask(now_ns, deadline_s, login, bool(self._alarms))
            if self._management.queues is not before:
                self._hidden = self._management.unseen(self._queues)
            if problem := self._management.problem or self._hidden:
                problems.append((b"", f"management API: {problem}"))
            self._timers = [one for queue in self._queues.values() for one in self._due(queue, self._management)]
            if self._management.problem and not self._management.queues:
                why = f"management API: {self._management.problem}"
                self._timers = [QueueTimer(b"", b"", "ttl", unknown=why, where="classic queues")]
        gone = self._gone_rows(now_ns)
        problems += self._missing()
        alarms = None if self._node_unknown else ", ".join(f"{kind} 1" for kind in self._alarms)
        node |= {"clients": self._clients, "errors": alarms}
        if self._alarms:
            words = " and ".join(_ALARM_WORDS[kind] for kind in self._alarms)
            blocked = None if self._management is None else self._management.blocked
            node["reason"] = f"{words} alarm: publishers are blocked" + (f": {blocked} connections" if blocked else "")
        return [
            *({**node, **row} for row in self._rows(answered_ns)),
            *(() if self._queues else ({**node, "status": "ok"},)),
            *({**node, **row} for row in gone),
            *({**node, "destination": shown(what), "reason": why} for what, why in problems),
        ]

    def _note_slow(self, now_ns: int, counting: bool, slow: bool) -> None:
        """counting: whether statistics of channels were asked for; slow: whether the answer was slow, or none."""
        if counting:
            self._slow = self._slow + 1 if slow else 0
        elif now_ns >= self._slow_until_ns:  # the poll that shows what they cost
            self._slow = 0
            self._slow_until_ns = 0 if slow else now_ns + TOO_SLOW_NS

    def _ask_more(self, now_ns: int, deadline_s: float, login: tuple[str, str] | None) -> None:
        """In turns alarms and connections, and the first message of each queue. Without an answer they are unknown."""
        self._heads_next = not self._heads_next
        if self._heads_next:
            self._ask_node(now_ns, deadline_s, login)
            return
        try:
            self._heads, self._capacities = None, {}
            self._heads_ns = now_ns
            parsed = _Answer(self._client.get(_detailed(_HEADS), deadline_s, login=login), self._labels)
            self._heads = parsed.heads
            has = {name for name, gauges in parsed.gauges.items() if gauges.get(_HAS_CONSUMERS)}
            self._capacities = {name: parsed.capacities[name] for name in has & parsed.capacities.keys()}
        except (HttpDown, NotPrometheus):  # it has answered; this is more work for it, or much more to read
            self._client.close()

    def _ask_node(self, now_ns: int, deadline_s: float, login: tuple[str, str] | None) -> None:
        if not self._node.due(now_ns):
            return
        began_ns = boot_ns()
        try:
            self._read_node(self._client.get("/metrics", deadline_s, login=login))
            self._node.answered(now_ns, boot_ns() - began_ns)
            self._node_unknown = ""
        except (HttpDown, NotPrometheus) as error:
            self._client.close()
            self._node.refused(now_ns)
            self._node_unknown = str(error)
            self._alarms, self._clients = (), None

    def _read_node(self, answer: bytes) -> None:
        alarms, clients, clustered, version = list[str](), None, False, ""
        for sample in metric_samples(answer, _NODE_WANTED):
            if sample.name == _BUILD:
                version = sample.labels.get(b"rabbitmq_version", b"").decode(errors="replace")
            elif sample.name == _CONNECTIONS:
                clients = whole_number(sample.value)
            elif sample.name == _OTHER:
                clustered |= not sample.labels.get(b"peer", b"").startswith(_COMMAND)
            elif sample.value == 1:
                alarms.append(_ALARMS[sample.name])
        self._alarms, self._clustered = tuple(sorted(alarms)), clustered
        self._clients, self._version = clients, version

    def _read(self, answer: bytes, now_ns: int, off_ns: int = 0) -> tuple[dict[str, object], list[tuple[bytes, str]]]:
        """Updates the queues. The answer was made at most ``off_ns`` before or after ``now_ns``. Returns the node's
        values, and problems by the queue that they are about. Raises NotPrometheus.
        """
        parsed = _Answer(answer, self._labels)
        if parsed.cluster and parsed.identity != self._identity:
            self._leave()
            self._cluster, self._identity = parsed.cluster, parsed.identity
        patterns = self._server.url.queues
        listed = sorted(
            name for name, its in parsed.gauges.items() if _READY in its and is_chosen(text_of(name), patterns)
        )
        names = set(listed[:MAX_QUEUES])
        others = self._others()
        wanted = names.union(*(other._queues for other in others))  # a client may be at any node of the cluster
        self._counters.take((one for one in parsed.counted if one[0] in wanted), wanted - self._wanted - names)
        self._counters.keep(wanted)
        self._wanted = wanted
        self._offset_lags = {
            name: its[_OFFSET_LAG] for name, its in parsed.gauges.items() if _OFFSET_LAG in its and name in wanted
        }
        if any(count < self._since_start.get(name, 0) for name, count in parsed.since_start.items()):
            self._forget_deletions()  # it was restarted between two polls
        self._since_start |= parsed.since_start
        vanished = {name: (since_ns or now_ns, deleted) for name, (since_ns, deleted) in self._vanished.items()}
        missing = {**dict.fromkeys(self._queues, (now_ns, self._deleted[0])), **vanished}
        deleted, before = parsed.since_start.get(_DELETED, 0), self._deleted[1]
        self._deleted, self._stopped = (deleted if before is None else before, deleted), parsed.stopped
        self._vanished = {name: missing[name] for name in missing.keys() - listed}
        consumed = self._consumed.union(*(other._consumed for other in others))
        self._queues = {
            name: self._queues.get(name) or _Queue(*name, consumed=name in consumed) for name in listed[:MAX_QUEUES]
        }
        for name, queue in self._queues.items():
            gauges = parsed.gauges[name]
            queue.stream = name in parsed.streams or gauges.get(_WORK) == 0
            queue.update(gauges, self._totals(name, others), now_ns, off_ns)
        self._consumed |= {name for name, queue in self._queues.items() if queue.consumed}
        if len(self._consumed) > 2 * MAX_QUEUES:
            self._consumed &= missing.keys()
        self._see_closed(parsed.since_start.get(_CLOSED), now_ns)
        problems = []
        if len(listed) > MAX_QUEUES:
            problems.append((b"", f"more than {MAX_QUEUES} queues are not watched: choose with ?queues= in the URL"))
        if parsed.unread:  # 3.10 does not escape names
            problems.append((b"", "queues with quotes or backslashes in their names are not watched"))
        return parsed.node, problems

    def _others(self) -> list[RabbitQueues]:
        """The other nodes of the cluster, as far as the settings name them."""
        if not self._identity:
            return []
        nodes = _NODES.setdefault(self._identity, [])
        if self not in nodes:
            nodes.append(self)
        return [node for node in list(nodes) if node is not self]

    def _leave(self) -> None:
        """The other nodes of the cluster no longer use this one's counts."""
        nodes = _NODES.get(self._identity, [])
        if self in nodes:
            nodes.remove(self)
            if not nodes:
                del _NODES[self._identity]

    def _totals(self, name: Name, others: list[RabbitQueues]) -> _Totals:
        """Of all nodes: those of the others as of their last polls."""
        found = [one._counters.totals.get(name) or _Totals() for one in (self, *others)]
        return _Totals(*(sum(getattr(one, total) for one in found) for total in vars(_Totals())))

    def _see_closed(self, closed: float | None, now_ns: int) -> None:
        """Bounds of ready messages begin anew where channels were not asked for, or where one has closed whose last
        counts went with it. Its consumers' messages are ready again.
        """
        lost = closed != self._closed and self._families is _BY_CHANNEL
        self._closed = closed
        if lost or not self._counting:
            for queue in self._queues.values():
                queue.bounds.lost(queue.counted, now_ns)

    def _missing(self) -> list[tuple[bytes, str]]:
        """The queues that the URL names and neither the node nor another watched one of its cluster lists."""
        known = {text_of(name) for node in (self, *self._others()) for name in node._queues}
        gone = [node._gone for node in (self, *self._others())]
        known |= {name for name in self._server.url.queues if any((shown(name.encode()),) in one for one in gone)}
        return [
            (name.encode(), "the node has no statistics of such a queue")
            for name in self._server.url.queues
            if not is_pattern(name) and name not in known
        ]

    def _gone_rows(self, now_ns: int) -> list[Row]:
        """Queues that were deleted. In a cluster another node may lead one, and a node that has started lists none
        before its first statistics: whether it still exists is then known by the management API only.
        """
        unasked = self._management is not None and self._management.problem
        wait_ns = STATISTICS_NS + (2 * RETRY_NS if unasked else 0)  # its port opens after that of the metrics
        for name, (since_ns, deleted) in list(self._vanished.items()):
            if now_ns - since_ns > wait_ns:
                del self._vanished[name]
                if not self._may_exist(name, deleted, now_ns):
                    self._consumed.discard(name)
                    self._gone.add(_key(name), "the queue was deleted", since_ns)
        listed = [_key(name) for name in self._queues]
        for key in listed:
            self._gone.back(key)
        _LEADERS.lead(self._identity, listed, self, now_ns)
        return self._gone.rows(now_ns)

    def _forget_deletions(self) -> None:
        """What was deleted before an outage, or by it, the node does not count: only the management API knows."""
        self._deleted, self._since_start = (None, None), {}
        self._vanished = dict.fromkeys(islice(self._vanished, MAX_QUEUES), (0, None))

    def _may_exist(self, name: Name, deleted: float | None, now_ns: int) -> bool:
        """Whether the cluster has, or may have, such a queue. deleted: the node's deletions before it vanished."""
        if _LEADERS.elsewhere(self._identity, _key(name), self, now_ns) or name[0] in self._stopped:
            return True
        its = self._management
        seen = [one for one in self._queues if one[0] == name[0]]  # what the API lacks of these, we may not see
        if its is None or its.problem or name[0] not in its.vhosts or its.unseen(seen):
            return bool(self._other_nodes) or deleted is None or (self._deleted[1] or 0) <= deleted
        return name in its.queues

    @property
    def _other_nodes(self) -> str:
        """Whether there are other nodes, whose clients this one does not count, in words; empty if there are none."""
        if self._clustered:
            return "other nodes count, too"
        return "other nodes may count, too" if self._node_unknown and not self._version else ""

    def _rows(self, now_ns: int) -> Iterator[Row]:
        consumers = self._management.consumers if self._management is not None else {}
        unacked = Counter[frozenset[object]]()
        for name, queue in self._queues.items():
            if (its := consumers.get(name)) is not None and its.channels:
                unacked[its.channels] += queue.gauges.get(_UNACKED, 0)
        for queue in self._queues.values():
            yield self._row(queue, now_ns, unacked)

    def _row(self, queue: _Queue, now_ns: int, unacked: Mapping[frozenset[object], int]) -> dict[str, object]:
        """unacked: messages of all queues that have these channels."""
        name = queue.vhost, queue.name
        about = None if self._management is None else self._management.queues.get(name)
        ready, consumers = queue.gauges.get(_READY), queue.gauges.get(_HAS_CONSUMERS)
        counters = [node._counters for node in (self, *self._others())]
        known_in = any(name in one.publishing for one in counters) and not queue.uncounted
        known_out = any(name in one.consuming for one in counters)
        refuses = queue.lost > 0 and about.rejects if about is not None else queue.lost > _UNCOUNTED
        counting = self._counting
        row: dict[str, object] = {
            "destination": _key(name)[0],
            **self._waiting(queue, refuses),
            "exact": False,
            "pending": queue.gauges.get(_UNACKED),
            "consumers": consumers,
            "consumer_capacity": self._capacities.get(name) if consumers and not queue.stream else None,
        }
        its = None if self._management is None else self._management.consumers.get(name)
        if its is not None and consumers:  # these are asked for less often
            row |= {"workers": listed(its.addresses, "workers"), "prefetch": its.limit}
            if ready and its.limit and its.shared and its.channels:
                row["beside"] = sum(unacked[one] for one in its.within) - queue.gauges.get(_UNACKED, 0)
        if counting:
            row |= {
                "added": queue.totals.published if known_in and not refuses else None,
                "acked": queue.totals.acked if known_out else None,
                "position": queue.totals.progress if known_out or consumers == 0 else None,
                "redelivered": min(queue.redelivered, _MOST) if known_out else None,
            }
        if queue.stream or (about is not None and about.type == "stream"):
            return row | self._stream_lag(name)
        delays = _DELAYS.fullmatch(queue.name) is not None if about is None else about.delays
        if delays and consumers == 0 and not queue.consumed:
            return row | {"lag_messages": 0, "lag_at_least": None, "delayed": ready}
        head_s = self._head_age_s(name, queue) if ready else nan
        if ready and (refuses or (about is not None and about.priorities)):  # others wait than those published last
            age_s = queue.least_age_s(queue.waiting() or 0, now_ns) if counting and known_in else nan
            least_s = max((one for one in (age_s, head_s) if not isnan(one)), default=nan)
            why = "" if isnan(least_s) else f"age: {least_s:.1f} s or more; "  # at most 64 characters
            return row | {"oldest_undelivered_s": least_s, "inexact_reason": f"{why}as of its last statistics"}
        bounded = row.get("lag_at_least") is not None
        age = queue.age(now_ns) if bounded and (known_in or row["lag_messages"] == 0) else None
        if age is None:
            return row | {"oldest_undelivered_s": head_s}
        row |= age.columns()
        if not age.close:
            row["inexact_reason"] = f"age: {age.text()}; {_BY_COUNTS}"
        return row | ({"oldest_undelivered_s": head_s} if age.close or not isnan(head_s) else {})

    def _waiting(self, queue: _Queue, refuses: bool) -> dict[str, object]:
        """Ready messages: between two bounds, or as of the last statistics. Channels do not count messages that
        consumers give back, and in a cluster those of other nodes' clients are not among them.
        """
        bounds = None if refuses or queue.uncounted or self._other_nodes else queue.ready_bounds()
        if bounds is None:
            return {
                "lag_messages": queue.gauges.get(_READY),
                "inexact_reason": f"as of its last statistics: {self._other_nodes or 'up to 5 s ago by default'}",
            }
        unacked = queue.gauges.get(_UNACKED)
        why = f"{_BY_COUNTS}; {unacked} more if requeued" if unacked else _BY_COUNTS
        return {"lag_messages": bounds[1], "lag_at_least": bounds[0], "inexact_reason": why}

    def _stream_lag(self, name: Name) -> dict[str, object]:
        """Consumers of a stream may be connected to any node that has a copy of it."""
        nodes = (self, *self._others())
        lag = max((lags[name] for node in nodes if name in (lags := node._offset_lags)), default=None)
        if lag is None:
            why = "a stream: its size is not its lag"
        else:
            owners = "consumers at the watched nodes" if self._other_nodes else "its consumers"
            why = f"a stream: the largest lag of {owners}"
        exact = None if lag is None else False
        return {"lag_messages": lag, "lag_at_least": None, "exact": exact, "inexact_reason": why}

    def _due(self, queue: _Queue, management: Management) -> Iterator[QueueTimer]:
        """The time-outs of its messages, and its own."""
        name = queue.vhost, queue.name
        about, ready = management.queues.get(name), queue.gauges.get(_READY)
        if about is None or about.type == "stream":
            return
        (shown_name,) = _key(name)
        if about.ttl_ms is not None and ready:
            kind = "eta" if about.delays and not queue.consumed else "ttl"
            why = f"{about.ttl_ms / 1000:g} s after each message came"
            where = f"{about.type} queues"
            yield QueueTimer(shown_name, b"", kind, timers=ready, unknown=f"when is not known: {why}", where=where)
        if about.expires_ms is not None and queue.gauges.get(_HAS_CONSUMERS) == 0:
            why = f"{about.expires_ms / 1000:g} s after its last use"
            yield QueueTimer(shown_name, b"", "lease", unknown=f"when is not known: {why}")

    def _head_age_s(self, name: Name, queue: _Queue) -> float:
        """Age of the first ready message; NaN if unknown, also where it may have been delivered since."""
        head_s, old = (self._heads or {}).get(name), self._heads_ns - queue.taken_ns <= STATISTICS_NS
        return nan if head_s is None or old else age_since(head_s, time.time())

    def _down(self, reason: str, failure: str = "other") -> list[Row]:
        """One row for each known queue, so that its series continues; else one for the server. Counts go on where it
        left a few polls unanswered.
        """
        self._unanswered = self._unanswered + 1 if failure == "no_answer" else UNANSWERED + 1
        if self._unanswered > UNANSWERED:
            self._counters.forget()
            self._forget_deletions()
            self._queues = {name: _Queue(*name, consumed=queue.consumed) for name, queue in self._queues.items()}
        self._seldom_ns = 0
        self._node, self._node_unknown = Asking(), ""
        self._alarms, self._clients, self._heads, self._heads_next = (), None, None, False
        self._capacities, self._offset_lags = {}, {}
        row = {"status": "down", "reason": f"{self.name}: {reason}", "failure": failure}
        now_ns = boot_ns()
        known = [key for key in map(_key, self._queues) if not _LEADERS.elsewhere(self._identity, key, self, now_ns)]
        return [{**row, "destination": name} for (name,) in known] or [row]


def _key(name: Name) -> tuple[bytes]:
    """As its row has it."""
    return (shown(text_of(name).encode()),)


def _detailed(*families: str) -> str:
    return "/metrics/detailed?" + "&".join(f"family={name}" for name in families)


def text_of(name: Name) -> str:
    """A queue as ``queue_lag.destination`` has it: ``VHOST/QUEUE``, with % and / of the virtual host as in a URL; of
    the default virtual host the queue's name alone, unless it has a /.
    """
    vhost, queue = (part.decode(errors="replace") for part in name)
    if vhost == "/" and "/" not in queue:
        return queue
    return f"{quote(vhost, safe=' !$&()*+,:;=@[]', errors='replace')}/{queue}"


BROKER = Broker(
    "rabbitmq",
    "RabbitMQ",
    "queues: ready, unacknowledged and redelivered messages, consumers, rates, alarms",
    "http://[user:password@]host:15692?queues=orders,mail*&management=15672",
    "no queues: all",
    RabbitUrl.parse,
    RabbitQueues,
    RabbitServer,
)
