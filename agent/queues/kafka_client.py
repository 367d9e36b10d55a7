"""Questions to a Kafka cluster through librdkafka, each within a deadline.

Answers and failures are plain values, so that one group or partition that fails does not end the poll.
"""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from agent.common.clocks import boot_ns
from agent.common.tls import IN_SECTION, unverified

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
Key = tuple[str, int]  #: topic and partition
Node = tuple[str, int]  #: host and port of a broker

#: librdkafka's connections. A refused or lost one is tried again soon, with jitter.
CONNECTING = {
    "client.id": "tickscope",
    "log_level": 0,  # its errors come by error_cb; its log would go to stderr
    "socket.connection.setup.timeout.ms": 1000,
    "reconnect.backoff.ms": 100,
    "reconnect.backoff.max.ms": 2000,
    "socket.keepalive.enable": True,
}
#: Of a consumer that reads records and commits nothing.
READING = {
    **CONNECTING,
    "group.id": "tickscope",  # it has to be there; nothing joins it
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
}
#: Names of librdkafka's and Kafka's errors (KafkaError.name), by ``Failure.kind``.
_KINDS = {
    "gone": "UNKNOWN_TOPIC_OR_PART _UNKNOWN_TOPIC _UNKNOWN_PARTITION UNKNOWN_TOPIC_ID GROUP_ID_NOT_FOUND",
    "denied": "TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED",
    "login": "_AUTHENTICATION SASL_AUTHENTICATION_FAILED",
    "no_answer": "_TIMED_OUT _TIMED_OUT_QUEUE REQUEST_TIMED_OUT _WAIT_COORD COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR"
    " COORDINATOR_LOAD_IN_PROGRESS LEADER_NOT_AVAILABLE NOT_LEADER_FOR_PARTITION _TRANSPORT _ALL_BROKERS_DOWN"
    " BROKER_NOT_AVAILABLE _NOENT",  # the last one: none of the partitions of a question has a leader
}
_KIND = {name: kind for kind, names in _KINDS.items() for name in names.split()}
#: They say less than the error of a connection that led to them.
_EMPTY = ("_ALL_BROKERS_DOWN", "_TIMED_OUT")
#: Times the timeout of the first question.
_LARGE = 3.0
#: Beyond the timeout of a question, for librdkafka's threads on a busy host.
_LATE_S = 0.2
#: Of a connection's error, the failure of ``queue_lag``, by a part of its text.
_CONNECTIONS = (
    ("Connection refused", "refused"),
    ("timed out", "no_answer"),
    ("No route", "unreachable"),
    ("unreachable", "unreachable"),
    ("Failed to resolve", "unreachable"),
    ("Host resolution", "unreachable"),
    ("Disconnected", "closed"),
    ("reset by peer", "closed"),
    ("Receive failed", "closed"),
)
CLOSED = "it closes the connection: if the port wants TLS or a login, set `tls` or `user`"
#: Parts of librdkafka's texts about TLS and logins -> what is wrong, with the keys of the setting.
_REMEDIES = (
    (("ssl.ca.location failed",), "`ca_file` cannot be read: it is PEM, readable to user tickscope"),
    (
        ("ssl.certificate.location", "ssl.key.location"),
        "`certificate_file` or `key_file` cannot be read, or do not match",
    ),
    (
        ("certificate verify failed", "could not be verified"),
        unverified(keys=IN_SECTION._replace(address="`servers`")),
    ),
    (
        ("alert certificate", "alert bad certificate", "alert unknown ca", "alert handshake failure"),
        "it refused our certificate, or got none: set `certificate_file`, `key_file`",
    ),
    (
        ("PLAINTEXT broker listener", "wrong version number", "packet length too long", "record layer failure"),
        "the port speaks no TLS: set `tls: false`, or the port of TLS",
    ),
    (("SSL listener", "might require SASL"), CLOSED),
)
#: What librdkafka adds to an error: the broker, and how long the connection was in which state.
_AROUND = re.compile(r"^(?:\S+://)?\S+?/(?:bootstrap|\d+): |^GroupCoordinator: | \(after \d+ms.*| \(_\w+\)$")


class KafkaDown(Exception):
    """The cluster gave no usable answer. The text is the reason, ``failure`` its kind (``queue_lag.failure``)."""

    def __init__(self, reason: str, failure: str) -> None:
        super().__init__(reason)
        self.failure = failure


class Failure(NamedTuple):
    """Why a question about one group, topic or partition has no answer. kind: gone denied login no_answer other."""

    kind: str
    reason: str


class KafkaConnection:
    """An AdminClient. Raises KafkaDown as ``made``. timeout_s: of ``cluster_id``; the other questions may take longer,
    since their answers may be large.

    nodes: brokers of the cluster, as of ``cluster_id``. took_ns: how long each broker took since then for its own
    answers, as far as the caller knows which one answers what.

    librdkafka 2.16 crashes in two cases, which end this process:
      - A broker comes back after questions about groups timed out (librdkafka#4605). So each poll begins with
        ``cluster_id``, which is safe, and a connection with a question that had no answer is not used again.
      - A broker that is not, or not yet, a group's coordinator is asked for the group's offsets. So ``described`` comes
        first: it has an error then.
    """

    def __init__(self, settings: Mapping[str, object], timeout_s: float) -> None:
        from confluent_kafka.admin import AdminClient

        self._first_s, self._timeout_s = timeout_s, _LARGE * timeout_s
        self._errors: deque[Any] = deque(maxlen=8)
        self.nodes, self.took_ns = 0, Counter[Node | None]()
        self._admin = made(AdminClient, {**CONNECTING, **settings, "error_cb": self._errors.append})

    def cluster_id(self) -> str:
        """Kafka's own id of the cluster. Raises KafkaDown."""
        self.took_ns.clear()
        found = self._alone(self._admin.describe_cluster(request_timeout=self._first_s))
        self.nodes = len(found.nodes)
        return str(found.cluster_id or "")

    def groups(self) -> list[str]:
        """Names of all consumer groups that we may see; those of brokers that do not answer are missing. librdkafka
        leaves out share groups and Streams groups. Raises KafkaDown.
        """
        listed = self._alone(self._admin.list_consumer_groups(request_timeout=self._timeout_s))
        if listed.errors and not listed.valid:
            raise self.down(Failure(_KIND.get(listed.errors[0].name(), "other"), _text(listed.errors[0])))
        return [group.group_id for group in listed.valid]

    def described(self, groups: Mapping[str, Node | None]) -> dict[str, Any]:
        """ConsumerGroupDescription or Failure by group. groups: with their coordinators; None: not known."""

        def ask(wanted: list[str]) -> dict[str, Future[Any]]:
            return dict(self._admin.describe_consumer_groups(wanted, request_timeout=self._timeout_s))

        return self._by_node(groups, ask)

    def committed(self, groups: Mapping[str, Node | None]) -> dict[str, dict[Key, int] | Failure]:
        """Committed offsets or Failure by group. Ask only for groups that were just described. groups: as there."""
        from confluent_kafka import ConsumerGroupTopicPartitions

        def ask(wanted: list[str]) -> dict[str, Future[Any]]:
            asked: dict[str, Future[Any]] = {}
            for group in wanted:  # librdkafka takes one group a call
                asked |= self._admin.list_consumer_group_offsets(
                    [ConsumerGroupTopicPartitions(group)], request_timeout=self._timeout_s
                )
            return asked

        return {
            group: found
            if isinstance(found, Failure)
            else {(p.topic, p.partition): p.offset for p in found.topic_partitions if p.error is None and p.offset >= 0}
            for group, found in self._by_node(groups, ask).items()
        }

    def offsets(self, keys: Mapping[Key, Node | None], spec: str, committed: bool = False) -> dict[Key, int | Failure]:
        """Offsets of partitions. keys: with their leaders; None: not known. spec: latest or earliest. committed: latest
        is the first open transaction, if any. A broker may say -1 without an error while a leader is elected.
        """
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        at = getattr(OffsetSpec, spec)()
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        def ask(wanted: list[Key]) -> dict[Key, Future[Any]]:
            asked = self._admin.list_offsets(
                {TopicPartition(*key): at for key in wanted}, isolation_level=level, request_timeout=self._timeout_s
            )
            return {(partition.topic, partition.partition): future for partition, future in asked.items()}

        return {
            key: found
            if isinstance(found, Failure)
            else found.offset
            if found.offset >= 0
            else Failure("no_answer", "Leader not available")
            for key, found in self._by_node(keys, ask).items()
        }

    def topics(self, names: Iterable[str]) -> dict[str, Any]:
        """TopicDescription or Failure by topic."""
        from confluent_kafka import TopicCollection

        wanted = list(names)
        if not wanted:
            return {}
        asked = self._admin.describe_topics(TopicCollection(wanted), request_timeout=self._timeout_s)
        return _answers(asked, self._until_s())

    def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str] | Failure]:
        """The settings of topics, by their names in Kafka, without those whose value the broker keeps to itself."""
        from confluent_kafka.admin import ConfigResource, ResourceType

        wanted = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        if not wanted:
            return {}
        asked = self._admin.describe_configs(wanted, request_timeout=self._timeout_s)
        return {
            resource.name: found
            if isinstance(found, Failure)
            else {name: str(entry.value) for name, entry in found.items() if entry.value is not None}
            for resource, found in _answers(asked, self._until_s()).items()
        }

    def down(self, failure: Failure) -> KafkaDown:
        """That failure as one of the whole cluster: the last error of a connection says more, if there is one."""
        self._serve()
        known = [error for error in reversed(self._errors) if error.name() not in _EMPTY]
        known.sort(key=lambda error: _KIND.get(error.name()) != "login")
        if known:
            return of_connection(_text(known[0]), _KIND.get(known[0].name()) == "login")
        if failure.kind == "no_answer" and any(error.name() == "_ALL_BROKERS_DOWN" for error in self._errors):
            return KafkaDown(CLOSED, "closed")  # librdkafka does not report connections that end before an answer
        if failure.kind == "no_answer":
            return KafkaDown(f"no answer within {self._first_s:g} s", "no_answer")
        return KafkaDown(failure.reason, "login" if failure.kind == "login" else "other")

    def well(self) -> None:
        """Forgets errors of connections, after a poll that succeeded."""
        self._serve()
        self._errors.clear()

    def _by_node(self, wanted: Mapping[K, Node | None], ask: Callable[[list[K]], dict[K, Future[Any]]]) -> dict[K, Any]:
        """The answers, asked for by broker, since librdkafka gives those to one question all at once. Counts in
        ``took_ns``.
        """
        of: dict[Node | None, list[K]] = {}
        for key, node in wanted.items():
            of.setdefault(node, []).append(key)
        begun_ns, ended_ns, asked = boot_ns(), dict[Node | None, int](), dict[K, Future[Any]]()

        def end(node: Node | None, _: object) -> None:
            ended_ns[node] = boot_ns()

        for node, keys in of.items():
            futures = ask(keys)
            for future in futures.values():
                future.add_done_callback(partial(end, node))
            asked |= futures
        found = _answers(asked, self._until_s())
        for node in of:
            self.took_ns[node] += ended_ns.get(node, boot_ns()) - begun_ns
        return found

    def _alone(self, asked: Future[T]) -> T:
        """The answer to one question. Raises KafkaDown."""
        found = _answers({"": asked}, self._until_s())[""]
        if isinstance(found, Failure):
            raise self.down(found)
        return cast(T, found)

    def _until_s(self) -> float:
        """librdkafka ends each question itself; the rest is for its own threads."""
        return time.monotonic() + self._timeout_s + _LATE_S

    def _serve(self) -> None:
        """librdkafka hands its errors to ``error_cb`` here."""
        while self._admin.poll(0):
            pass


def made(client: Callable[[dict[str, object]], Any], settings: dict[str, object]) -> Any:
    """A client of librdkafka. Raises KafkaDown if that refuses the settings, for example because it cannot read a
    certificate.
    """
    from confluent_kafka import KafkaException

    try:
        return client(settings)
    except (KafkaException, ValueError, TypeError) as error:
        raise KafkaDown(_remedy(_text(error)), "other") from None


def of_connection(text: str, login: bool) -> KafkaDown:
    """What a connection's error means. login: whether it is about a login."""
    words = _remedy(text)
    if login and words == text:
        words = f"{text}: see `user`, `mechanism`, `password_file`"
    kind = next((kind for part, kind in _CONNECTIONS if part in text), "other")
    if kind in ("other", "closed") and any(part in words for part in ("certificate", "no TLS")):
        login = True
    return KafkaDown(words, "login" if login else kind)


def _remedy(text: str) -> str:
    return next((words for parts, words in _REMEDIES if any(part in text for part in parts)), text)


def _answers(asked: Mapping[K, Future[Any]], until_s: float) -> dict[K, Any]:
    return {key: _answer(future, until_s) for key, future in asked.items()}


def _answer(asked: Future[Any], until_s: float) -> Any:
    """The answer, or Failure."""
    from confluent_kafka import KafkaException

    try:
        return asked.result(max(0.0, until_s - time.monotonic()))
    except TimeoutError:
        return Failure("no_answer", "no answer")
    except KafkaException as error:
        return Failure(_KIND.get(error.args[0].name(), "other"), _text(error))


def _text(error: Any) -> str:
    """What an error says, without the broker's name in librdkafka and without its own clock."""
    from confluent_kafka import KafkaError

    about = error.args[0] if isinstance(error, Exception) and error.args else error
    text = about.str() if isinstance(about, KafkaError) else str(about)
    return _AROUND.sub("", text).strip()
