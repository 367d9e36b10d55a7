"""What is made of the answers of etcd's members: lags with bounds while entries arrive, copies of keys, alarms."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest

from agent.common.http_get import HttpDown
from agent.errors import AgentError
from agent.queues.brokers.etcd import EtcdQueues, EtcdUrl
from agent.queues.etcd_copies import Behind, Comparison, Side, TooManyKeys
from agent.queues.etcd_gateway import (
    KeyPage,
    KeyState,
    NotEtcd,
    prefix_end,
    read_lease,
    read_leases,
    read_metrics,
    read_page,
    read_status,
)
from agent.queues.prometheus_text import NotPrometheus
from agent.queues.queue import Row
from tests.unit.parser_pieces import ETCD_LEASE, ETCD_METRICS, ETCD_RANGE, ETCD_STATUS, Canned

S = 1_000_000_000
LEADER, FOLLOWER = "15985099378392235387", "7"


def status(member: str, committed: int, applied: int, leader: str = LEADER) -> bytes:
    header = {**ETCD_STATUS["header"], "member_id": member}
    indexes = {"raftIndex": str(committed), "raftAppliedIndex": str(applied), "leader": leader}
    return json.dumps({**ETCD_STATUS, "header": header, "errors": [], **indexes}).encode()


class Answers(Canned):
    """One status after the other; the last one again and again."""

    def __init__(self, *statuses: bytes) -> None:
        super().__init__({"/metrics": b"".join(ETCD_METRICS[:4]), "/v3/cluster": b"{}", "/v3/lease": b"{}"})
        self._statuses = list(statuses)

    def get(self, path: str, *given: Any, **more: Any) -> bytes:
        if "status" not in path:
            return super().get(path, *given, **more)
        return self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]


def polled_twice(*members: Answers) -> Any:
    """The rows of the second poll."""
    queue = EtcdQueues(EtcdUrl.parse("http://" + ",".join(f"127.0.0.{n}" for n, _ in enumerate(members, 1))))
    for member, answers in zip(queue._members, members, strict=True):
        member.client._client = answers  # type: ignore[assignment]
    queue.poll()
    return queue.poll()


def poll(*members: Answers) -> dict[tuple[str, str], Row]:
    return {(row["destination"].decode(), row["consumer_group"].decode()): row for row in polled_twice(*members)}


@pytest.mark.parametrize(
    ("after", "columns"),
    [
        (40, {"lag_messages": 7, "exact": True}),
        (
            45,
            {
                "lag_messages": 12,
                "exact": False,
                "lag_at_least": 7,
                "inexact_reason": "5 entries came while it was asked",
            },
        ),
    ],
)
def test_a_follower_lacks_what_the_leader_had_before_and_after_it_was_asked(
    after: int, columns: dict[str, object]
) -> None:
    # In the second poll, the leader answers once before the follower, and once after it.
    leader = Answers(*[status(LEADER, 40, 40)] * 3, status(LEADER, after, 40))
    row = poll(leader, Answers(status(FOLLOWER, 38, 33)))["raft", FOLLOWER]
    assert {name: row.get(name) for name in columns} == columns
    assert (row["server_role"], row["position"]) == ("replica", 33)


def test_a_learner_that_has_just_joined_lacks_everything() -> None:
    """The gateway leaves out what is 0."""
    learner = json.loads(status(FOLLOWER, 40, 0))
    del learner["raftAppliedIndex"]
    row = poll(Answers(status(LEADER, 40, 38)), Answers(json.dumps(learner).encode()))["raft", FOLLOWER]
    assert (row["lag_messages"], row["exact"]) == (40, True)


@pytest.mark.parametrize("missing", ["raftIndex", "raftAppliedIndex"])
def test_a_member_that_reports_no_index_has_no_lag(missing: str) -> None:
    """As etcd 3.3, and proxies that do not pass it on. The others have theirs."""

    def without(given: bytes) -> bytes:
        kept = {name: it for name, it in json.loads(given).items() if name != missing}
        return json.dumps(kept | {"version": "3.3.27"}).encode()

    rows = poll(Answers(status(LEADER, 40, 38)), Answers(without(status(FOLLOWER, 38, 33))))
    row = rows["raft", FOLLOWER]
    assert row["lag_messages"] is None and str(row["inexact_reason"]).startswith("its status lacks raftIndex or")
    assert row["server_role"] == "replica" and "status" not in row
    assert rows["raft", f"{int(LEADER):x}"]["lag_messages"] == 2
    rows = poll(Answers(without(status(LEADER, 40, 38))), Answers(status(FOLLOWER, 38, 33)))
    assert rows["raft", f"{int(LEADER):x}"]["lag_messages"] is None
    row = rows["raft", FOLLOWER]
    assert row["lag_messages"] == (5 if missing == "raftIndex" else 7)
    why = "lower bound: the leader reports no raftIndex"
    assert row.get("inexact_reason") == (why if missing == "raftIndex" else None)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://a,b,a", "twice"),
        ("http://a,a:2379", "twice"),
        ("http://" + ",".join("abcdefghij"), "more than 9"),
        ("http://a?copy=http://u:secret@b", "both clusters get the same one"),
    ],
)
def test_members_and_logins_that_would_be_left_out_are_refused(url: str, why: str) -> None:
    with pytest.raises(AgentError) as error:
        EtcdUrl.parse(url)
    assert why in str(error.value.why) and "secret" not in str(vars(error.value))


def test_a_cluster_that_was_restored_under_another_id_is_watched_on() -> None:
    before, now = (json.loads(status(LEADER, n, n)) for n in (40, 3))
    now["header"]["cluster_id"] = "77"
    rows = poll(Answers(json.dumps(before).encode(), json.dumps(now).encode()))
    raft = rows["raft", f"{int(LEADER):x}"]
    assert (raft["cluster"], raft["lag_messages"], raft["exact"]) == (f"{77:x}", 0, True)


class Stopping(Answers):
    """Does not answer after its first status."""

    def get(self, path: str, *given: Any, **more: Any) -> bytes:
        if "status" in path and len(self._statuses) == 1:
            raise HttpDown("refused", "refused")
        return super().get(path, *given, **more)


OF_OLD, OF_NEW = "14841639068965178418", "77"


@pytest.mark.parametrize(
    ("members", "cluster", "others"),
    [  # the cluster of each member at the first poll, and at the second; empty: it does not answer
        ([(OF_OLD, OF_NEW), (OF_OLD, ""), (OF_OLD, "")], OF_NEW, 0),  # one is restored, alone
        ([(OF_OLD, OF_OLD), (OF_OLD, OF_NEW), (OF_OLD, OF_NEW)], OF_NEW, 1),
        ([(OF_OLD, OF_OLD), (OF_OLD, OF_NEW), (OF_OLD, "")], OF_OLD, 1),
        ([(OF_NEW, OF_NEW), (OF_OLD, OF_OLD), (OF_OLD, OF_OLD)], OF_OLD, 1),  # the first one is not of this cluster
        ([(OF_NEW, OF_NEW), (OF_OLD, ""), (OF_OLD, "")], OF_OLD, 1),
    ],
)
def test_the_cluster_is_that_of_most_members_that_answer(
    members: list[tuple[str, str]], cluster: str, others: int
) -> None:
    def answers(number: int, *clusters: str) -> Answers:
        found = []
        for one in clusters:
            given = json.loads(status(str(number), 40, 33 + 7 * (number == 2), "2"))
            given["header"]["cluster_id"] = one
            found.append(json.dumps(given).encode())
        return Answers(*found) if clusters[-1] else Stopping(*found)

    rows = polled_twice(*(answers(number, *its) for number, its in enumerate(members, 1)))
    assert {row["cluster"] for row in rows} == {f"{int(cluster):x}"}
    assert sum(row.get("reason") == "it is of another cluster than the others" for row in rows) == others
    lags = {row["lag_messages"] for row in rows if row["destination"] == b"raft" and "status" not in row}
    assert lags <= {0, 7}


def test_a_member_that_is_not_yet_restored_is_down_and_not_removed() -> None:
    before, now = (json.loads(status(LEADER, n, n)) for n in (40, 3))
    now["header"]["cluster_id"] = "77"
    answers = [Answers(json.dumps(before).encode(), json.dumps(now).encode()) for _ in range(2)]
    rows: Any = poll(*answers, Stopping(status(FOLLOWER, 38, 33), b""))
    assert {row["status"] for row in rows.values() if row.get("status") in ("down", "gone")} == {"down"}


class Secretive(Stopping):
    """Lists the members only to those who have logged in, as etcd does from 3.4.42, 3.5.28 and 3.6.9 on. asked: how
    often it was asked for them.
    """

    asked = 0

    def get(self, path: str, *given: Any, **more: Any) -> bytes:
        if "member/list" in path:
            self.asked += 1
            raise HttpDown("user name is empty", "login", 400)
        return super().get(path, *given, **more)


def test_a_member_of_a_cluster_that_does_not_list_its_members_is_down_and_not_removed() -> None:
    members = Secretive(*[status(LEADER, 40, 40)] * 9), Secretive(status(FOLLOWER, 38, 33), b"")
    rows: Any = poll(*members)
    assert rows["raft", FOLLOWER]["status"] == "down"
    assert sum(member.asked for member in members) == 1


def test_several_prefixes_have_no_copy_in_one() -> None:
    copy = "&copy=http://127.0.0.2"
    assert EtcdUrl.parse(f"http://127.0.0.1?prefix=/a/,/b/{copy}").prefix == ("/a/", "/b/")
    with pytest.raises(AgentError) as error:
        EtcdUrl.parse(f"http://127.0.0.1?prefix=/a/,/b/{copy}/mirror/")
    assert "one prefix" in str(error.value.why)


class Slow(Answers):
    def get(self, path: str, *given: Any, **more: Any) -> bytes:
        if "status" in path:
            time.sleep(0.1)
        return super().get(path, *given, **more)


def test_each_member_has_the_time_of_its_own_answer() -> None:
    rows: Any = poll(Answers(status(LEADER, 40, 40)), Slow(status(FOLLOWER, 38, 33)))
    leader, follower = (rows["raft", name]["poll_ns"] for name in (f"{int(LEADER):x}", FOLLOWER))
    assert leader < follower >= 100_000_000


def test_without_the_leader_a_lag_is_a_lower_bound_and_without_any_it_is_not_known() -> None:
    alone = poll(Answers(status(FOLLOWER, 38, 33)))["raft", FOLLOWER]
    assert (alone["lag_messages"], alone["exact"]) == (5, False)
    assert str(alone["inexact_reason"]).startswith("lower bound: the leader is not named")
    cut_off = poll(Answers(status(FOLLOWER, 38, 33, "0")))["raft", FOLLOWER]
    assert (cut_off["lag_messages"], cut_off["server_role"], cut_off["inexact_reason"]) == (
        None,
        "cut off",
        "no leader",
    )


def test_metrics_and_alarms_are_rows_of_their_member() -> None:
    rows = poll(Answers(json.dumps(ETCD_STATUS).encode()))
    member = f"{int(LEADER):x}"
    assert rows["raft", member]["errors"] == "NOSPACE 1"
    assert (rows["proposals", member]["lag_messages"], rows["proposals", member]["exact"]) == (3, True)
    watchers = rows["watchers", member]
    assert (watchers["lag_messages"], watchers["exact"], watchers["consumers"]) == (128, False, 2)
    assert watchers["inexact_reason"] == "lower bound: 1 slow watcher lacks more"


@pytest.mark.parametrize("raw", [b"", b"etcd_server_proposals_pending 3", b"etcd_server_proposals_pending x\n"])
def test_metrics_of_another_form_are_refused(raw: bytes) -> None:
    with pytest.raises(NotPrometheus):
        read_metrics(raw)


def test_documents_of_another_form_are_refused() -> None:
    wrong: Any
    for wrong in ({}, [], {**ETCD_STATUS, "raftIndex": "-1"}, {**ETCD_STATUS, "errors": 1}, {"header": None}):
        with pytest.raises(NotEtcd):
            read_status(json.dumps(wrong).encode())
    for wrong in ({**ETCD_RANGE, "kvs": {}}, {**ETCD_RANGE, "kvs": [{"key": "?"}]}, {"kvs": []}):
        with pytest.raises(NotEtcd):
            read_page(json.dumps(wrong).encode())
    for wrong in ({"leases": {}}, {"leases": [7]}, {"leases": [{"ID": "-7"}]}, {"leases": [{"ID": str(1 << 63)}]}):
        with pytest.raises(NotEtcd):
            read_leases(json.dumps(wrong).encode())
    for name, wrong in (("TTL", "soon"), ("TTL", "--1"), ("TTL", "-"), ("TTL", "9" * 20), ("keys", {}), ("keys", [1])):
        with pytest.raises(NotEtcd):
            read_lease(json.dumps({**ETCD_LEASE, name: wrong}).encode())


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, (59, b"/locks/a")),
        ({"keys": None}, (59, b"")),
        ({"TTL": None}, (0, b"/locks/a")),  # less than a second
        ({"TTL": "-3"}, (-3, b"/locks/a")),  # overdue
        ({"TTL": "-1", "grantedTTL": None, "keys": None}, None),  # it has ended
    ],
)
def test_what_a_lease_has_left(given: dict[str, object], found: object) -> None:
    answer = {name: it for name, it in {**ETCD_LEASE, **given}.items() if it is not None}
    assert read_lease(json.dumps(answer).encode()) == found


def test_the_leader_may_be_elected_anew_and_others_may_be_late_to_know() -> None:
    def at(term: int, leader: str) -> bytes:
        return json.dumps({**json.loads(status(leader, 40, 40, leader)), "raftTerm": str(term)}).encode()

    statuses = [at(2, LEADER), at(4, LEADER), at(3, FOLLOWER), at(5, FOLLOWER)]
    queue = EtcdQueues(EtcdUrl.parse("http://127.0.0.1"))
    queue._members[0].client._client = Answers(*statuses)  # type: ignore[assignment]
    reasons = [str(queue.poll()[0].get("reason", "")).partition(" 0 s ago")[0] for _ in statuses]
    anew, changed = "the leader was elected anew", "the leader changed"
    assert reasons == ["", anew, anew, changed]


@pytest.mark.parametrize(("prefix", "end"), [(b"a/", b"a0"), (b"a\xff", b"b"), (b"\xff\xff", b"\0"), (b"", b"\0")])
def test_the_end_of_a_prefix(prefix: bytes, end: bytes) -> None:
    assert prefix_end(prefix) == end


class Store:
    """A member, as Side asks it: keys with values, and the revisions of their last changes."""

    name = "store"

    def __init__(self, most: int = 3) -> None:
        self.keys: dict[bytes, KeyState] = {}
        self.revision, self.most, self.cluster_id = 1, most, 1
        self.before: Any = None  # done once, before the next answer

    def put(self, *keys: str, value: str = "") -> None:
        for key in keys:
            self.revision += 1
            self.keys[f"p/{key}".encode()] = KeyState(self.revision, value.encode())

    def delete(self, *keys: str) -> None:
        self.revision += 1
        for key in keys:
            del self.keys[f"p/{key}".encode()]

    def page(self, prefix: bytes, deadline_s: float, *, start: bytes = b"", since: int = 0, **_: Any) -> KeyPage:
        if self.before is not None:
            self.before()
            self.before = None
        kept = sorted((key, it) for key, it in self.keys.items() if key >= start and it.mod >= since)
        return KeyPage(self.revision, len(self.keys), len(kept) > self.most, dict(kept[: self.most]), self.cluster_id)


class Two:
    """A source, its copy, and a clock that says when they were compared."""

    def __init__(self) -> None:
        self.source, self.copy, self.second = Store(), Store(), 0
        self.comparison = Comparison.of(b"p/", b"p/")
        self.comparison._clock = lambda: self.second * S

    def behind(self, second: int) -> Behind:
        self.second = second
        for _ in range(10):
            found = self.comparison.update(self.source, self.copy, 0.0)  # type: ignore[arg-type]
            if found is not None:
                return found
        raise AssertionError("it is never read")


def test_a_copy_is_compared_by_keys_and_values() -> None:
    two = Two()
    two.source.put(*"abcdefgh", value="1")
    two.copy.put(*"abcdefg", value="1")
    assert two.behind(1)[:2] == (1, 1)
    two.copy.put("h", value="1")
    assert two.behind(2) == (0, 0, None, 0)
    two.source.put("b", value="2")
    two.source.delete("c", "d")
    assert two.behind(5) == (3, 3, (0, 3, True), 0)
    two.source.put("b", value="3")  # the first change counts
    assert two.behind(8) == (3, 3, (3, 6, True), 0)
    two.copy.delete("c", "d")
    two.copy.put("x")
    assert two.behind(9) == (1, 1, (4, 7, True), 1)
    two.copy.put("b", value="3")
    assert two.behind(10) == (0, 0, None, 1)


def test_what_changes_during_a_poll_widens_the_bounds() -> None:
    two = Two()
    two.source.put(*"abc", value="1")
    two.copy.put(*"ab", value="1")
    assert two.behind(1)[:2] == (1, 1)
    two.copy.before = lambda: two.source.put("a", "d", value="2")
    assert two.behind(2)[:2] == (3, 1)
    two.copy.put("a", "d", value="2")
    two.copy.before = lambda: two.source.put("b", value="1")  # as it was
    assert two.behind(3)[:2] == (2, 1)
    assert two.behind(4)[:2] == (1, 1)


def test_a_store_that_went_back_is_read_anew_and_too_many_keys_are_refused() -> None:
    two = Two()
    two.source.put(*"abc")
    two.copy.put(*"abc")
    assert two.behind(1).keys == 0
    two.copy.keys, two.copy.revision = {}, 1
    assert two.behind(2).keys == 3
    two.copy.put(*"abc")
    assert two.behind(3).keys == 0
    # Restored under another id, with values of an earlier time and a later revision.
    two.copy.keys = {key: it._replace(value=b"before") for key, it in two.copy.keys.items()}
    two.copy.revision, two.copy.cluster_id = 1000, 2
    assert two.behind(4).keys == 3
    side, store = Side(b"p/"), Store(10**9)
    store.put(*map(str, range(10_001)))
    with pytest.raises(TooManyKeys):
        side.update(store, 0.0)  # type: ignore[arg-type]


def test_keys_are_base64_and_values_only_hashes() -> None:
    value = base64.b64encode(b"secret").decode()
    page = read_page(json.dumps({**ETCD_RANGE, "kvs": [{"key": "YS9i", "mod_revision": "2", "value": value}]}).encode())
    assert list(page.keys) == [b"a/b"] and b"secret" not in page.keys[b"a/b"].value and page.count == 2
