"""Lag of the queues of Celery, or of another program on kombu, that has a Redis server as its broker.

A queue is up to ten lists, one for each priority: messages are pushed at the head and taken from the tail. A message
that a worker took is in the hash ``unacked`` until it is acknowledged; the sorted set ``unacked_index`` has the time of
its delivery. Both are shared by all queues of the database, so the content of a message shows its queue.

Messages carry no time of their publication, so ages of waiting messages come from our own polls: the message at the
tail has waited at least since it was first seen there, and at most since the list was last seen empty. While it stays
there, nothing is taken, so that the rates are known, too.

Times of delivery are the workers' wall clocks; they are compared with the server's TIME.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from urllib.parse import parse_qs, urlencode, urlsplit

import hiredis

from agent.common.address import with_port
from agent.common.clocks import boot_ns
from agent.common.credentials import Password, password_keys
from agent.common.fairness import UpperBound
from agent.common.resp import RedisDown, RedisUrl, Reply
from agent.common.settings import private_text, setting
from agent.errors import USAGE, AgentError
from agent.queues import kombu
from agent.queues.age_bounds import AgeBounds, age_since
from agent.queues.catalogue import Broker
from agent.queues.celery_control import ControlBus
from agent.queues.celery_rewound import Content, LastContents, ListContent, QueueHistory
from agent.queues.listing import listed
from agent.queues.queue import Queue, Row
from agent.queues.redis_info import COMMANDS, replication_of
from agent.queues.redis_places import SentinelStreams
from agent.queues.redis_reading import shown
from agent.queues.redis_rights import Command, Rights
from agent.queues.redis_scan import MAX_NAME_BYTES, Scan
from agent.queues.redis_section import RedisServerSection
from agent.queues.redis_server import RedisServer
from agent.queues.timers import QueueTimer, ServerTimers

MAX_QUEUES = 256
MAX_BINDINGS = 1000  # of an exchange
MAX_UNACKED = 2000  # the oldest; they are read once, and remembered while they are unacknowledged
READ_UNACKED = 1000  # in one poll
MAX_TAG_BYTES = 128
READ_BYTES = 512 << 10  # of messages in one poll: unacknowledged ones, and again as much of waiting ones
TAIL_BYTES = 64 << 10  # a list with larger messages, on average, is not read
#: A list with a message larger than an answer may be is not read again for this long.
_UNREADABLE_NS = 60_000_000_000
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "queues",
        "Celery's queues",
        MAX_QUEUES,
        "not watched",
        "`queue_lag.reason`",
        setting="`?queues=` in the URL",
    ),
    UpperBound("queues", "bindings of an exchange", MAX_BINDINGS, "not read", "`queue_lag.reason`"),
    UpperBound(
        "queues",
        "unacknowledged messages of Celery on one server",
        MAX_UNACKED,
        "only the oldest are counted",
        "`queue_lag.inexact_reason`",
    ),
    UpperBound(
        "queues",
        "Celery's unacknowledged messages read in one poll",
        READ_BYTES,
        "the next poll continues",
        "`queue_lag.inexact_reason`",
        "bytes",
    ),
    UpperBound(
        "queues",
        "average message size in a list of Celery",
        TAIL_BYTES,
        "age and rates are unknown",
        "`queue_lag.inexact_reason`",
        "bytes",
    ),
)
FORM = "redis://[user:password@]host:port/db?queues=celery,mail&visibility_timeout=3600"
_NO_KEY = -2  # of PTTL; -1: a key without an expiry
_LATEST_S = 9e9  # a later time of delivery does not fit as ns, and is none
#: Task names are read of so many next messages of each priority, and again after this time.
_NAMED, _NAMES_NS = 10, 5_000_000_000
_REFUSED_NS = 60_000_000_000  # a refused command for names is not repeated for so long: Redis logs refusals


@dataclass(frozen=True)
class CeleryServer:
    """queues: empty: all. visibility_timeout_s: as in the application's ``broker_transport_options``; None:
    not known. prefix: its ``global_keyprefix``. workers: whether to ask the workers (agent/queues/celery_control.py).
    tasks: whether to read the names of tasks. separator, unacked, index, mutex: its ``sep``, ``unacked_key``,
    ``unacked_index_key``, ``unacked_mutex_key``. control: the control bus, by its ``fanout_prefix`` and
    ``control_exchange``; {db} is the database.
    """

    redis: RedisUrl
    queues: tuple[str, ...] = ()
    visibility_timeout_s: float | None = None
    prefix: str = ""
    workers: bool = False
    tasks: bool = True
    separator: bytes = kombu.SEPARATOR
    unacked: bytes = kombu.UNACKED
    index: bytes = kombu.INDEX
    mutex: bytes = kombu.MUTEX
    control: str = f"{kombu.FANOUT}celery.pidbox"

    @classmethod
    def parse(cls, url: str) -> CeleryServer:
        """``RedisUrl`` with options ``queues``, ``visibility_timeout`` (seconds), ``prefix``, ``workers`` and ``tasks``
        (true or false), ``sep``, ``unacked_key``, ``unacked_index_key``, ``unacked_mutex_key``, ``fanout_prefix``,
        ``control_exchange``. Raises AgentError, as that does.
        """
        url = _as_celery_writes(url)
        _not_amqp(url)
        address, _, query = url.partition("?")
        try:
            options = {name: ",".join(values) for name, values in parse_qs(query).items()}
            if "global_keyprefix" in options:
                options["prefix"] = options.pop("global_keyprefix")
        except ValueError:
            raise _refused("its options cannot be read") from None
        queues = tuple(name for name in options.pop("queues", "").split(",") if name)
        prefix, seconds = options.pop("prefix", ""), options.pop("visibility_timeout", None)
        workers, tasks = options.pop("workers", "false"), options.pop("tasks", "true")
        keys = {name: options.pop(option).encode() for option, name in _KEYS.items() if option in options}
        fanout = options.pop("fanout_prefix", "true")  # kombu's own default
        fanout = {"true": kombu.FANOUT, "false": ""}.get(fanout.lower(), fanout)
        control = f"{fanout}{options.pop('control_exchange', 'celery')}.pidbox"
        if not {workers, tasks} <= {"true", "false"}:
            raise _refused("workers and tasks must be true or false")
        if "+cluster" in address.partition(":")[0]:
            raise _refused("Celery has no queues in a Redis Cluster")
        if "streams" in options:
            raise _refused("unknown option 'streams'")
        try:
            timeout_s = None if seconds is None else float(seconds)
        except ValueError:
            timeout_s = -1
        if timeout_s is not None and not 0 < timeout_s < inf:
            raise _refused("visibility_timeout must be a number of seconds above 0")
        try:
            redis = RedisUrl.parse(f"{address}?{urlencode(options)}" if options else address)
        except AgentError as error:
            raise _refused(error.why) from None
        return cls(redis, queues, timeout_s, prefix, workers == "true", tasks == "true", control=control, **keys)


def _not_amqp(url: str) -> None:
    """Raises AgentError for the address of a RabbitMQ node, with the setting that watches it."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("amqp", "amqps", "pyamqp"):
            options = "" if parts.port in (None, 5672) else f"?amqp={parts.port}"
            raise AgentError(
                "Celery's queues on RabbitMQ are watched by the setting rabbitmq, not by celery",
                why="RabbitMQ reports its queues over HTTP, not over AMQP",
                remedy=f"rabbitmq: ['http://{with_port(parts.hostname or 'localhost', 15692)}{options}'] (its plugin"
                " rabbitmq_prometheus); see docs/queues-celery.md",
                exit_code=USAGE,
            )
    except ValueError:
        raise _refused("its address cannot be read") from None


#: Options of the transport that name keys.
_KEYS = {"sep": "separator", "unacked_key": "unacked", "unacked_index_key": "index", "unacked_mutex_key": "mutex"}


def _as_celery_writes(url: str) -> str:
    """The address as ``RedisUrl`` has it. Raises AgentError for Celery's lists: that of Sentinels lacks the service."""
    if url.startswith("sentinel://"):
        raise _refused(
            "Celery's sentinel:// lacks the service (master_name): redis+sentinel://HOST:26379,HOST2:26379/SERVICE/DB"
        )
    if _LIST.search(url):
        raise _refused("it is Celery's list of brokers: name each server by itself, celery: ['URL', 'URL']")
    if url.startswith(_SOCKET):
        return "unix://" + url.removeprefix(_SOCKET).replace("virtual_host=", "db=", 1)
    return url


_SOCKET = "redis+socket://"
_LIST = re.compile(r";[a-z]+(\+[a-z]+)?://")


def _refused(why: str) -> AgentError:
    return AgentError(
        "a Redis URL of the setting celery cannot be read",
        why=why,
        remedy=f"write it as {FORM}; in a password / # ? @ : are %2F %23 %3F %40 %3A",
        exit_code=USAGE,
    )


Entry = tuple[bytes, float]  #: delivery tag, and Unix time of the delivery by the worker's clock


@dataclass(eq=False)
class _List:
    """The messages of one queue and priority. tail: hash of the next message; 0: there is none, None: not known.
    since_ns: when it was first seen there. empty_ns: when the list was last seen empty; empty_offset: an offset of the
    replication stream before that. held: it was there at the previous poll, too. still: messages may only have arrived
    since then, if the queue was not read; arrived: how many. taken: its next message is no longer there; left:
    the last one to which that happened. used: it has had messages. tasks: names of the tasks of the next messages, as
    of named_ns.
    """

    key: bytes
    length: int = 0
    tail: int | None = None
    since_ns: int = 0
    empty_ns: int | None = None
    empty_offset: int | None = None
    held: bool = False
    still: bool = False
    taken: bool = False
    arrived: int = 0
    left: int = 0
    used: bool = False
    unreadable_until_ns: int = 0
    tasks: Counter[str] = field(default_factory=Counter)
    named_ns: int | None = None

    def see(self, length: int, tail: int | None, asked_ns: int, answered_ns: int, offset: int | None) -> None:
        """Takes one poll, made between these times, CLOCK_BOOTTIME. offset: of the replication stream, before it."""
        self.held = bool(tail) and tail == self.tail and length >= self.length
        self.still = self.held or (self.tail == 0 and tail is not None)
        self.taken = bool(self.tail) and tail is not None and tail != self.tail
        self.arrived = length - self.length
        if self.taken:
            self.left = self.tail or 0
        if tail != self.tail or tail is None:
            self.since_ns = answered_ns
        if not length:
            self.empty_ns, self.empty_offset = asked_ns, offset
            self.tasks, self.named_ns = Counter(), None
        self.length, self.tail, self.used = length, tail, self.used or length > 0

    def other_data(self) -> None:
        """The poll was of other data than those before it: its messages may have come before the list was empty."""
        if self.length:
            self.empty_ns = self.empty_offset = None


@dataclass
class _Queue:
    """One queue, as of this poll, and what is kept of it between polls. failed: why it could not be read. asked_ns,
    answered_ns: the times of the poll. mine: its unacknowledged messages, as far as they were read. some: there may be
    more of them. tags: theirs; a message that is delivered again keeps its tag. taken: a consumer took messages since
    the poll before. rates: columns. found: it has had messages or a binding.
    """

    name: bytes
    lists: list[_List]
    failed: str = ""
    asked_ns: int = 0
    answered_ns: int = 0
    mine: dict[Entry, kombu.KombuMessage] = field(default_factory=dict)
    some: bool = False
    tags: frozenset[bytes] = frozenset()
    taken: bool = False
    rates: Row = field(default_factory=dict)
    found: bool = False

    def see(self, mine: dict[Entry, kombu.KombuMessage], some: bool, asked_ns: int, answered_ns: int) -> None:
        """Takes the poll that its lists have just taken. If a message is still at the tail of a list, nobody read the
        queue: they would have taken it, after those of the lists before, which must not be in use.
        """
        before, self.tags = self.tags, frozenset(tag for tag, _ in mine)
        self.taken = bool(self.tags - before) or any(one.taken for one in self.lists)
        gone, since_s = len(before - self.tags), (answered_ns - self.answered_ns) / 1e9
        self.rates = {}
        first = next((one for one in self.lists if one.used), None)
        if first is not None and first.held and all(one.still for one in self.lists) and not (some or self.some):
            arrived = sum(one.arrived for one in self.lists)
            if not (arrived and gone):  # else a message may have been put back, or retried
                self.rates = {"in_per_s": arrived / since_s, "out_per_s": gone / since_s}
        self.mine, self.some, self.asked_ns, self.answered_ns = mine, some, asked_ns, answered_ns
        self.found |= bool(mine) or first is not None

    @property
    def age(self) -> AgeBounds | None:
        """How long its oldest message waits here; None if nothing is known."""
        filled = [one for one in self.lists if one.length]
        known = [one for one in filled if one.tail is not None]
        if not known:
            return None
        empty = [one.empty_ns for one in filled if one.empty_ns is not None]
        least = max(self.asked_ns - one.since_ns for one in known)
        most = self.answered_ns - min(empty) if len(empty) == len(filled) else inf
        return AgeBounds(max(0, least) / 1e9, most / 1e9, True)

    @property
    def priorities(self) -> bytes:
        """Messages of each priority, if another one than 0 has some."""
        filled = {priority: one.length for priority, one in enumerate(self.lists) if one.length}
        if not filled.keys() - {0}:
            return b""
        return listed((f"{priority}: {length}" for priority, length in filled.items()), "priorities")

    @property
    def content(self) -> dict[int, ListContent]:
        return {
            priority: ListContent(one.length, one.tail, one.empty_offset)
            for priority, one in enumerate(self.lists)
            if one.length
        }

    @property
    def tasks(self) -> Counter[str]:
        return sum((one.tasks for one in self.lists), Counter())

    @property
    def position(self) -> object:
        """Changes when a message is taken or acknowledged; None if not known."""
        tails = tuple(one.tail for one in self.lists)
        return None if None in tails else (tails, self.tags)


class CeleryQueues(RedisServer):
    """One database of a Redis server. ``poll`` returns one row per queue, one row for the server if it has none, or
    ``down`` rows if it does not answer. It takes up to eight round trips.
    """

    def __init__(self, server: CeleryServer, timeout_s: float = 0.5) -> None:
        url = server.redis
        super().__init__(_name(url), url, timeout_s)
        self._visibility_s, self._prefix = server.visibility_timeout_s, server.prefix.encode()
        self._separator = server.separator
        self._keys = [self._prefix + key for key in (server.unacked, server.index, server.mutex)]
        self._user = url.user or "default"
        self._named = [name.encode() for name in server.queues]
        self._bus = ControlBus(self._prefix, server.control.replace("{db}", str(url.db))) if server.workers else None
        self._names_from_ns = 0 if server.tasks else inf
        pattern = b"".join(b"\\%c" % c if c in b"*?[]\\" else b"%c" % c for c in self._prefix + kombu.BINDINGS) + b"*"
        self._scan = None if self._named else Scan([], ("MATCH", pattern), "queues")
        self._queues: dict[bytes, _Queue] = {}
        self._history = QueueHistory(f"{url.db} {server.prefix} {server.queues}", _LAST)
        self._offset: int | None = None  # of the replication stream, before this poll read the queues
        self._bindings: dict[bytes, list[kombu.Binding]] = {}
        self._messages: dict[Entry, kombu.KombuMessage | None] = {}  # of the unacknowledged ones; None: not readable
        self._etas: dict[Entry, int] = {}  # CLOCK_BOOTTIME, as of when the message was first seen
        self._rights, self._now_ns = Rights(), 0
        self._unreadable: set[bytes] = set()  # exchanges with bindings of another separator
        self._broadcasting: set[bytes] = set()  # exchanges of ``Broadcast`` queues
        self._mutex, self._unindexed = b"", 0  # as of the last poll
        self._problems: list[str] = []
        self._limits: dict[str, tuple[int, int]] = {}  # as of this poll

    def _poll(self, now_ns: int) -> list[Row]:
        self._now_ns, self._rights.errors, self._problems = now_ns, Counter(), []
        names = self._find(now_ns)
        self._queues = {name: self._queues.get(name) or self._new(name) for name in names}
        asked_ns = boot_ns()
        lengths, entries, total, refused = self._lengths()
        filled = [one for one, length in lengths.items() if length]
        new = [entry for entry in entries if entry not in self._messages][:READ_UNACKED]
        sizes = self.pipeline(
            [
                *(("MEMORY", "USAGE", one.key) for one in filled),
                *(("HSTRLEN", self._keys[0], tag) for tag, _ in new),
            ]
        )
        answered_ns = self._tails(lengths, dict(zip(filled, sizes, strict=False)), asked_ns)
        self._ask_workers(now_ns)
        values, server_s, gone, refused_here = self._details(dict(zip(new, sizes[len(filled) :], strict=True)))
        refused = refused or refused_here
        self._messages = {entry: self._messages[entry] for entry in entries if entry in self._messages}
        known = sum(one is not None for one in self._messages.values())
        unread = 0 if refused else max(0, total - len(gone) - known)
        mine, shared, lost = self._routed()
        for queue in self._queues.values():
            if not queue.failed:
                some = bool(refused or unread or queue.name in shared)
                queue.see(mine.get(queue.name, {}), some, asked_ns, answered_ns)
        self._due = self._deadlines([entry for entry in entries if entry not in gone], total - len(entries))
        doubt = f"pending: {unread} of {total} unacknowledged not read" if unread else ""
        if lost and self._scan and self._scan.whole:
            self._problems.append(f"{lost} unacknowledged messages belong to no queue")
        if self._bus is not None:
            self._bus.taken |= any(queue.taken for queue in self._queues.values())
        self._compare(now_ns)
        self._limits = self._worker_limits()
        rows = [self._row(queue, server_s, refused, doubt) for queue in self._queues.values()]
        return [{**values, **row} for row in [*rows, *self._remarks()] or [{"status": "ok"}]]

    def _compare(self, now_ns: int) -> None:
        """Whether the server's data continue those of the poll before."""
        now = self._server.replication
        content = None
        if now is not None:
            whole = {name: bound for name, bound in self._bindings.items() if len(bound) < MAX_BINDINGS}
            readable = [queue for queue in self._queues.values() if not queue.failed]
            content = Content(
                now,
                {queue.name: queue.content for queue in readable},
                {queue.name: queue.tags for queue in readable if queue.tags},
                frozenset(one.left for queue in readable for one in queue.lists if one.left),
                {exchange: frozenset(one.queue for one in bound) for exchange, bound in whole.items()},
            )
        self._history.see_queues(content, now_ns)
        if self._history.how:
            for queue in self._queues.values():
                queue.rates = {}
                for one in queue.lists:
                    one.other_data()

    def _remarks(self) -> Iterator[Row]:
        """Rows without a destination."""
        why = self._history.why()
        if why:
            yield {"status": "rewound", "reason": why}
        if self._problems:
            yield {"reason": "; ".join(self._problems)}
        missing = self._rights.missing(self._now_ns)
        if missing:
            why = f"refused by the ACL; ACL SETUSER {self._user} {' '.join(missing)}"
            yield {"status": "unknown", "failure": "permission", "reason": why}

    def _new(self, name: bytes) -> _Queue:
        return _Queue(name, [_List(self._prefix + key) for key in kombu.lists(name, self._separator)])

    def pipeline(self, commands: Sequence[Command]) -> list[Reply]:
        """As ``RespClient.pipeline``, without what the server's ACL refuses. Raises RedisDown."""
        replies = self._rights.pipeline(self._client, commands, self._now_ns)
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError) and str(reply).startswith(("LOADING", "MASTERDOWN")):
                raise RedisDown(str(reply))
        return replies

    def _find(self, now_ns: int) -> list[bytes]:
        """The names of the queues. Reads the bindings of all known exchanges."""
        start = self._prefix + kombu.BINDINGS
        found = self._scan.step(self, now_ns) if self._scan else []
        exchanges = {*self._named, *(key.removeprefix(start) for key in found)}
        exchanges |= {exchange for exchange, bound in self._bindings.items() if bound}  # are they gone?
        exchanges |= {m.exchange for m in self._messages.values() if m and len(m.exchange) <= MAX_NAME_BYTES}
        carrying = sorted(filter(kombu.carries_tasks, exchanges - {b""}))
        asked = carrying[:MAX_QUEUES]
        replies = self.pipeline([("SSCAN", start + one, 0, "COUNT", MAX_BINDINGS) for one in asked])
        more = len(carrying) > MAX_QUEUES or (self._scan is not None and self._scan.more)
        self._bindings, self._unreadable, self._broadcasting = {}, set(), set()
        for exchange, reply in zip(asked, replies, strict=True):
            if isinstance(reply, hiredis.ReplyError):
                self._problems.append(f"bindings of exchange {exchange.decode(errors='replace')}: {reply}")
                continue
            cursor, members = reply
            more |= cursor != b"0" or len(members) > MAX_BINDINGS
            if any(self._separator not in member for member in members):
                name = exchange.decode(errors="replace")
                self._unreadable.add(exchange)
                self._problems.append(f"bindings of exchange {name} cannot be read: {_OTHER_SEP}")
            if any(kombu.is_broadcast(member, self._separator) for member in members):
                self._broadcasting.add(exchange)
            bound = [kombu.binding(member, self._separator) for member in members[:MAX_BINDINGS]]
            self._bindings[exchange] = [one for one in bound if one and len(one.queue) <= MAX_NAME_BYTES]
        if self._named:
            return self._named
        names = sorted({*self._bound(), *self._unbound()})
        if self._scan and not self._scan.whole:
            self._problems.append("the keyspace is still being scanned: queues may be missing")
        if more or len(names) > MAX_QUEUES:
            self._problems.append(
                f"more than {MAX_QUEUES} queues or exchanges, or long names, are not watched: choose with ?queues="
            )
        return names[:MAX_QUEUES]

    def _bound(self) -> set[bytes]:
        return {one.queue for bound in self._bindings.values() for one in bound}

    def _unbound(self) -> set[bytes]:
        """Queues that have messages, with or without a binding: a producer that publishes to the default exchange needs
        none, and a flushed database has lost them.
        """
        held = {m.key for m in self._messages.values() if m and not m.exchange and 0 < len(m.key) <= MAX_NAME_BYTES}
        return held | {name for name, queue in self._queues.items() if any(one.length for one in queue.lists)}

    def _lengths(self) -> tuple[dict[_List, int], list[Entry], int, str]:
        """Lengths of the lists; the oldest unacknowledged messages; how many there are in all; why they are not
        known.
        """
        lists = [one for queue in self._queues.values() for one in queue.lists]
        unacked, index, its_mutex = self._keys
        replication, *replies, stored, mutex, left_ms, total, oldest = self.pipeline(
            [
                ("INFO", "replication"),
                *(("LLEN", one.key) for one in lists),
                ("HLEN", unacked),
                ("GET", its_mutex),
                ("PTTL", its_mutex),
                ("ZCARD", index),
                ("ZRANGE", index, 0, MAX_UNACKED - 1, "WITHSCORES"),
            ]
        )
        before = replication_of(replication)
        self._offset = None if before is None else before.offset
        lengths = dict(zip(lists, replies, strict=True))
        for queue in self._queues.values():
            each = [lengths[one] for one in queue.lists]
            queue.failed = next((str(reply) for reply in each if isinstance(reply, hiredis.ReplyError)), "")
        readable = [one for queue in self._queues.values() if not queue.failed for one in queue.lists]
        lengths = {one: _count(lengths[one]) for one in readable}
        failed = next((str(reply) for reply in (total, oldest) if isinstance(reply, hiredis.ReplyError)), "")
        if failed:
            return lengths, [], 0, failed
        total = _count(total) if len(oldest) >= 2 * MAX_UNACKED else len(oldest) // 2  # they changed in between
        self._hindered(stored, total, mutex, left_ms)
        entries = [one for one in kombu.pairs(oldest) if len(one[0]) <= MAX_TAG_BYTES and abs(one[1]) < _LATEST_S]
        return lengths, entries[:MAX_UNACKED], total, ""

    def _hindered(self, stored: Reply, indexed: int, mutex: Reply, left_ms: Reply) -> None:
        """Notes what keeps messages from being delivered again. It must last from one poll to the next: workers change
        the hash and the index between these commands, and hold the mutex for some milliseconds.
        """
        unindexed = stored - indexed if isinstance(stored, int) else 0
        least, self._unindexed = min(unindexed, self._unindexed), unindexed
        if least > 0:
            why = "have no time of delivery: they are never redelivered"
            self._problems.append(f"{least} unacknowledged messages {why}")
        if isinstance(mutex, bytes) and mutex == self._mutex and isinstance(left_ms, int) and left_ms != _NO_KEY:
            held = f"for {left_ms / 1000:.0f} s more" if left_ms >= 0 else "and has no expiry, so that it stays"
            self._problems.append(f"unacked_mutex is held {held}: nothing is redelivered")
        self._mutex = mutex if isinstance(mutex, bytes) else b""

    def _tails(self, lengths: dict[_List, int], usages: dict[_List, Reply], asked_ns: int) -> int:
        """Has each list see the message at its tail. usages: memory of those that are not empty. Returns the time of
        the answer.
        """
        left, read = READ_BYTES, []
        for one, usage in usages.items():
            mean = usage // lengths[one] if isinstance(usage, int) else inf
            if mean <= min(left, TAIL_BYTES) and asked_ns >= one.unreadable_until_ns:
                left -= int(mean)
                read.append(one)
        tails: dict[_List, int | None] = {}
        due = [one for one in read if asked_ns >= self._names_from_ns and _old(one.named_ns, asked_ns)]
        try:
            replies = self.pipeline([c for one in read for c in (("LLEN", one.key), ("LINDEX", one.key, -1))])
            for one, length, tail in zip(read, replies[::2], replies[1::2], strict=True):
                lengths[one] = _count(length)
                tails[one] = (hash(tail) or 1) if isinstance(tail, bytes) else None
        except RedisDown as error:
            if error.failure != "other":
                raise
            for one in read:  # a message is larger than an answer may be
                one.unreadable_until_ns = asked_ns + _UNREADABLE_NS
        answered_ns = boot_ns()
        for one, length in lengths.items():
            one.see(length, tails.get(one) if length else 0, asked_ns, answered_ns, self._offset)
        self._read_names([one for one in due if tails.get(one)], usages, left, answered_ns)
        return answered_ns

    def _read_names(self, lists: list[_List], usages: dict[_List, Reply], left: int, now_ns: int) -> None:
        """Names of the next tasks. left: bytes that may still be read."""
        some = list[tuple[_List, int]]()
        for one in lists:
            mean = max(1, usages[one] // max(one.length, 1))
            n = min(_NAMED, left // mean)
            if n:
                some.append((one, n))
                left -= n * mean
        if not some:
            return
        for one, _ in some:
            one.tasks, one.named_ns = Counter(), now_ns  # also if they are too large to be read
        try:
            replies = self.pipeline([("LRANGE", one.key, -n, -1) for one, n in some])
        except RedisDown as error:
            if error.failure != "other":
                raise
            return
        for (one, _), reply in zip(some, replies, strict=True):
            if isinstance(reply, hiredis.ReplyError):
                self._names_from_ns = now_ns + _REFUSED_NS
                return
            one.tasks = Counter(filter(None, map(kombu.task, reply)))

    def _ask_workers(self, now_ns: int) -> None:
        if self._bus is None:
            return
        try:
            commands = self._bus.commands(now_ns)
            self._bus.take(self.pipeline(commands) if commands else [])
        except RedisDown as error:
            if error.failure != "other":
                raise
        if self._bus.deaf:
            why = "worker_enable_remote_control off? else add ?fanout_prefix=false or ?control_exchange=NAME"
            self._problems.append(f"no worker listens to the control bus: {why}")
        if self._bus.problem:
            self._problems.append(f"workers are not known: {self._bus.problem}")
        if self._bus.foreign:
            how = f"replied in {self._bus.kind} (task_serializer), which is never read"
            self._problems.append(f"{self._bus.foreign} workers {how}")
        if self._bus.missing:
            self._problems.append(f"{self._bus.missing} workers did not reply to the last question")

    def _details(self, sizes: dict[Entry, Reply]) -> tuple[Row, float | None, set[Entry], str]:
        """The last round trip: reads unacknowledged messages of these sizes, the server itself, and TIME last. Returns
        columns of the server; its time, Unix time, None if not known; the messages that were acknowledged meanwhile;
        why they cannot be read.
        """
        failed = next((str(size) for size in sizes.values() if isinstance(size, hiredis.ReplyError)), "")
        left, read, gone = READ_BYTES, list[Entry](), set[Entry]()
        for entry, size in sizes.items() if not failed else ():
            if not size:
                gone.add(entry)
            elif size > READ_BYTES:
                self._messages[entry] = None
            elif size <= left:
                left -= size
                read.append(entry)
        messages = ("HMGET", self._keys[0], *(tag for tag, _ in read))
        replies = self.pipeline([*((messages,) if read else ()), *COMMANDS, ("TIME",)])
        values = replies.pop(0) if read else []
        if isinstance(values, hiredis.ReplyError):
            failed, values = str(values), []
        for entry, value in zip(read, values, strict=bool(values)):
            if value is None:
                gone.add(entry)
            else:
                self._messages[entry] = kombu.message(value)
        *about, clock = replies
        server_s = None if isinstance(clock, hiredis.ReplyError) else int(clock[0]) + int(clock[1]) / 1e6
        failed = failed or (str(clock) if server_s is None else "")
        return self._server.parse_info(about, self._rights.errors, boot_ns()), server_s, gone, failed

    def _routed(self) -> tuple[dict[bytes, dict[Entry, kombu.KombuMessage]], set[bytes], int]:
        """The unacknowledged messages by queue; queues to which others may belong; the number of those that belong to
        none.
        """
        mine, shared, lost = dict[bytes, dict[Entry, kombu.KombuMessage]](), set[bytes](), 0
        routes = dict[tuple[bytes, bytes], tuple[bytes, ...]]()
        for entry, one in self._messages.items():
            if one is None:
                continue
            route = one.exchange, one.key
            if route not in routes:
                routes[route] = kombu.routed(*route, self._bindings)
            if one.exchange and one.exchange not in self._bindings:  # they are read at the next poll
                shared |= self._queues.keys()
            elif len(routes[route]) == 1:
                mine.setdefault(routes[route][0], {})[entry] = one
            else:
                shared |= set(routes[route])
                lost += not routes[route] and one.exchange not in self._broadcasting
        return mine, shared, lost

    def _row(self, queue: _Queue, server_s: float | None, refused: str, doubt: str) -> Row:
        if queue.failed:
            failure = {"failure": "permission"} if queue.failed.startswith("NOPERM") else {}
            return {"destination": shown(queue.name), "status": "unknown", "reason": queue.failed, **failure}
        if self._unreadable and queue.name not in self._bound():
            return {"destination": shown(queue.name), "status": "unknown", "reason": f"not known: {_OTHER_SEP}"}
        lag, age = sum(one.length for one in queue.lists), queue.age
        doubts = [doubt] if doubt else []
        if refused:
            doubts.append(f"pending: {refused}")
        elif queue.some and not doubt:
            doubts.append("pending: the queue of some messages is not known")
        ages: Row = {} if lag else {"lag_s": 0.0, "lag_error_s": 0.0}
        if age is None and lag:
            doubts.append("age not known: its oldest message was not read")
        elif age is not None and age.close:
            ages = age.columns()
        elif age is not None:
            doubts.append(f"age: {age.text()}")
            ages = age.columns() if age.least else {}  # of a queue that is being read, 0 s means nothing
        if not queue.found and queue.name not in self._bound():
            unseen = {"reason": "no message and no binding seen: is the name right?"}
        else:
            queue.found, unseen = True, {}
        why = self._history.why(queue.name)
        row = {
            **unseen,
            "destination": shown(queue.name),
            "lag_messages": lag,
            **ages,
            "exact": True,
            "inexact_reason": "; ".join(doubts),
            "position": queue.position,
            "tasks": listed((f"{name} {n}" for name, n in queue.tasks.most_common()), "tasks"),
            "priorities": queue.priorities,
            **queue.rates,
            **self._consumers(queue),
            **({"status": "rewound", "reason": why} if why else {}),
        }
        return row if refused or server_s is None else {**row, **self._pending(queue, server_s)}

    def _consumers(self, queue: _Queue) -> Row:
        if self._bus is None:
            return {}
        name = queue.name.decode(errors="replace")
        its = self._bus.of(name)
        row: dict[str, object] = {"workers": listed((one.text for one in its), "workers")}
        if self._bus.complete:
            # Without a worker, messages that the last ones took wait for another one.
            row |= {"consumers": len(its), "held": True}
            if name in self._limits:
                prefetch, held = self._limits[name]
                row |= {"prefetch": prefetch, "beside": held - len(queue.mine)}
        return row

    def _worker_limits(self) -> dict[str, tuple[int, int]]:
        """By queue: how many messages its workers may have unacknowledged, of all of their queues together, and how
        many they have at least: those of the queues that no other worker reads. A worker's limit grows with each task
        that waits for a set time in it: the limit is left out where one may be of any of its queues, also of those that
        are not watched, and where it is not known.
        """
        workers = list(self._bus.workers.values()) if self._bus is not None else []
        by_readers: dict[frozenset[str], list[_Queue]] = {}
        routes = {(one.exchange, one.key) for one in self._messages.values() if one is not None and one.eta_s}
        delaying = [kombu.routed(*route, self._bindings) for route in routes]
        delayed = {name.decode(errors="replace") for names in delaying for name in names}
        growing = {one.name for one in workers if not all(delaying) or one.queues & delayed}
        for queue in self._queues.values():
            name = queue.name.decode(errors="replace")
            its = frozenset(one.name for one in workers if name in one.queues)
            if its and not queue.failed:
                by_readers.setdefault(its, []).append(queue)
        limits: dict[str, tuple[int, int]] = {}
        for its, queues in by_readers.items():
            prefetch = [one.prefetch or 0 for one in workers if one.name in its]
            held = sum(len(one.mine) for them, other in by_readers.items() if them <= its for one in other)
            if all(prefetch) and not its & growing:
                both = sum(prefetch), held
                limits |= {one.name.decode(errors="replace"): both for one in queues}
        return limits

    def _pending(self, queue: _Queue, server_s: float) -> Row:
        """Columns of its unacknowledged messages. One that waits for a set time is not pending before that time."""
        due = [(at_s, one.eta_s or 0.0) for (_, at_s), one in queue.mine.items()]
        since_s = [max(both) for both in due if both[1] <= server_s]
        early = sum(eta_s > max(at_s + (self._visibility_s or inf), server_s) for at_s, eta_s in due)
        if early:
            why = f"{early} delayed messages are due for redelivery before their set time"
            self._problems.append(f"{queue.name.decode(errors='replace')}: {why}")
        known = self._visibility_s is not None and due and not queue.some
        return {
            "pending": len(since_s),
            "delayed": len(queue.mine) - len(since_s),
            "oldest_pending_s": age_since(min(since_s), server_s) if since_s else None,
            "redelivered": sum(one.redelivered for one in queue.mine.values()),
            "redelivery_s": min(due)[0] + (self._visibility_s or 0.0) - server_s if known else None,
        }

    def close(self) -> None:
        if self._bus is not None and self._client.peer is not None:
            with suppress(RedisDown):
                self._client.pipeline(self._bus.last())
        super().close()

    def timers(self) -> ServerTimers | None:
        """Redeliveries are the workers', so that neither the server's version nor its clock matters."""
        return None if self._due is None else ServerTimers(self._due)

    def _deadlines(self, entries: list[Entry], more: int) -> list[QueueTimer]:
        """When these unacknowledged messages are delivered again, and their workers begin those with a set time. more:
        how many there are beside.
        """
        due: list[QueueTimer] = []
        ahead_ns = time.time_ns() - boot_ns()
        before, self._etas = self._etas, {}
        of = {entry: shown(queue.name) for queue in self._queues.values() for entry in queue.mine}
        if self._visibility_s is None:
            why = "the setting has no visibility_timeout"
            counts = Counter(of.get(entry, b"") for entry in entries)
            due += [QueueTimer(name, b"", "redelivery", timers=count, unknown=why) for name, count in counts.items()]
        for entry in entries:
            (tag, at_s), one = entry, self._messages.get(entry)
            if self._visibility_s is not None:
                at_ns = int((at_s + self._visibility_s) * 1e9)
                due.append(QueueTimer(of.get(entry, b""), tag, "redelivery", due_wall_ns=at_ns))
            if one is not None and one.eta_s is not None:
                self._etas[entry] = before.get(entry, int(one.eta_s * 1e9) - ahead_ns)
                due.append(QueueTimer(of.get(entry, b""), tag, "eta", due_ns=self._etas[entry]))
        if more > 0:
            due.append(QueueTimer(b"", b"", "redelivery", timers=more, unknown=f"beyond the {MAX_UNACKED} oldest"))
        return due

    def _interrupted(self) -> list[Row]:
        if self._bus is not None:
            self._bus.forget()
        for queue in self._queues.values():
            for one in queue.lists:
                one.empty_ns = None
        return [{"destination": shown(name)} for name in self._queues]


_LAST = LastContents()
_OTHER_SEP = "has the transport another sep? add it: ?sep="


def _name(url: RedisUrl) -> str:
    return f"celery {url.database}"


@dataclass(frozen=True)
class CelerySection(RedisServerSection):
    """A server as a section of the settings."""

    TITLE = "Celery"

    url: CeleryServer = setting("", private_text("redis://host:6379/0", CeleryServer.parse), "its address")
    password: Password = setting(Password(), password_keys("TICKSCOPE_CELERY_"))

    @property
    def address(self) -> RedisUrl:
        return self.url.redis


def opened(given: CeleryServer | CelerySection) -> Queue:
    server = replace(given.url, redis=given.redis) if isinstance(given, CelerySection) else given
    if server.redis.kind != "sentinel":
        return CeleryQueues(server)
    return SentinelStreams(
        server.redis,
        lambda url, timeout_s: CeleryQueues(replace(server, redis=url), timeout_s),
        name=_name(server.redis),
    )


def _old(named_ns: int | None, now_ns: int) -> bool:
    return named_ns is None or now_ns - named_ns >= _NAMES_NS


def _count(reply: Reply) -> int:
    if not isinstance(reply, int) or not 0 <= reply < 1 << 63:
        raise ValueError("no count")
    return reply


BROKER = Broker(
    "celery",
    "Celery on Redis",
    "queues of Celery and kombu: waiting, unacknowledged and delayed messages, and their time of redelivery",
    FORM,
    "no queues: all; workers=true: also queries the workers; tasks=false: does not read names of tasks",
    CeleryServer.parse,
    opened,
    CelerySection,
)
