"""Lag of Kafka's consumer groups, by partition: committed offset against the end of the log.

Committed offsets are read first and end offsets after that, so that a lag is never negative. The lag counts offsets.
Where some of them are no messages that the group will get, the row says so: records that compaction removed, markers of
transactions. Its time comes from our own history of end offsets (agent/queues/end_offsets.py).

The client is librdkafka (confluent-kafka). It is imported when a server is opened.
"""

from __future__ import annotations

import re
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf, isnan, nan
from random import sample
from typing import Any
from urllib.parse import parse_qs

from agent.columns import fitted
from agent.common.address import addr_text, with_port
from agent.common.clocks import boot_ns
from agent.common.credentials import Password, password_keys, path_setting
from agent.common.fairness import UpperBound
from agent.common.lookup import look_up, wait_for_some
from agent.common.settings import flag, one_of, private_text, setting, text, texts
from agent.errors import USAGE, AgentError
from agent.queues.addresses import Addresses
from agent.queues.age_bounds import AgeBounds, stamped_age
from agent.queues.catalogue import Broker
from agent.queues.commits import Commits
from agent.queues.end_offsets import EndOffsets
from agent.queues.gone import Gone
from agent.queues.kafka_client import Failure, KafkaConnection, KafkaDown, Key, Node
from agent.queues.kafka_groups import KafkaGroup, RemovedRecords
from agent.queues.kafka_records import FirstRecord, RecordReader
from agent.queues.kafka_tail import RecordField, RecordTail
from agent.queues.order import OrderedQueue
from agent.queues.patterns import is_chosen, is_pattern
from agent.queues.queue import Row
from agent.queues.timers import QueueTimer, ServerTimers, TimedQueue, elsewhere
from agent.tables import TABLES

MAX_GROUPS, MAX_ROWS = 256, 2048
#: For docs/limits.md.
BOUNDS = (
    UpperBound("queues", "consumer groups of a Kafka cluster", MAX_GROUPS, "not watched", "`queue_lag.reason`"),
    UpperBound("queues", "partitions of Kafka's groups", MAX_ROWS, "not watched", "`queue_lag.reason`"),
)
_TIMEOUT_S = 0.8  # of the first question of a poll
_MORE_NAMES_S = 0.1  # for the other bootstrap names, once one is resolved
_RETRY_NS = 10_000_000_000  # after a refused login, or settings that librdkafka refuses
_LEADERS_NS, _CONFIGS_NS = 10_000_000_000, 60_000_000_000  # how long leaders and settings of topics are used
_FOR_EVER_MS = 100 * 365 * 86_400_000  # a retention.ms such as the largest number means no limit
_READING_S = 0.3  # a poll, for single records
_TIMES_NS = 10_000_000_000  # between two reads of single records only for when they may be deleted
_PORT = 9092
_TRANSACTIONS = "__transaction_state"  # this topic is there once any producer has used transactions
_NO_GROUP = (
    "no such consumer group: start its consumers, or correct `groups`; Streams groups need a commit; share groups are"
    " not watched"
)
_NO_TOPIC = re.compile(r"[^\w.*?![\]-]", re.ASCII)
_WIDTH, _REASON = (TABLES["queue_lag"].by_name[name].width for name in ("destination", "inexact_reason"))


def _bootstrap(given: str) -> str:
    """``host:port,host:port``, with the ports. Raises ValueError."""
    servers = []
    for one in filter(None, (part.strip() for part in given.split(","))):
        if "@" in one or "/" in one or any(letter.isspace() for letter in one):
            raise ValueError("must be host:port,host:port; users and passwords are keys of a section")
        host, colon, port = one.rpartition(":")
        if one.endswith("]") or (not colon):
            host, port = one, str(_PORT)
        if not host or (":" in host and not (host[0] == "[" and host[-1] == "]")):
            raise ValueError("must be host:port,host:port, with an IPv6 address in brackets")
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError("a port must be between 1 and 65535")
        servers.append(f"{host}:{port}")
    if not servers:
        raise ValueError("must be host:port,host:port")
    return ",".join(servers)


def _field(given: str) -> str:
    if given:
        RecordField.parse(given)
    return given


@dataclass(frozen=True)
class KafkaServer:
    """A Kafka cluster. Files are read by the broker process, as user tickscope."""

    servers: str = setting("", private_text("host:port,host:port", _bootstrap), "bootstrap brokers")
    groups: tuple[str, ...] = setting((), texts("a list of names or patterns"), "groups; none: all")
    topics: tuple[str, ...] = setting((), texts("a list of names or patterns"), "topics; none: all")
    records: bool = setting(True, flag(), "read the timestamps of records that are older than the first poll")
    id: str = setting(
        "",
        text("a path in JSON, or header:NAME", _field),
        "place of the id in a record, to find duplicates: `order/id` in JSON, or `header:NAME`",
    )
    seq: str = setting(
        "",
        text("a path in JSON, or header:NAME", _field),
        "place of the sequence number in a record, to find records out of order",
    )
    tls: bool = setting(False, flag(), "encrypt the connection")
    ca_file: str = path_setting("certificates of the authorities to trust (TLS)")
    certificate_file: str = path_setting("certificate of tickscope (TLS)")
    key_file: str = path_setting("key of that certificate")
    user: str = setting("", text("a name"), "SASL user")
    mechanism: str = setting("SCRAM-SHA-512", one_of("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"), "SASL mechanism")
    password: Password = setting(Password(), password_keys("TICKSCOPE_KAFKA_"))

    def check(self) -> None:
        if not self.servers:
            raise ValueError("it has no servers: write `servers: host:port,host:port`")
        if odd := next(filter(_NO_TOPIC.search, self.topics), ""):
            raise ValueError(f"{odd!r} is not a topic name or pattern: write orders*, not a regular expression")
        if self.seq and not self.id:
            raise ValueError("seq needs id, the place of the id in a record")
        if (self.ca_file or self.certificate_file or self.key_file) and not self.tls:
            raise ValueError("ca_file, certificate_file and key_file need `tls: true`")
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("certificate_file and key_file must be set together")
        if bool(self.user) != self.password.is_set:
            raise ValueError("user must be set together with password_file, password_variable or password_credential")

    def librdkafka(self, bootstrap: str = "") -> dict[str, object]:
        """The settings of librdkafka. bootstrap: host:port,host:port, instead of ``servers``. Raises KafkaDown if the
        password cannot be read.
        """
        security = ("SASL_" if self.user else "") + ("SSL" if self.tls else "PLAINTEXT")
        try:
            password = self.password.read()
        except ValueError as error:
            raise KafkaDown(str(error), "login") from None
        sasl = {"sasl.mechanism": self.mechanism, "sasl.username": self.user, "sasl.password": password}
        files = {
            "ssl.ca.location": self.ca_file,
            "ssl.certificate.location": self.certificate_file,
            "ssl.key.location": self.key_file,
        }
        return {
            "bootstrap.servers": bootstrap or self.servers,
            "security.protocol": security,
            **(sasl if self.user else {}),
            **{name: path for name, path in files.items() if path},
        }


def parse(given: str) -> KafkaServer:
    """``kafka://host:port,host:port?groups=a*&topics=b``, or without ``kafka://``. Raises AgentError without the text,
    in which there may be a password.
    """
    try:
        address, _, query = given.removeprefix("kafka://").partition("?")
        options = parse_qs(query, strict_parsing=bool(query))
        if unknown := set(options) - {"groups", "topics", "id", "seq"}:
            raise ValueError(f"unknown option {min(unknown)!r}")
        fields = {name: _field(options.pop(name, [""])[-1]) for name in ("id", "seq")}
        named = {name: tuple(filter(None, ",".join(values).split(","))) for name, values in options.items()}
        server = KafkaServer(servers=_bootstrap(address.rstrip("/")), **named, **fields)  # type: ignore[arg-type]
        server.check()
        return server
    except ValueError as error:
        raise AgentError(
            "a Kafka server of the configuration cannot be read",
            why=str(error),
            remedy=(
                "write it as kafka://host:9092,host:9092?groups=orders*&topics=orders; TLS, user and password_file are"
                " keys of a section"
            ),
            exit_code=USAGE,
        ) from None


@dataclass
class _Topic:
    """asked_ns: when its leaders were asked for; settings_ns: when its settings are asked for again. leaders: a node
    (host, port) by partition. compacted: None if unknown; denied: for a missing right. retention_s: after this time a
    record may be deleted; NaN if never, or unknown. create_time: whether records have their producers' times, not the
    broker's.
    """

    asked_ns: int
    settings_ns: int = 0
    leaders: Mapping[int, Any] = field(default_factory=dict)
    compacted: bool | None = None
    denied: bool = False
    retention_s: float = nan
    create_time: bool = True

    def configure(self, settings: Mapping[str, str]) -> None:
        """settings: of the topic, by Kafka's names."""
        policy, limit_ms = settings.get("cleanup.policy", ""), int(settings.get("retention.ms", -1))
        self.compacted = "compact" in policy
        self.create_time = settings.get("message.timestamp.type") != "LogAppendTime"
        self.retention_s = limit_ms / 1000 if "delete" in policy and 0 <= limit_ms < _FOR_EVER_MS else nan


@dataclass(frozen=True)
class _Offsets:
    """Of one partition at one poll. Only ``end`` is there if nobody waits for it. stable: the first offset of an open
    transaction, or the end.
    """

    end: int
    start: int | None = None
    stable: int | None = None


class KafkaCluster(TimedQueue, OrderedQueue):
    """One cluster. ``poll`` returns one row per group and partition, one row for a group without partitions, one for a
    cluster without groups, or ``down`` rows.
    """

    def __init__(self, server: KafkaServer, timeout_s: float = _TIMEOUT_S) -> None:
        brokers = server.servers.split(",")
        self.name = f"kafka {brokers[0]}"
        self._server, self._timeout_s = server, timeout_s
        self._addresses = Addresses()
        self._brokers = [(one.rpartition(":")[0].strip("[]"), int(one.rpartition(":")[2])) for one in brokers]
        self._first = self._brokers[0]
        self._bootstrap = ""  # as of the last connection
        self._more_names_s = _MORE_NAMES_S  # all of the time after a poll that failed
        self._connection: KafkaConnection | None = None
        self._cluster = ""
        self._not_before_ns, self._refusal = 0, KafkaDown("", "other")
        self._groups: dict[str, KafkaGroup] = {}
        self._listed: list[str] | None = None
        self._topics: dict[str, _Topic] = {}
        self._transactions = False
        self._ends: dict[Key, EndOffsets] = {}
        self._reader: RecordReader | None = None
        self._first_records: dict[tuple[Key, int], FirstRecord] = {}  # by partition and committed offset
        self._no_reading_ns = self._timed_ns = 0
        self._timers: list[QueueTimer] | None = None
        self._tail: RecordTail | None = None
        if server.id:
            self._tail = RecordTail(RecordField.parse(server.id), RecordField.parse(server.seq) if server.seq else None)
        self._ordered: list[Row] = []
        self._known: dict[tuple[str, Key], bytes | None] = {}
        self._committed: set[tuple[str, Key]] = set()  # at the last poll
        self._denied: dict[str, int] = {}  # when topics that Kafka now leaves out are asked for again
        self._gone = Gone(_shown(name) for name in server.groups if not is_pattern(name))
        self._left_out: list[str] = []
        self._doubtful = False  # a question about a group had no answer: see KafkaConnection

    def poll(self) -> list[Row]:
        """Some rounds of questions. A cluster that does not answer is asked only the first, for ``timeout_s``. Raises
        nothing that depends on the cluster.
        """
        now_ns, self._timers, self._ordered = boot_ns(), None, []
        try:
            if now_ns < self._not_before_ns:
                raise self._refusal
            if self._connection is None:
                self._bootstrap = self._resolved()
                self._connection = KafkaConnection(self._librdkafka(), self._timeout_s)
            rows = self._poll(self._connection, now_ns)
            self._connection.well()
            self._more_names_s = _MORE_NAMES_S
            if self._doubtful:
                self.close()
        except KafkaDown as error:
            refused = error.failure == "login" or (self._connection is None and error.failure == "other")
            if now_ns >= self._not_before_ns and refused:
                self._refusal, self._not_before_ns = error, now_ns + _RETRY_NS
            self._listed, self._more_names_s = None, self._timeout_s
            self.close()
            rows = self._down(error)
        return [{"cluster": self._cluster, **row} if self._cluster else row for row in rows]

    def timers(self) -> ServerTimers | None:
        """When unread records may be deleted for their age, and the highest ids. No broker reports its version."""
        return None if self._timers is None else ServerTimers(self._timers)

    def order(self) -> list[Row]:
        return self._ordered

    def close(self) -> None:
        self._connection = self._reader = None
        if self._tail is not None:
            self._tail.close()

    def _librdkafka(self) -> dict[str, object]:
        """The settings of librdkafka. Raises KafkaDown."""
        return self._server.librdkafka(self._bootstrap)

    def _resolved(self) -> str:
        """The bootstrap brokers that have an address. librdkafka looks names up without a time limit, and cannot be
        closed meanwhile. So it gets addresses; with TLS names, which it compares with certificates, but only those that
        were resolved. Raises KafkaDown if none was.
        """
        asked = [(*one, look_up(*one)) for one in self._brokers]
        wait_for_some([one for *_, one in asked], time.monotonic() + self._timeout_s, self._more_names_s)
        found: list[str] = []
        for host, port, one in asked:
            if self._server.tls:
                found += [with_port(host, port)] if one.found else []
            else:
                found += [with_port(str(info[4][0]), port) for info in one.found]
        if not found:
            raise KafkaDown(asked[0][2].problem, "unreachable")
        return ",".join(dict.fromkeys(found))

    def _poll(self, connection: KafkaConnection, now_ns: int) -> list[Row]:
        cluster = connection.cluster_id()
        if cluster and self._cluster and cluster != self._cluster:
            # Another cluster has this address now: nothing was deleted there.
            anew = KafkaCluster(self._server, self._timeout_s)
            anew._connection, anew._bootstrap = connection, self._bootstrap
            vars(self).update(vars(anew))
        self._cluster = cluster or self._cluster  # without an id, it is not known which one it is
        names = self._names(connection)
        described = connection.described({name: self._coordinator(name) for name in names})
        failed = {name: about for name, about in described.items() if isinstance(about, Failure)}
        there = {name: _node(about.coordinator) for name, about in described.items() if name not in failed}
        committed = {**failed, **connection.committed(there)}
        answers = [found.kind if isinstance(found, Failure) else "" for found in committed.values()]
        if answers and all(kind in ("no_answer", "login") for kind in answers):
            raise connection.down(next(found for found in committed.values() if isinstance(found, Failure)))
        self._doubtful = "no_answer" in answers
        groups = {name: self._groups.get(name) or KafkaGroup(name) for name in names}
        for name, group in groups.items():
            group.update(None if name in failed else described[name])
            if _is_gone(described[name]):
                group.state = "dead"
            elif group.state == "dead" and committed[name] and not isinstance(committed[name], Failure):
                # librdkafka has the offsets of Streams groups (KIP-1071), but no description
                group.state, group.streams = "unknown", True
        self._groups = groups
        wanted = self._wanted(committed)
        offsets = self._offsets(connection, wanted, committed)
        self._refresh(connection, list(offsets), now_ns)
        self._read(wanted, committed, offsets, now_ns)
        if self._lists:
            # It waits for all brokers, so it comes after the questions that tell which one is slow.
            self._listed = connection.groups()
        now_ns = boot_ns()  # a slow broker takes seconds for its answers
        known, self._known = self._known, {}
        gone = self._see_gone(connection, committed, offsets, now_ns)
        timers = [*self._retentions(wanted, committed, offsets)]
        rows = [
            *self._partitions(wanted, committed, offsets, now_ns),
            *self._order(offsets, now_ns),
            *gone,
            *self._others(names, committed, known, {row["consumer_group"] for row in gone}),
            *({"reason": why} for why in self._left_out),
        ] or [{"status": "ok", "peer": self._addresses.peer(*self._first)}]
        if connection.nodes > 1:  # one broker may take the time of the poll
            took: dict[object, int] = {
                peer: ns
                for node, ns in connection.took_ns.items()
                if node is not None and (peer := self._addresses.peer(*node)) is not None
            }
            rows = [
                row if row.get("status") == "down" else {**row, "poll_ns": took.get(row.get("peer"))} for row in rows
            ]
        self._timers = [*timers, *(self._tail.ids.timers() if self._tail is not None else ())]
        return rows

    @property
    def _lists(self) -> bool:
        """Whether the groups have to be listed, since the setting does not name all of them."""
        return not self._server.groups or any(map(is_pattern, self._server.groups))

    def _names(self, connection: KafkaConnection) -> list[str]:
        """Names of the groups to watch, as of the end of the last poll."""
        # A named group that is not listed may not exist, or be a Streams group, which librdkafka leaves out.
        names = sorted({name for name in self._server.groups if not is_pattern(name)})
        if self._lists:
            self._listed = connection.groups() if self._listed is None else self._listed
            # A group that is not listed may be that of a broker that does not answer.
            known = {name for name, group in self._groups.items() if group.state != "dead"}
            others = {*self._listed, *known}.difference(names)
            names += sorted(name for name in others if name and is_chosen(name, self._server.groups))
        self._left_out = [_more("groups", MAX_GROUPS)] if len(names) > MAX_GROUPS else []
        return names[:MAX_GROUPS]

    def _wanted(self, committed: Mapping[str, Mapping[Key, int] | Failure]) -> list[tuple[str, Key]]:
        """Groups and their partitions: those with a committed offset, and those that are assigned."""
        wanted: list[tuple[str, Key]] = []
        for name, found in committed.items():
            if not isinstance(found, Failure):
                keys = filter(self._is_watched, {*found, *self._groups[name].holders})
                wanted += ((name, key) for key in sorted(keys))
        if len(wanted) > MAX_ROWS:
            self._left_out.append(_more("partitions", MAX_ROWS))
        return wanted[:MAX_ROWS]

    def _is_watched(self, key: Key) -> bool:
        return is_chosen(key[0], self._server.topics)

    def _refresh(self, connection: KafkaConnection, keys: Iterable[Key], now_ns: int) -> None:
        """Leaders and settings of the topics."""
        used = dict.fromkeys(topic for topic, _ in keys)
        self._topics = {name: topic for name, topic in self._topics.items() if name in used}
        known = {(name, number) for name, topic in self._topics.items() for number in topic.leaders}
        new = {topic for topic, number in keys if (topic, number) not in known}
        old = {name for name, topic in self._topics.items() if now_ns - topic.asked_ns > _LEADERS_NS}
        for name, found in connection.topics(new | old).items():
            topic = self._topics.setdefault(name, _Topic(now_ns))
            topic.asked_ns = now_ns
            if not isinstance(found, Failure):
                topic.leaders = {partition.id: partition.leader for partition in found.partitions}
        due = [name for name, topic in self._topics.items() if now_ns >= topic.settings_ns]
        if due:
            for name, settings in connection.configs(due).items():
                topic = self._topics[name]
                topic.settings_ns = now_ns + _CONFIGS_NS
                if not isinstance(settings, Failure):
                    topic.configure(settings)
                    continue
                topic.denied = settings.kind == "denied"
                if not topic.denied:
                    topic.settings_ns = now_ns + _RETRY_NS
            marker = connection.topics([_TRANSACTIONS])[_TRANSACTIONS]
            self._transactions = not (isinstance(marker, Failure) and marker.kind == "gone")

    def _offsets(
        self, connection: KafkaConnection, wanted: Iterable[tuple[str, Key]], committed: Mapping[str, Any]
    ) -> dict[Key, _Offsets | Failure]:
        """Offsets of the partitions. What costs more is asked only of those that somebody waits for."""
        before_ns = boot_ns()
        ends = connection.offsets({key: self._leader_node(key) for _, key in wanted}, "latest")
        after_ns = boot_ns()
        failed = [found for found in ends.values() if isinstance(found, Failure)]
        if failed and len(failed) == len(ends) and all(one.kind == "no_answer" for one in failed):
            # Partitions without a leader may be of topics that were deleted.
            topics = connection.topics({topic for topic, _ in ends})
            if not any(map(_is_gone, topics.values())):
                raise connection.down(failed[0])
            ends = {key: about if _is_gone(about := topics[key[0]]) else end for key, end in ends.items()}
        found: dict[Key, _Offsets | Failure] = {}
        histories, self._ends = self._ends, {}
        for key, end in ends.items():
            if isinstance(end, Failure):
                found[key] = end
                if key in histories:
                    self._ends[key] = histories[key]
            else:
                found[key] = _Offsets(end)
                self._ends[key] = histories.get(key) or EndOffsets()
                self._ends[key].add((before_ns + after_ns) // 2, end, (after_ns - before_ns) // 2)
        waits = {
            key: self._leader_node(key)
            for name, key in wanted
            if isinstance(one := found[key], _Offsets) and committed[name].get(key, -1) < one.end
        }
        starts, stable = connection.offsets(waits, "earliest"), connection.offsets(waits, "latest", committed=True)
        for key in waits:
            start, until, offsets = starts[key], stable[key], found[key]
            assert isinstance(offsets, _Offsets)
            found[key] = replace(
                offsets,
                start=None if isinstance(start, Failure) else min(start, offsets.end),
                stable=None if isinstance(until, Failure) else until,
            )
        return found

    def _read(
        self,
        wanted: Sequence[tuple[str, Key]],
        committed: Mapping[str, Any],
        offsets: Mapping[Key, _Offsets | Failure],
        now_ns: int,
    ) -> None:
        """Reads the first records that wait, where only they tell the time, or whether any wait at all."""
        known, self._first_records = self._first_records, {}
        timing = now_ns - self._timed_ns > _TIMES_NS
        unread: list[tuple[Key, int]] = []
        for name, key in wanted:
            at, offset = offsets[key], committed[name].get(key)
            if isinstance(at, Failure) or offset is None or offset >= at.end:
                continue
            first = known.get((key, offset))
            if first is not None and first.offset >= ((at.start or 0) if first.basis else at.end):
                self._first_records[key, offset] = first
            elif (
                (timing and not isnan(self._kept_s(key)))
                or self._ends[key].age(max(offset, at.start or 0), now_ns) is None
                or self._doubt(key[0], offset, at)
            ):
                unread.append((key, max(offset, at.start or 0)))
        if not unread or not self._server.records or now_ns < self._no_reading_ns:
            return
        self._timed_ns = now_ns if timing else self._timed_ns
        missing = dict(sample(unread, len(unread)))  # what is left out, and the other groups, come another time
        if self._reader is None:
            self._reader = RecordReader(self._librdkafka())
        found = self._reader.read(missing, _READING_S)
        if not found:
            self._no_reading_ns = boot_ns() + _RETRY_NS
        for name, key in wanted:
            at, offset = offsets[key], committed[name].get(key)
            if key not in found or offset is None or isinstance(at, Failure):
                continue
            if missing[key] == max(offset, at.start or 0):  # and not at the offset of another group
                self._first_records[key, offset] = found[key]

    def _partitions(
        self,
        wanted: Iterable[tuple[str, Key]],
        committed: Mapping[str, Any],
        offsets: Mapping[Key, _Offsets | Failure],
        now_ns: int,
    ) -> Iterator[Row]:
        for name, key in wanted:
            group, found, offset = self._groups[name], offsets[key], committed[name].get(key)
            peer = self._leader(key)
            self._known[name, key] = peer
            row = {**_named(group, key), "peer": peer}
            if isinstance(found, Failure):
                if _gone_key(name, key) not in self._gone:
                    yield {**row, **_failed(self.name, found, "topic")}
                continue
            lag, exact, why = self._lag(key, offset, found)
            age_s, error_s, basis, unknown = self._age(key, offset, lag, found, now_ns)
            least = self._least_age(key, offset, found, now_ns) if lag and isnan(age_s) else None
            if least is not None:
                unknown = f"age: {least.text()}"
            removed = group.removed.setdefault(key, RemovedRecords())
            if offset is not None:
                removed.see(offset, found.start, found.end)
            commits = group.commits.setdefault(key, Commits())
            position = None if offset is None else commits.position(offset, lag, group.members != 0, now_ns)
            both = "; ".join(filter(None, (why, unknown)))
            left_s = nan if lag == 0 else self._left_s(key, offset, age_s, now_ns)
            kept_s = left_s + age_s
            yield {
                **row,
                "lag_messages": lag,
                "exact": exact,
                "inexact_reason": both if len(both) <= _REASON else why,
                "lag_s": age_s,
                "lag_error_s": error_s,
                "lag_basis": basis,
                "retention_left_s": left_s,
                "oldest_undelivered_s": nan if lag == 0 else age_s if least is None else least.least,
                "removed": removed.count,
                "added": found.end,
                "acked": offset,
                "acked_exact": True,
                "position": position,
                "waits_for": self._transaction(key, offset, found),
                "kept_s": None if isnan(kept_s) else kept_s,
            }
        keys: dict[str, set[Key]] = {name: set() for name, found in committed.items() if not isinstance(found, Failure)}
        for name, key in self._known:
            keys.setdefault(name, set()).add(key)
        for name, its in keys.items():
            self._groups[name].keep(its)

    def _retentions(
        self,
        wanted: Iterable[tuple[str, Key]],
        committed: Mapping[str, Any],
        offsets: Mapping[Key, _Offsets | Failure],
    ) -> Iterator[QueueTimer]:
        """When the first unread record of each group and partition may be deleted for its age."""
        for name, key in wanted:
            at, offset, kept_s = offsets[key], committed[name].get(key), self._kept_s(key)
            first = self._first_records.get((key, -1 if offset is None else offset))
            if isinstance(at, Failure) or offset is None or isnan(kept_s) or offset >= at.end:
                continue
            if first is not None and first.offset >= at.end:
                continue  # only markers of transactions are there
            create = self._topics[key[0]].create_time
            about = _shown(f"{name}/{key[1]} {'CreateTime' if create else 'LogAppendTime'}")
            peer = self._leader(key)
            away = "its leader is not known" if peer is None else elsewhere(addr_text(peer[:16]))
            due_ns, why = None, ""
            if first is not None and first.wall_ms is not None:
                due_ns = (first.wall_ms + round(kept_s * 1000)) * 1_000_000
            else:
                if first is not None and first.basis:
                    why = "its first record has no time"
                else:
                    why = "its first record was not read" if self._server.records else "the setting has records: false"
                why = f"when is not known: {why}"
            yield QueueTimer(_shown(key[0]), about, "retention", due_ns, unknown=why, elsewhere=away)

    def _lag(self, key: Key, committed: int | None, at: _Offsets) -> tuple[int | None, bool, str]:
        """(messages, exact, reason if not)."""
        if committed is None:
            most = None if at.start is None else at.end - at.start
            if most == 0:
                return 0, True, ""
            return None, False, "no offset was committed" + ("" if most is None else f": at most {most}")
        if committed > at.end:
            return None, False, "committed beyond the end: topic made anew or cut, or offset set"
        if committed == at.end:
            return 0, True, ""
        why, first = self._doubt(key[0], committed, at), self._first_records.get((key, committed))
        if first is not None and first.offset >= at.end:
            deleted = at.start is not None and at.start > committed
            return 0, not deleted, why if deleted else ""  # no record is there, only markers of transactions
        return at.end - self._oldest(key, committed, at), not why, why

    def _oldest(self, key: Key, committed: int, at: _Offsets) -> int:
        """The offset of the first unread record that is still there, as far as known."""
        first = self._first_records.get((key, committed))
        return max(committed, at.start or 0, first.offset if first is not None else 0)

    def _doubt(self, topic: str, committed: int, at: _Offsets) -> str:
        """Why the offsets between these two are not just the messages that wait; empty if they are."""
        known = self._topics.get(topic)
        if at.start is None or at.stable is None:
            return "upper bound: the start of the partition is not known"
        if at.start > committed:
            return f"{at.start - committed} records were deleted before they were read"
        if at.stable < at.end:
            return f"upper bound: {at.end - max(at.stable, committed)} in open transactions"
        if known is None or known.compacted is None:
            why = "no DescribeConfigs right" if known is not None and known.denied else "its settings are not known"
            return f"upper bound: may be compacted ({why})"
        if known.compacted:
            return "upper bound: the topic is compacted"
        return "upper bound: counts markers of transactions" if self._transactions else ""

    def _transaction(self, key: Key, committed: int | None, at: _Offsets) -> str:
        """The open transaction at which a consumer with ``isolation.level=read_committed`` has to wait; empty if there
        is none, or a record before it. The level of a group is not known.
        """
        if committed is None or at.stable is None or not committed <= at.stable < at.end:
            return ""  # a group beyond it reads uncommitted records
        first = self._first_records.get((key, committed))
        if first is not None and not first.basis:
            committed = first.offset  # only markers of transactions are before it
        return f"open transaction at offset {at.stable}: read_committed waits" if committed >= at.stable else ""

    def _age(
        self, key: Key, committed: int | None, lag: int | None, at: _Offsets, now_ns: int
    ) -> tuple[float, float, str | None, str]:
        """(seconds, largest error, whose clock, why unknown); NaN if unknown."""
        if lag == 0:
            return 0.0, 0.0, None, ""
        if committed is None or lag is None:
            return nan, nan, None, ""
        if (age := self._ends[key].age(self._oldest(key, committed, at), now_ns)) is not None:
            return age.age_s, age.error_s, "history", ""
        first = self._first_records.get((key, committed))
        if first is None or not first.basis:
            return nan, nan, None, "age: not read"
        if first.dated_ns is None:
            return nan, nan, None, "age: the record has no time"
        age_s = (now_ns - first.dated_ns) / 1e9
        if isnan(stamped_age(age_s)):
            return nan, nan, None, f"age: {-age_s:.0f} s ahead"
        return stamped_age(age_s), nan, first.basis, ""

    def _least_age(self, key: Key, committed: int | None, at: _Offsets, now_ns: int) -> AgeBounds | None:
        """Of the first unread record, if it is older than our history and its timestamp is not known. None if it may be
        one of our time: of compacted topics and markers of transactions, the records before it may not be there.
        """
        if committed is None:
            return None
        first = self._first_records.get((key, committed))
        if first is not None and first.dated_ns is not None:
            return None
        oldest = max(committed, at.start or 0)
        since_ns = self._ends[key].older_than(oldest)
        if since_ns is None or self._doubt(key[0], oldest, at):
            return None
        return AgeBounds(max(0.0, (now_ns - since_ns) / 1e9), inf, False)

    def _left_s(self, key: Key, committed: int | None, age_s: float, now_ns: int) -> float:
        """Until the first unread record may be deleted for its age. Its own timestamp counts for that, whoever wrote
        it; as long as that is not known, the time since it was appended.
        """
        first = None if committed is None else self._first_records.get((key, committed))
        if first is not None and first.t_ns is not None:
            age_s = (now_ns - first.t_ns) / 1e9
        return self._kept_s(key) - age_s

    def _kept_s(self, key: Key) -> float:
        topic = self._topics.get(key[0])
        return nan if topic is None else topic.retention_s

    def _others(
        self,
        names: Iterable[str],
        committed: Mapping[str, Any],
        known: Mapping[tuple[str, Key], bytes | None],
        gone: Container[object],
    ) -> Iterator[Row]:
        """Groups without a partition: they have no commits, or their coordinator did not answer."""
        for name in names:
            group, found = self._groups[name], committed[name]
            row = {**_named(group), "peer": self._addresses.peer(*self._first)}
            if _is_gone(found) and row["consumer_group"] in gone:
                continue
            if isinstance(found, Failure):
                if (node := self._coordinator(name)) is not None:
                    row["peer"] = self._addresses.peer(*node)
                failed = _failed(self.name, found, "group")
                keys = [key for one, key in known if one == name]
                self._known |= {(name, key): known[name, key] for key in keys}
                yield from ({**row, **_named(group, key), **failed} for key in keys)
                if not keys:
                    yield {**row, **failed}
            elif row["consumer_group"] not in gone and not any(map(self._is_watched, (*found, *group.holders))):
                where = " in the topics of the setting" if self._server.topics else ""
                if group.state == "dead":
                    yield {**row, "status": "unknown", "reason": _NO_GROUP}
                else:
                    yield {**row, "status": "ok", "reason": f"no committed offsets{where}"}

    def _see_gone(
        self,
        connection: KafkaConnection,
        committed: Mapping[str, Mapping[Key, int] | Failure],
        offsets: Mapping[Key, _Offsets | Failure],
        now_ns: int,
    ) -> list[Row]:
        """Rows of partitions in which a group had committed an offset: its topic, the group or the offset is gone."""
        before = {one for one in self._committed if one[0] in committed}
        self._committed = {
            one for one in before if isinstance(committed[one[0]], Failure) and not _is_gone(committed[one[0]])
        }
        for name, found in committed.items():
            if not isinstance(found, Failure):
                keys = filter(self._is_watched, found)
                self._committed |= {(name, key) for key in keys if not _is_gone(offsets.get(key))}
        for name, key in self._committed:
            self._gone.back(_gone_key(name, key))
        lost = before - self._committed
        topics = self._described(connection, {key[0] for _, key in lost}, now_ns)
        hidden: dict[tuple[str, Key], Failure] = {}  # Kafka leaves topics out that we may no longer see
        for name, key in sorted(lost):
            group, about, why = self._groups[name], topics[key[0]], "its committed offset was deleted, or has expired"
            if isinstance(about, Failure) and not _is_gone(about) and (group.state != "dead" or group.streams):
                hidden[name, key] = about
                continue
            if _is_gone(about) or _is_gone(offsets.get(key)):
                why = "the topic was deleted"
            elif group.state == "dead":
                why = "the group was deleted"
            self._gone.add(_gone_key(name, key), why, now_ns)
        self._committed |= hidden.keys()
        away = {(name, key): it for (name, key), it in hidden.items() if key not in self._groups[name].holders}
        away = dict(islice(away.items(), max(0, MAX_ROWS - len(self._known))))
        self._known |= dict.fromkeys(away)
        refused = ({**_named(self._groups[n], key), **_failed(self.name, it, "topic")} for (n, key), it in away.items())
        return [*self._gone.rows(now_ns), *refused]

    def _described(self, connection: KafkaConnection, names: set[str], now_ns: int) -> dict[str, Any]:
        """TopicDescription or Failure by topic. One that we may not see is asked for every 60 s."""
        self._denied = {topic: at_ns for topic, at_ns in self._denied.items() if topic in names and now_ns < at_ns}
        found = connection.topics(names - self._denied.keys())
        denied = [topic for topic, about in found.items() if isinstance(about, Failure) and about.kind == "denied"]
        self._denied |= dict.fromkeys(denied, now_ns + _CONFIGS_NS)
        return {**found, **dict.fromkeys(self._denied, Failure("denied", ""))}

    def _order(self, offsets: Mapping[Key, _Offsets | Failure], now_ns: int) -> Iterator[Row]:
        """Reads new records for ``order``. Rows: what it could not find, by topic."""
        if self._tail is None:
            return
        ends = {key: at.end for key, at in offsets.items() if isinstance(at, _Offsets)}
        found = self._tail.read(ends, self._librdkafka, now_ns)
        self._ordered = [
            {**row, "cluster": self._cluster, "destination": _shown(str(row["destination"]))} for row in found
        ]
        for topic, why in self._tail.problems():
            yield {"destination": _shown(topic), "reason": why}

    def _leader(self, key: Key) -> bytes | None:
        node = self._leader_node(key)
        return None if node is None else self._addresses.peer(*node)

    def _leader_node(self, key: Key) -> Node | None:
        topic = self._topics.get(key[0])
        return None if topic is None else _node(topic.leaders.get(key[1]))

    def _coordinator(self, name: str) -> Node | None:
        """As of the last time that it was known."""
        return _node(self._groups[name].coordinator) if name in self._groups else None

    def _down(self, error: KafkaDown) -> list[Row]:
        """One row for each known group and partition, so that its series continues; else one for the cluster."""
        row = {"status": "down", "reason": f"{self.name}: {error}", "failure": error.failure}
        return [
            {**_named(KafkaGroup(name), key), **row, "peer": peer} for (name, key), peer in self._known.items()
        ] or [{**row, "peer": self._addresses.peer(*self._first)}]


def _more(what: str, most: int) -> str:
    return f"more than {most} {what} are not watched: choose with groups and topics of the setting kafka"


def _node(found: Any) -> Node | None:
    """Of librdkafka's Node."""
    return None if found is None or not found.host else (found.host, found.port)


def _shown(name: str) -> bytes:
    return fitted(name.encode(errors="replace"), _WIDTH)


def _is_gone(found: object) -> bool:
    return isinstance(found, Failure) and found.kind == "gone"


def _gone_key(group: str, key: Key) -> tuple[bytes, ...]:
    return _shown(key[0]), _shown(group), str(key[1]).encode()


def _named(group: KafkaGroup, key: Key | None = None) -> dict[str, object]:
    row: dict[str, object] = {
        "consumer_group": _shown(group.name),
        "consumers": group.members,
        "group_state": group.state,
        "rebalances": group.rebalances,
    }
    if key is not None:
        row |= {"destination": _shown(key[0]), "partition": str(key[1]), "holder": _shown(group.holders.get(key, ""))}
    return row


def _failed(name: str, failure: Failure, what: str) -> dict[str, object]:
    """The columns of a row without an answer. A missing right, or a topic that is gone, is not an outage."""
    if failure.kind in ("no_answer", "login"):
        return {"status": "down", "failure": failure.kind, "reason": f"{name}: {failure.reason}"}
    if failure.kind == "denied":
        reason = f"not allowed: the agent's user needs the right Describe on the {what}"
        return {"status": "unknown", "failure": "permission", "reason": reason}
    if failure.kind == "gone":
        reason = _NO_GROUP if what == "group" else "the topic or partition is deleted"
    else:
        reason = failure.reason
    return {"status": "unknown", "reason": reason}


BROKER = Broker(
    "kafka",
    "Kafka",
    "consumer groups by topic and partition: lag, time lag, members, rebalances",
    "kafka://host:9092,host:9092?groups=orders*&topics=orders",
    "no groups: all; id=order/id&seq=n: finds duplicates; TLS and SASL: a section, see docs/queues-kafka.md",
    parse,
    KafkaCluster,
    KafkaServer,
)
