"""Kafka's settings; times from the history of end offsets; what a committed offset that stands still means; rebalances
between polls. The real server: tests/servers/test_kafka.py.
"""

from __future__ import annotations

import math
import random
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.common.clocks import boot_ns
from agent.common.credentials import Password
from agent.config import resolve
from agent.errors import AgentError
from agent.queues.brokers import kafka
from agent.queues.brokers.kafka import BROKER, KafkaCluster, KafkaServer
from agent.queues.commits import Commits
from agent.queues.end_offsets import SAMPLES, EndOffsets
from agent.queues.judged import Judged
from agent.queues.kafka_client import Failure, KafkaConnection, KafkaDown, Key, of_connection
from agent.queues.kafka_groups import KafkaGroup, RemovedRecords
from agent.queues.kafka_records import FirstRecord, RecordReader
from agent.queues.kafka_tail import RecordField, RecordTail
from agent.queues.poller_process import BrokerPoller
from agent.queues.status import WINDOW_NS, Progress, Sample
from agent.tables import TABLES
from tests.servers.polled import until_drained

SECOND = 10**9
ID = RecordField(header="id")


@pytest.mark.parametrize(
    ("given", "servers", "groups", "topics"),
    [
        ("kafka://a", "a:9092", (), ()),
        ("kafka://a:1,b,[::1]:3/?groups=o*,m&topics=t", "a:1,b:9092,[::1]:3", ("o*", "m"), ("t",)),
        ("a:1, [::1]", "a:1,[::1]:9092", (), ()),
    ],
)
def test_a_cluster_is_a_text(given: str, servers: str, groups: tuple[str, ...], topics: tuple[str, ...]) -> None:
    assert BROKER.server(given) == KafkaServer(servers=servers, groups=groups, topics=topics)


@pytest.mark.parametrize(
    "given",
    [
        *("", "kafka://", "http://a", "kafka://user:pw@a", "a:0", "a:x", "::1", "a:1?group=b", "kafka://a b", "a?x"),
        *("a?topics=^orders", "a?topics=a|b", "a?seq=n", "a?id=a//b", "a?id=header:"),
    ],
)
def test_what_is_no_cluster_is_refused_without_its_password(given: str) -> None:
    with pytest.raises(AgentError) as error:
        BROKER.server(given)
    assert "pw" not in str(error.value)
    assert error.value.exit_code == 2


SECTIONS = [
    ("{servers: 'a:1', tls: true, ca_file: /ca.pem}", ""),
    ("{servers: 'a:1', user: me, password_file: /p, groups: [a, 'b*'], topics: t}", ""),
    ("{servers: 'a:1', user: me, password_variable: TICKSCOPE_KAFKA_PASSWORD, mechanism: PLAIN}", ""),
    ("{servers: 'a:1', topics: ['a.b-c_*', '[a-c]?', '[!d]'], id: a/0/b, seq: 'header:x/y'}", ""),
    (
        "{servers: 'a:1', topics: ['orders-.+']}",
        "is not a topic name or pattern: write orders*, not a regular expression",
    ),
    ("{servers: 'a:1', seq: n}", "seq needs id"),
    ("{servers: 'a:1', id: 'header:'}", "such as order/id, or header:NAME"),
    ("{groups: [a]}", "it has no servers: write `servers"),
    ("{servers: 'a:1', ca_file: /ca.pem}", "need `tls: true`"),
    ("{servers: 'a:1', tls: true, ca_file: ca.pem}", "must be an absolute path"),
    ("{servers: 'a:1', tls: true, certificate_file: /c.pem}", "certificate_file and key_file must be set together"),
    ("{servers: 'a:1', user: me}", "user must be set together with"),
    ("{servers: 'a:1', user: me, password: secret}", "there is no setting kafka.0.password"),
    ("{servers: 'a:1', user: me, password_variable: HOME}", "must begin with TICKSCOPE_KAFKA_"),
    ("{servers: 'a:1', user: me, password_file: /p, mechanism: GSSAPI}", "must be one of SCRAM-SHA-512"),
]


@pytest.mark.parametrize(("section", "words"), SECTIONS)
def test_a_cluster_is_a_section(section: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(f"kafka: [{section}]\n")
    if not words:
        (server,) = resolve({}, {}, str(file)).queues.brokers["kafka"]
        assert BROKER.server(server).servers == "a:1"
        return
    with pytest.raises(AgentError) as error:
        resolve({}, {}, str(file))
    text = f"{error.value}: {error.value.why}"
    assert words in text
    assert "t.yaml:1:" in text
    assert "secret" not in text


def test_the_password_is_read_from_a_file_or_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p").write_text("se cret\n")
    from_file = KafkaServer(servers="a:1", user="me", password=Password(str(tmp_path / "p")))
    assert from_file.librdkafka()["sasl.password"] == "se cret"
    missing = KafkaServer(servers="a:1", user="me", password=Password(str(tmp_path / "q")))
    with pytest.raises(KafkaDown, match="No such file"):
        missing.librdkafka()
    variable = Password(variable="TICKSCOPE_KAFKA_P")
    named = KafkaServer(servers="a:1", user="me", password=variable, tls=True, mechanism="PLAIN")
    with pytest.raises(KafkaDown, match="TICKSCOPE_KAFKA_P is not set"):
        named.librdkafka()
    monkeypatch.setenv("TICKSCOPE_KAFKA_P", "s")
    assert named.librdkafka() == {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "s",
    }


def appended(seed: int) -> Iterator[tuple[int, int, list[int]]]:
    """Polls of a partition: time, end offset, and when each record so far was appended."""
    chance, times = random.Random(seed), []
    for poll in range(1, 700):
        start, end = (poll - 1) * SECOND, poll * SECOND
        rate = 0 if poll % 100 > 60 else chance.choice((0, 1, 3, 40))
        times += sorted(chance.randrange(start, end) for _ in range(rate))
        yield end, len(times), times


@pytest.mark.parametrize("seed", range(3))
def test_the_time_of_a_record_lies_within_its_error(seed: int) -> None:
    """The broker answers at some time of a poll, which takes up to 0.8 s."""
    history, checked, worst = EndOffsets(), 0, 0.0
    history.add(0, 0)
    slow = random.Random(seed)
    for now, end, times in appended(seed):
        off = slow.randrange(1, 4 * SECOND // 10)
        history.add(now + slow.randrange(-off, off), end, off)
        now += off
        for back in (1, 2, 7, 50, 400, 3000):
            age = history.age(end - back, now)
            if age is None:
                assert end - back < 0
                continue
            truth = (now - times[end - back]) / SECOND
            assert age.age_s >= 0
            assert abs(age.age_s - truth) <= age.error_s + 1e-6, (now, back)
            checked, worst = checked + 1, max(worst, age.error_s / (truth + 1))
    assert checked > 1000
    assert worst < 1.81  # the error does not grow faster than the age
    assert len(history._ends) <= SAMPLES
    assert history.age(end, now) is None  # not yet there


def test_a_smaller_end_begins_a_new_history() -> None:
    history = EndOffsets()
    for t, end in ((1, 5), (2, 9), (3, 2), (4, 4)):
        history.add(t * SECOND, end)
    assert history.age(7, 5 * SECOND) is None
    assert history.age(1, 5 * SECOND) is None  # it is older than the new history
    assert history.age(3, 5 * SECOND) is not None


def stands_still(commits: Commits, polls: list[tuple[int, int | None]], consumed: bool = True) -> list[bool]:
    return [commits.position(o, lag, consumed, i * SECOND) is not None for i, (o, lag) in enumerate(polls)]


def test_an_offset_stands_still_after_some_commit_intervals() -> None:
    window_s = WINDOW_NS // SECOND
    polls = [(i // 5, 3) for i in range(30)] + [(6, 9)] * 30  # a commit every 5 s, and then none
    found = stands_still(Commits(), polls)
    first = found.index(True)
    assert 30 < first + window_s <= 30 + 3 * 5 + 1  # judged.py needs it for a window
    assert all(found[first:])
    rare = [(i // 40, 3) for i in range(400)]
    assert not any(stands_still(Commits(), rare)[80:])
    for every in (600, 3600):  # the agent starts 5 s before a commit
        found = stands_still(Commits(), [((i + every - 5) // every, 3) for i in range(4 * every)])
        assert not any(found[5 + every :])
    never = stands_still(Commits(), [(7, 3)] * 90)
    assert never.index(True) == 60 - window_s
    idle = [*polls[:30], *[(6, 0)] * 600, *[(7, 3)] * 30]  # nothing to read for ten minutes: that is no interval
    assert all(stands_still(Commits(), idle)[630 + 3 * 5 - window_s :])
    assert all(stands_still(Commits(), [(7, 3)] * 3, consumed=False))


def test_a_standstill_is_no_commit_interval() -> None:
    """A group that recovers for one commit and hangs again is found as soon as the first time, or within minutes."""
    regular = [(i // 5, 3) for i in range(30)]
    hangs = [*regular, *[(6, 9)] * 600, *[(7, 9)] * 200]
    assert stands_still(Commits(), hangs)[630:].index(True) <= 3 * 60
    commits = Commits()
    for second in range(930):  # for ten minutes it has no consumer
        offset = second // 5 if second < 300 else 60 if second < 900 else 61
        position = commits.position(offset, 3, not 300 <= second < 895, second * SECOND)
    assert position == 61


def test_a_group_that_was_restarted_is_not_stalled() -> None:
    """It commits every 5 s, as by default, and has no member for a while."""
    commits, progress, found = Commits(), Progress(), []
    for i in range(120):
        there = not 30 <= i < 50
        committed = 5 * (i // 5) if there else 30
        position = commits.position(committed, i + 3 - committed, there, i * SECOND)
        progress.add(
            Sample(i * SECOND, i + 3 - committed, 0, int(there), position, acked=committed, added=i + 3, exact=True)
        )
        found.append(progress.judge().status)
    assert found[45] == "stopped"
    assert not {"stopped", "stalled"} & set(found[51:])


class Cluster:
    """What a Kafka cluster answers, of a topic with two partitions on two brokers. The second broker does not.

    about: of each group; offsets: committed ones.
    """

    nodes, took_ns = 2, {("127.0.0.1", 9092): 5_000_000, ("127.0.0.2", 9092): SECOND, None: 7}

    def __init__(self, about: Any = None, offsets: Any = None) -> None:
        self._about = about or described("EMPTY")
        self._committed = {("t", 0): 3, ("t", 1): 3} if offsets is None else offsets

    def cluster_id(self) -> str:
        return "c"

    def described(self, groups: Any) -> dict[str, Any]:
        return dict.fromkeys(groups, self._about)

    def committed(self, groups: Any) -> dict[str, Any]:
        return dict.fromkeys(groups, self._committed)

    def offsets(self, keys: Any, spec: str, committed: bool = False) -> dict[Key, Any]:
        ends: dict[Key, Any] = {("t", 0): 5, ("t", 1): Failure("no_answer", "no answer")}
        return {key: 0 if spec == "earliest" and key[1] == 0 else ends[key] for key in keys}

    def topics(self, names: Any) -> dict[str, Any]:
        nodes = [SimpleNamespace(id=i, leader=SimpleNamespace(host=f"127.0.0.{i + 1}", port=9092)) for i in range(2)]
        return {name: SimpleNamespace(partitions=nodes) for name in names}

    def configs(self, topics: Any) -> dict[str, Any]:
        return {
            topic: {"cleanup.policy": "delete", "retention.ms": str(2**63 - 1), "message.timestamp.type": "CreateTime"}
            for topic in topics
        }


def test_a_broker_that_does_not_answer_makes_no_other_one_slow_and_the_longest_retention_is_none() -> None:
    cluster = KafkaCluster(KafkaServer(servers="127.0.0.1:9092", groups=("g",), records=False))
    connection: Any = Cluster()
    rows: Any = cluster._poll(connection, boot_ns())
    answering, silent = rows
    assert (answering["lag_messages"], answering["poll_ns"]) == (2, 5_000_000)
    assert (silent["failure"], "poll_ns" in silent) == ("no_answer", False)
    assert math.isnan(answering["retention_left_s"])
    due = cluster.timers()
    assert due is not None and not due.timers


class Deleted(Cluster):
    """Its only topic was deleted: no partition has a leader."""

    def offsets(self, keys: Any, spec: str, committed: bool = False) -> dict[Key, Any]:
        return dict.fromkeys(keys, Failure("no_answer", "No leaders found"))

    def topics(self, names: Any) -> dict[str, Any]:
        return dict.fromkeys(names, Failure("gone", "Unknown topic"))


def test_a_deleted_topic_that_is_the_only_one_is_no_outage_of_the_cluster() -> None:
    cluster = KafkaCluster(KafkaServer(servers="127.0.0.1:9092", groups=("g",), records=False))
    connection: Any = Deleted()
    rows: Any = cluster._poll(connection, boot_ns())
    assert {row["reason"] for row in rows} == {"the topic or partition is deleted"}


class Lacking(Cluster):
    """The group has an offset in a topic that was deleted. configured: topics that were asked for their settings."""

    def __init__(self) -> None:
        super().__init__(offsets={("t", 0): 3, ("deleted", 0): 3})
        self.configured = list[list[str]]()

    def offsets(self, keys: Any, spec: str, committed: bool = False) -> dict[Key, Any]:
        return self._without(dict.fromkeys(keys, 0 if spec == "earliest" else 5))

    def topics(self, names: Any) -> dict[str, Any]:
        return self._without(super().topics(names))

    def configs(self, topics: Any) -> dict[str, Any]:
        self.configured.append(sorted(topics))
        return self._without(super().configs(topics))

    def _without(self, answers: dict[Any, Any]) -> dict[Any, Any]:
        gone = Failure("gone", "Unknown topic")
        return {key: gone if "deleted" in (key, key[0]) else it for key, it in answers.items()}


def test_a_topic_that_cannot_be_described_costs_no_questions_about_the_others() -> None:
    cluster = KafkaCluster(KafkaServer(servers="127.0.0.1:9092", groups=("g",), records=False))
    lacking = Lacking()
    connection: Any = lacking
    begun_ns = boot_ns()
    for second in range(65):
        cluster._poll(connection, begun_ns + second * SECOND)
    both = ["deleted", "t"]
    assert lacking.configured == [both, *[["deleted"]] * 5, both]


def test_a_record_without_a_timestamp_has_no_age_of_its_own() -> None:
    """Some producers send -1, and the broker stores it; some send 0, or seconds for milliseconds."""
    from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE

    key, at = ("t", 0), kafka._Offsets(5, 0, 5)
    odd_ms = (-1, 0, 1_700_000_000)
    for kind, sent_ms in (*((TIMESTAMP_CREATE_TIME, ms) for ms in odd_ms), (TIMESTAMP_NOT_AVAILABLE, 0)):
        about = {"value": b"", "error": None, "topic": "t", "partition": 0, "offset": 3, "timestamp": (kind, sent_ms)}
        message = SimpleNamespace(**{name: lambda it=it: it for name, it in about.items()})
        reader = RecordReader({"bootstrap.servers": "127.0.0.1:1"})
        reader._consumer = SimpleNamespace(
            assign=lambda _: None, unassign=lambda: None, consume=lambda *_, its=message: [its]
        )
        found = reader.read({key: 3}, 1.0)
        assert (found[key].offset, found[key].dated_ns, found[key].basis) == (3, None, "create")
        cluster = KafkaCluster(KafkaServer(servers="127.0.0.1:9092"))
        cluster._topics["t"] = kafka._Topic(0, compacted=False)
        cluster._ends[key] = EndOffsets()
        cluster._ends[key].add(SECOND, 5)
        cluster._first_records[key, 3] = found[key]
        assert cluster._age(key, 3, 2, at, 9 * SECOND)[3] == "age: the record has no time"
        least = cluster._least_age(key, 3, at, 9 * SECOND)
        assert least is not None and least.least == 8


def test_a_group_that_is_gone_is_asked_for_no_more_unless_the_setting_names_it() -> None:
    cluster = KafkaCluster(KafkaServer(servers="127.0.0.1:9092", records=False))
    connection: Any = Cluster(Failure("gone", "Group ID not found"), {})
    connection.groups = lambda: ["g"]
    cluster._poll(connection, boot_ns())
    connection.groups = list
    cluster._poll(connection, boot_ns())
    assert cluster._names(connection) == []


class LateBroker:
    """An AdminClient. The broker with partition 1 answers late."""

    def list_offsets(self, wanted: dict[Any, Any], **_: Any) -> dict[Any, Any]:
        futures: dict[Any, Any] = {partition: Future() for partition in wanted}

        def answer() -> None:
            for future in futures.values():
                future.set_result(SimpleNamespace(offset=5))

        threading.Timer(0.1 if any(one.partition == 1 for one in wanted) else 0, answer).start()
        return futures


def test_each_broker_has_the_time_of_its_own_answers() -> None:
    connection = KafkaConnection({"bootstrap.servers": "127.0.0.1:1"}, 1.0)
    connection._admin = LateBroker()
    near, late = ("a", 9092), ("b", 9092)
    assert connection.offsets({("t", 0): near, ("t", 1): late}, "latest") == {("t", 0): 5, ("t", 1): 5}
    assert connection.took_ns[near] < connection.took_ns[late] >= 100_000_000


def test_a_partition_whose_leader_is_being_elected_has_no_answer() -> None:
    from confluent_kafka import KafkaError, KafkaException

    elected: Future[Any] = Future()
    elected.set_exception(KafkaException(KafkaError(KafkaError._NOENT, "No leaders found")))
    connection = KafkaConnection({"bootstrap.servers": "127.0.0.1:1"}, 1.0)
    connection._admin = SimpleNamespace(list_offsets=lambda wanted, **_: dict.fromkeys(wanted, elected))
    assert connection.offsets({("t", 0): None}, "latest") == {("t", 0): Failure("no_answer", "No leaders found")}


NO_GROUP = "no such consumer group: start its consumers, or correct `groups`; Streams groups need a commit"


@pytest.mark.parametrize(
    ("about", "status", "reason"),
    [
        (lambda: described("DEAD"), "unknown", NO_GROUP),
        (lambda: Failure("gone", "Group ID not found"), "unknown", NO_GROUP),
        (lambda: described("EMPTY"), "ok", "no committed offsets"),
    ],
)
def test_a_group_of_the_setting_that_does_not_exist_is_unknown(
    about: Callable[[], Any], status: str, reason: str
) -> None:
    cluster = KafkaCluster(KafkaServer(servers="127.0.0.1:9092", groups=("g",), records=False))
    connection: Any = Cluster(about(), {})
    (row,) = cluster._poll(connection, boot_ns())
    assert (row["consumer_group"], row["status"]) == (b"g", status)
    assert str(row["reason"]).startswith(reason)
    assert len(str(row["reason"])) <= TABLES["queue_lag"].by_name["reason"].width


def test_a_streams_group_has_its_lag_although_librdkafka_knows_no_such_group() -> None:
    """Kafka says of it that it is dead, as of each group that is no consumer group, but has its offsets."""
    cluster = KafkaCluster(KafkaServer(servers="127.0.0.1:9092", groups=("g", "a*"), records=False))
    connection: Any = Cluster(described("DEAD", simple=True))
    connection.groups = list  # it is not listed
    for _ in range(2):
        row, _ = cluster._poll(connection, boot_ns())
        assert (row["consumer_group"], row["lag_messages"]) == (b"g", 2)
        assert (row["group_state"], row["consumers"]) == ("unknown", None)


@pytest.mark.parametrize(
    "reads", [RecordReader, lambda given: RecordTail(ID, None).read({("t", 0): 5}, lambda: given, 1)]
)
def test_a_certificate_that_can_no_longer_be_read_is_a_reason(reads: Callable[[Any], object]) -> None:
    """The connection was made while it could be; records are read later."""
    with pytest.raises(KafkaDown, match="`ca_file` cannot be read"):
        reads({"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL", "ssl.ca.location": "/nonexistent"})


class Hidden(Cluster):
    """After the first poll, Kafka leaves the topic out, and does not describe it. asked: how often it was asked to."""

    def __init__(self, kind: str, about: Any = None) -> None:
        super().__init__(about, {("t", 0): 3})
        self._kind, self.asked = kind, 0

    def committed(self, groups: Any) -> dict[str, Any]:
        found, self._committed = super().committed(groups), {}
        return found

    def topics(self, names: Any) -> dict[str, Any]:
        if self._committed or not names:
            return super().topics(names)
        self.asked += "t" in names
        return dict.fromkeys(names, Failure(self._kind, "not known"))


@pytest.mark.parametrize(
    ("kind", "status", "failure", "asked"),
    [
        ("denied", "unknown", "permission", 2),
        ("other", "unknown", None, 65),
        ("no_answer", "down", "no_answer", 65),
        ("gone", "gone", None, 1),
    ],
)
def test_a_topic_that_is_not_described_is_not_said_to_be_deleted(
    kind: str, status: str, failure: str | None, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = KafkaCluster(KafkaServer(servers="127.0.0.1:9092", groups=("g",), records=False))
    hidden = Hidden(kind)
    connection: Any = hidden
    begun_ns = boot_ns()
    cluster._poll(connection, begun_ns)
    hidden.asked = 0
    for second in range(65):
        monkeypatch.setattr(kafka, "boot_ns", lambda now_ns=begun_ns + second * SECOND: now_ns)
        (row,) = cluster._poll(connection, kafka.boot_ns())
        assert (row["destination"], row["status"]) == (b"t", status)
        assert row.get("failure") == failure
    assert hidden.asked == asked
    if status != "gone":  # its series continues while the cluster is down
        (row,) = cluster._down(KafkaDown("refused", "refused"))
        assert (row["destination"], row["partition"], row["status"]) == (b"t", "0", "down")


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        (lambda: described("EMPTY"), lambda: described("DEAD"), "gone"),
        (lambda: described("EMPTY"), lambda: Failure("gone", "Group ID not found"), "gone"),
        (lambda: described("DEAD", simple=True), lambda: described("DEAD", simple=True), "unknown"),  # a Streams group
        (lambda: described("DEAD", simple=True), lambda: Failure("gone", "Group ID not found"), "unknown"),
    ],
)
def test_a_group_that_is_deleted_while_its_topic_may_not_be_seen_is_gone(
    before: Callable[[], Any], after: Callable[[], Any], status: str
) -> None:
    cluster = KafkaCluster(KafkaServer(servers="127.0.0.1:9092", groups=("g",), records=False))
    connection: Any = Hidden("denied", before())
    for _ in range(2):
        cluster._poll(connection, boot_ns())
    connection._about = after()
    if isinstance(connection._about, Failure):
        connection.committed = lambda _: {}
    (row,) = cluster._poll(connection, boot_ns())
    assert (row["destination"], row["status"]) == (b"t", status)
    assert status != "gone" or str(row["reason"]).startswith("the group was deleted")


def test_nothing_was_deleted_if_another_cluster_has_the_address_now() -> None:
    cluster = KafkaCluster(KafkaServer(servers="127.0.0.1:9092", groups=("g",), records=False))
    connection: Any = Cluster()
    for cluster_id in ("c", "", "c"):  # without an id, it is the same one
        connection.cluster_id = lambda its=cluster_id: its
        known = cluster._ends.get(("t", 0))
        assert cluster._poll(connection, boot_ns())[0]["lag_messages"] == 2
        assert cluster._cluster == "c" and known in (None, cluster._ends["t", 0])
    other: Any = Cluster(described("DEAD"), {})
    other.cluster_id = lambda: "another"
    (row,) = cluster._poll(other, boot_ns())
    assert (row["status"], row.get("destination")) == ("unknown", None)
    assert cluster._cluster == "another" and cluster._connection is other


def test_a_group_whose_coordinator_does_not_answer_once_keeps_its_history() -> None:
    cluster = KafkaCluster(KafkaServer(servers="127.0.0.1:9092", groups=("g", "h"), records=False))
    connection: Any = Cluster(offsets={("t", 0): 3})
    cluster._poll(connection, boot_ns())
    kept = dict(cluster._groups["g"].commits)
    answers = connection.committed(("g", "h"))
    connection.committed = lambda _: {**answers, "g": Failure("no_answer", "no answer")}
    cluster._poll(connection, boot_ns())
    assert cluster._groups["g"].commits == kept and kept
    answers["g"] = {}
    connection.committed = lambda _: answers
    cluster._poll(connection, boot_ns())
    assert not cluster._groups["g"].commits


def test_a_named_group_stays_gone_however_long_its_name_is() -> None:
    cluster = KafkaCluster(KafkaServer(servers="127.0.0.1:9092", groups=("g" * 70,), records=False))
    there: Any = Cluster(offsets={("t", 0): 3})
    deleted: Any = Cluster(described("DEAD"), {})
    cluster._poll(there, boot_ns())
    cluster._poll(deleted, boot_ns())
    (row,) = cluster._gone.rows(boot_ns() + 61 * SECOND)
    assert str(row["reason"]).startswith("the group was deleted")


def test_a_group_that_is_named_beside_patterns_is_asked_for() -> None:
    cluster = KafkaCluster(KafkaServer(servers="127.0.0.1:9092", groups=("absent", "a*", "b[0-9]"), records=False))
    connection: Any = SimpleNamespace(groups=lambda: ["a1", "b1", "c"])
    assert cluster._names(connection) == ["absent", "a1", "b1"]


class Lonely(Cluster):
    """Only its group g has offsets."""

    def committed(self, groups: Any) -> dict[str, Any]:
        return {name: offsets if name == "g" else {} for name, offsets in super().committed(groups).items()}


def test_a_group_without_offsets_is_reported_also_where_not_all_partitions_are_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka, "MAX_ROWS", 1)
    cluster = KafkaCluster(KafkaServer(servers="127.0.0.1:9092", groups=("empty", "g"), records=False))
    connection: Any = Lonely()
    rows: Any = cluster._poll(connection, boot_ns())
    assert [row.get("consumer_group") for row in rows] == [b"g", b"empty", None]
    assert rows[1]["reason"].startswith("no committed offsets")


@pytest.mark.parametrize(
    ("start", "first", "of_s"),
    [
        (0, None, 15.5),  # as of the committed offset
        (15, None, 25.5),  # retention deleted the records before this one
        (0, FirstRecord(25, None, "create"), 35.5),  # compaction did
    ],
)
def test_the_age_is_that_of_the_first_record_that_is_still_there(
    start: int, first: FirstRecord | None, of_s: float
) -> None:
    cluster, key = KafkaCluster(KafkaServer(servers="127.0.0.1:9092")), ("t", 0)
    history = cluster._ends[key] = EndOffsets()
    for second in range(10, 41):  # a record a second
        history.add(second * SECOND, second - 10)
    if first is not None:
        cluster._first_records[key, 5] = first
    age_s, error_s, basis, _ = cluster._age(key, 5, 9, kafka._Offsets(30, start, 30), 50 * SECOND)
    assert (age_s, basis) == (pytest.approx(50 - of_s), "history")
    assert error_s < 1


@pytest.mark.parametrize(("kind", "reason"), [("denied", "not allowed"), ("other", "is not a consumer group")])
def test_a_group_that_cannot_be_asked_for_is_unknown(kind: str, reason: str) -> None:
    cluster = KafkaCluster(KafkaServer(servers="127.0.0.1:9092", groups=("g",), records=False))
    connection: Any = Cluster(Failure(kind, "GroupId g is not a consumer group (connect)."), {})
    (row,) = cluster._poll(connection, boot_ns())
    assert row["status"] == "unknown" and reason in str(row["reason"])
    assert row.get("failure") == ("permission" if kind == "denied" else None)
    assert row["poll_ns"] == 5_000_000  # it is an answer


@pytest.mark.parametrize(
    ("committed", "first", "stable", "waits"),
    [
        (3, None, 3, True),
        (2, FirstRecord(3), 3, True),  # a marker of the transaction before it
        (2, FirstRecord(2, 1, "create", 1), 3, False),
        (2, None, 3, False),
        (4, None, 3, False),  # it read beyond it, so it does not wait
        (4, FirstRecord(5), 3, False),
        (3, None, 5, False),  # no open transaction
        (3, None, None, False),
        (None, None, 0, False),
    ],
)
def test_a_group_waits_where_an_open_transaction_is_the_next_to_read(
    committed: int | None, first: FirstRecord | None, stable: int | None, waits: bool
) -> None:
    cluster, key = KafkaCluster(KafkaServer(servers="127.0.0.1:9092")), ("t", 0)
    if first is not None and committed is not None:
        cluster._first_records[key, committed] = first
    words = f"open transaction at offset {stable}: read_committed waits" if waits else ""
    assert cluster._transaction(key, committed, kafka._Offsets(5, 0, stable)) == words


class Open(Cluster):
    """A transaction is open at the committed offset, and more is written behind it."""

    def __init__(self) -> None:
        super().__init__(described("STABLE", ("a", [0])), {("t", 0): 3})
        self.end = 5

    def offsets(self, keys: Any, spec: str, committed: bool = False) -> dict[Key, Any]:
        return dict.fromkeys(keys, 0 if spec == "earliest" else 3 if committed else self.end)

    def well(self) -> None: ...


def test_the_reason_of_a_group_that_waits_names_the_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [SECOND]
    monkeypatch.setattr(kafka, "boot_ns", lambda: now[0])
    cluster = KafkaCluster(KafkaServer(servers="127.0.0.1:9092", groups=("g",), records=False))
    connection: Any = Open()
    cluster._connection = connection
    queue = Judged("kafka", cluster, lambda: now[0])
    reasons = []
    for _ in range(70):
        row: Any = queue.poll()[0]
        now[0], connection.end = now[0] + SECOND, connection.end + 1
        reasons.append((row["status"], row["reason"].partition("; ")[2]))
    assert reasons[0] == ("ok", "")
    assert reasons[-1] == ("stalled", "open transaction at offset 3: read_committed waits")


def test_each_group_of_a_partition_has_its_first_record_read() -> None:
    """Also while one of them waits at an open transaction, and so is asked for at each poll."""
    cluster, key, asked = KafkaCluster(KafkaServer(servers="127.0.0.1:9092")), ("t", 0), set[int]()

    def read(offsets: Any, _: float) -> Any:
        asked.update(offsets.values())
        return {key: FirstRecord(7) for key, offset in offsets.items() if offset == 7}

    reader: Any = SimpleNamespace(read=read)
    cluster._reader = reader
    cluster._ends[key] = EndOffsets()
    committed, wanted = {"a": {key: 3}, "b": {key: 7}}, [("a", key), ("b", key)]
    for _ in range(64):
        cluster._no_reading_ns = 0
        cluster._read(wanted, committed, {key: kafka._Offsets(9, 0, 7)}, SECOND)
    assert asked == {3, 7}
    state = random.getstate()
    cluster._read([("c", key)], {"c": {key: 9}}, {key: kafka._Offsets(9, 0, 7)}, SECOND)
    assert random.getstate() == state  # nothing to read: there is no order to choose


def test_a_setting_that_a_broker_keeps_to_itself_is_not_known() -> None:
    from confluent_kafka.admin import ConfigEntry

    answer: Future[Any] = Future()
    answer.set_result({name: ConfigEntry(name, value) for name, value in (("retention.ms", None), ("a", "b"))})
    connection = KafkaConnection({"bootstrap.servers": "127.0.0.1:1"}, 1.0)
    connection._admin = SimpleNamespace(describe_configs=lambda wanted, **_: dict.fromkeys(wanted, answer))
    assert connection.configs(["t"]) == {"t": {"a": "b"}}


def test_a_password_is_read_at_a_login_only(tmp_path: Path) -> None:
    server = KafkaServer(servers="a:1", id="order", user="u", password=Password(file=str(tmp_path / "none")))
    with pytest.raises(KafkaDown):
        server.librdkafka()
    assert not list(KafkaCluster(server)._order({}, boot_ns()))


@pytest.mark.parametrize(
    ("tls", "servers"),
    [(False, "127.0.0.1:1,[::1]:1,127.0.0.2:2"), (True, "known.example:1,127.0.0.2:2")],
)
def test_librdkafka_gets_only_brokers_that_have_an_address(
    tls: bool, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks names up without a time limit. It compares the names with certificates."""
    ends, real, given = threading.Event(), socket.getaddrinfo, list[Any]()
    silent = f"silent-{tls}.example"  # a look-up that is on its way is shared

    def resolved(host: str, *more: Any, flags: int = 0, **named: Any) -> Any:
        if flags & socket.AI_NUMERICHOST:
            return real(host, *more, flags=flags, **named)
        if host == silent:
            ends.wait(60)
        return [one for address in ("127.0.0.1", "::1") for one in real(address, *more, flags=flags, **named)]

    def connected(settings: Any, timeout_s: float) -> Any:
        given.append(settings["bootstrap.servers"])
        raise KafkaDown("closed", "closed")

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    monkeypatch.setattr(kafka, "KafkaConnection", connected)
    cluster = KafkaCluster(KafkaServer(servers=f"{silent}:9,known.example:1,127.0.0.2:2", tls=tls))
    try:
        assert [row["failure"] for row in cluster.poll()] == ["closed"]
        assert [*given, cluster._librdkafka()["bootstrap.servers"]] == [servers] * 2
    finally:
        ends.set()


def described(state: str, *members: tuple[str, list[int]], kind: str = "CLASSIC", simple: bool = False) -> Any:
    """What librdkafka answers."""
    of = [
        SimpleNamespace(
            member_id=name,
            client_id=name.upper(),
            group_instance_id=None,
            host="/10.0.0.1",
            assignment=SimpleNamespace(topic_partitions=[SimpleNamespace(topic="t", partition=n) for n in numbers]),
        )
        for name, numbers in members
    ]
    return SimpleNamespace(
        state=SimpleNamespace(name=state),
        type=SimpleNamespace(name=kind),
        is_simple_consumer_group=simple,
        members=of,
        coordinator=None,
    )


def test_rebalances_are_counted_also_between_two_polls() -> None:
    group = KafkaGroup("g")
    for about, rebalances, state, members in (
        (described("STABLE", ("a", [0, 1])), 0, "stable", 1),
        (described("STABLE", ("a", [0, 1])), 0, "stable", 1),
        (described("STABLE", ("a", [0]), ("b", [1])), 1, "stable", 2),
        (described("STABLE", ("a", [0]), ("b", [1]), ("c", [])), 2, "stable", 3),  # as many have partitions as before
        (described("STABLE", ("a", [0]), ("b", [1])), 3, "stable", 2),
        (described("PREPARING_REBALANCING", ("a", []), ("b", [])), 4, "rebalancing", 2),
        (described("COMPLETING_REBALANCING", ("a", []), ("b", [])), 4, "rebalancing", 2),
        (described("STABLE", ("a", [0, 1])), 4, "stable", 1),
        (described("UNKNOWN", ("a", [0]), kind="CONSUMER"), 5, "rebalancing", 1),
        (described("STABLE", ("a", [0, 1])), 5, "stable", 1),
        (described("EMPTY"), 5, "empty", 0),
        (described("EMPTY", simple=True), 5, "empty", None),
    ):
        group.update(about)
        assert (group.rebalances, group.state, group.members) == (rebalances, state, members)
    group.update(described("STABLE", ("a", [0, 1])))
    assert group.holders == {("t", 0): "A@10.0.0.1", ("t", 1): "A@10.0.0.1"}
    group.update(None)
    assert (group.state, group.members, group.holders) == ("", None, {})


def test_a_static_member_that_starts_again_is_no_rebalance() -> None:
    group = KafkaGroup("g")
    for name in ("a-1", "a-2"):
        about = described("STABLE", (name, [0, 1]))
        about.members[0].group_instance_id = "a"
        group.update(about)
    assert group.rebalances == 0


def test_the_threads_of_many_clusters_fit_into_the_memory_of_one_process() -> None:
    clusters = {f"127.0.0.1:{port}" for port in range(1, 25)}  # nobody listens there
    brokers = BrokerPoller("kafka", tuple(clusters), 0.5)
    rows = until_drained(brokers, lambda rows: {row["cluster"].decode() for row in rows} == clusters)
    reasons = {row["cluster"].decode(): row["reason"].decode() for row in rows}
    failures = brokers.failures()
    brokers.close()
    assert failures == {}
    assert set(reasons) == clusters
    assert all("Connection refused" in why or "no answer" in why for why in reasons.values()), reasons


@pytest.mark.parametrize(
    ("polls", "counts"),
    [  # committed, start, end
        ([(3, 7, 50), (3, 20, 50), (25, 20, 50), (25, 30, 60)], [0, 13, 13, 18]),
        ([(50, None, 50), (50, 52, 60), (60, None, 60), (60, 61, 70)], [0, 2, 2, 3]),  # it keeps up, but not quite
        ([(10, 0, 50), (50, None, 50), (50, 50, 60)], [0, 0, 0]),  # read, then deleted
        ([(10, 0, 50), (40, 30, 50), (10, 30, 50)], [0, 0, 0]),  # set forward, and back
        ([(10, 0, 50), (10, 20, 50), (0, 0, 5), (0, 3, 5)], [0, 10, 10, 13]),  # the topic was made anew
        ([(10, None, 50), (10, 20, 50), (60, 30, 50)], [None, 0, 0]),  # the start is not known; beyond the end
    ],
)
def test_records_that_are_deleted_behind_the_group_are_no_loss(
    polls: list[tuple[int, int | None, int]], counts: list[int | None]
) -> None:
    removed = RemovedRecords()
    for poll, count in zip(polls, counts, strict=True):
        removed.see(*poll)
        assert removed.count == count


@pytest.mark.parametrize(
    ("text", "login", "failure", "words"),
    [
        (
            "SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: verify that ssl.ca.location",
            False,
            "login",
            "set `ca_file` to its authority",
        ),
        ("SSL handshake failed: error:0A00010B:SSL routines::wrong version number", False, "login", "no TLS"),
        (
            "SSL handshake failed: Disconnected: connection reset by peer: connecting to a PLAINTEXT broker listener?",
            False,
            "login",
            "no TLS",
        ),
        (
            "Receive failed: error:0A00045C:SSL routines::tlsv13 alert certificate required",
            False,
            "login",
            "`key_file`",
        ),
        (
            "SSL handshake failed: error:0A000410:SSL routines::ssl/tls alert handshake failure",
            False,
            "login",
            "`key_file`",
        ),
        ("Disconnected: requesting ApiVersion: ... (connecting to a SSL listener?) or", False, "closed", "`tls` or"),
        ("Disconnected: verify that ..., broker might require SASL authentication", False, "closed", "`user`"),
        ("SASL authentication error: Authentication failed", True, "login", "failed: see `user`, `mechanism`"),
        ("Connect to ipv4#127.0.0.1:1 failed: Connection refused", False, "refused", "Connection refused"),
    ],
)
def test_an_error_of_a_connection_names_the_key_to_set(text: str, login: bool, failure: str, words: str) -> None:
    down = of_connection(text, login)
    assert words in str(down)
    assert down.failure == failure
    assert len(f"kafka kafka1.prod.example.com:9093: {down}") <= 128
