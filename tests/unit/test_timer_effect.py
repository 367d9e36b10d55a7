"""What a jump does to the timers of polled servers. tests/vm/test_timers.py shows that the rules are right."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agent.batch import Batch, make
from agent.columns import NULL_I64
from agent.common.resp import RedisUrl
from agent.queues import timers as polled_timers
from agent.queues.judged import Judged
from agent.queues.packing import pack
from agent.queues.queue import Row
from agent.queues.redis_server import RedisServer
from agent.queues.timer_effect import LEAST_NS, MOST_ROWS, TABLE, Timers, effects, plain
from agent.queues.timers import MAX_TIMERS, QueueTimer, ServerTimers, rows, rule
from agent.tables import TABLES

S, H = 10**9, 3600 * 10**9
#: CLOCK_BOOTTIME of the jump, and REALTIME - BOOTTIME before it.
T0, OFFSET = 1000 * S, 1_800_000_000 * S
CHANGES = TABLES["clock_change"]


def packed(
    *timers: QueueTimer, system: str = "redis", version: str = "7.0.15", elsewhere: str = "", t_ns: int = T0 - S
) -> np.ndarray:
    found = rows(system, "here", ServerTimers(timers, version, elsewhere), t_ns)
    return np.frombuffer(pack(found, TABLE.name), TABLE.dtype)


def wall(after_s: float, kind: str = "lock", name: bytes = b"lock:1") -> QueueTimer:
    """Due so long after the jump, without it."""
    return QueueTimer(b"lock:*", name, kind, due_wall_ns=T0 + int(after_s * S) + OFFSET)


@pytest.mark.parametrize(
    ("system", "kind", "after_s", "size_ns", "moved_ns"),
    [
        ("redis", "lock", 60, 2 * H, -60 * S),  # at once
        ("redis", "lock", 7201, 2 * H, -2 * H),
        ("redis", "lock", 60, -2 * H, 2 * H),
        ("redis", "dedup", 60, -500_000_000, 500_000_000),
        ("redis", "lock", -1, -2 * H, None),  # it has expired
        ("redis", "lock", -1, 2 * H, None),
        ("celery", "redelivery", 60, 2 * H, -60 * S),
        ("celery", "redelivery", -1, 2 * H, None),
        ("celery", "redelivery", -1, -2 * H, 2 * H),  # not delivered again yet: it waits anew
    ],
)
def test_how_far_a_timer_on_the_wall_clock_moves(
    system: str, kind: str, after_s: float, size_ns: int, moved_ns: int | None
) -> None:
    found = [plain(row) for row in effects(packed(wall(after_s, kind), system=system), T0, size_ns, OFFSET)]
    assert [one["moved_ns"] for one in found] == ([] if moved_ns is None else [moved_ns])
    for one in found:
        known = rule(system, kind, "7.0.15")
        assert known is not None
        assert one["consequence"] == (known.forward if size_ns > 0 else known.backward)
        assert (one["immune"], one["was_due_ns"]) == (False, T0 + after_s * S)
        assert one["is_due_ns"] == max(one["was_due_ns"] - size_ns, T0)


def test_a_timer_on_a_monotonic_clock_is_immune() -> None:
    eta = QueueTimer(b"celery", b"tag", "eta", due_ns=T0 + 60 * S)
    (row,) = effects(packed(eta, system="celery"), T0, 2 * H, OFFSET)
    assert (row["immune"], row["moved_ns"], row["was_due_ns"]) == (1, 0, T0 + 60 * S)


@pytest.mark.parametrize(
    ("where", "size_ns", "clock", "immune", "follows"),
    [
        ("classic queues", H, "checked", False, "the first message expires on time, those behind it with it: early"),
        ("classic queues", -H, "checked", False, "messages expire late"),
        ("quorum queues", H, "monotonic", True, "messages expire on time, or up to 1 % early"),
    ],
)
def test_where_the_time_is_not_known_what_follows_is(
    where: str, size_ns: int, clock: str, immune: bool, follows: str
) -> None:
    timer = QueueTimer(b"later", b"", "ttl", timers=17, unknown="when is not known: why", where=where)
    (row,) = [plain(one) for one in effects(packed(timer, system="rabbitmq", version="3.10.8"), T0, size_ns, OFFSET)]
    assert (row["clock"], row["immune"], row["timers"]) == (clock, immune, 17)
    assert row["consequence"] == f"{follows}; when is not known: why"
    assert [row[name] for name in ("was_due_ns", "is_due_ns", "moved_ns")] == [None] * 3


def test_a_server_of_a_cluster_may_be_elsewhere() -> None:
    here, away = (
        replace(wall(60, "retention"), elsewhere=why) for why in ("", "10.0.0.9 is not an address of this host")
    )
    found = [plain(row) for row in effects(packed(here, away, system="kafka", version=""), T0, 2 * H, OFFSET)]
    assert [(one["clock"], one["moved_ns"]) for one in found] == [("wall", -60 * S), (None, None)]
    assert found[1]["consequence"] == "10.0.0.9 is not an address of this host"


@pytest.mark.parametrize(
    ("version", "wall_s", "monotonic_s", "size_ns", "moved_ns", "immune"),
    [
        ("3.4.23", 60, 60, 2 * H, 0, True),
        ("3.4.23", 60.00001, 60, 2 * H, 0, True),  # the clocks were read one after the other
        ("3.4.23", 60, 60, -2 * H, 2 * H, False),
        ("3.4.23", 60, 7260, -H, 0, True),  # after a jump forward of 2 h
        ("3.4.23", 7260, 60, H, -H, False),  # after a jump back of 2 h
        ("3.4.23", 60, -1, -2 * H, 2 * H, False),  # a jump back has kept it
        ("3.4.23", -1, -1, 2 * H, None, None),
        ("3.5.16", 60, 60, 2 * H, 0, True),
        ("3.5.16", 60, 60, -2 * H, 0, True),
    ],
)
def test_a_lease_on_both_clocks_ends_once_it_is_due_on_both(
    version: str, wall_s: float, monotonic_s: int, size_ns: int, moved_ns: int | None, immune: bool | None
) -> None:
    lease = QueueTimer(b"leases", b"11", "lease", T0 + int(wall_s * S) + OFFSET, T0 + monotonic_s * S)
    found = [plain(row) for row in effects(packed(lease, system="etcd", version=version), T0, size_ns, OFFSET)]
    assert [(one["moved_ns"], one["immune"]) for one in found] == ([] if immune is None else [(moved_ns, immune)])
    known = rule("etcd", "lease", version)
    assert known is not None
    assert all(one["consequence"] == (known.forward if size_ns > 0 else known.backward) for one in found)


@pytest.mark.parametrize(
    ("after_s", "size_ns", "is_due_s"),
    [
        (60, 2 * H, None),  # when its server looks next
        (60, -2 * H, 7260),
        (-1, 2 * H, ()),
        (-1, -2 * H, 7199),  # the server has not looked yet
    ],
)
def test_a_checked_timer_fires_when_its_server_looks(after_s: int, size_ns: int, is_due_s: object) -> None:
    aged = QueueTimer(b"orders", b"", "retention", T0 + after_s * S + OFFSET, timers=13)
    found = [plain(row) for row in effects(packed(aged, system="nats", version="2.9.10"), T0, size_ns, OFFSET)]
    if is_due_s == ():
        assert found == []
        return
    (one,) = found
    assert (one["was_due_ns"], one["timers"], one["immune"]) == (T0 + after_s * S, 13, False)
    assert one["is_due_ns"] == (None if is_due_s is None else T0 + is_due_s * S)  # type: ignore[operator]
    assert one["moved_ns"] == (None if is_due_s is None else one["is_due_ns"] - one["was_due_ns"])


def test_what_a_jump_does_is_known_also_if_the_time_is_not() -> None:
    why = "AckWait 30 s; the server does not report when"
    unacked = QueueTimer(b"orders", b"bill", "redelivery", timers=7, unknown=why)
    lease = QueueTimer(b"leases", b"11", "lease", unknown="its time to live was not queried yet")
    (asked,) = [plain(row) for row in effects(packed(lease, system="etcd", version="3.4.23"), T0, -H, OFFSET)]
    assert (asked["immune"], asked["moved_ns"], asked["clock"]) == (None, None, "both")
    (one,) = [plain(row) for row in effects(packed(unacked, system="nats", version="2.9.10"), T0, -H, OFFSET)]
    assert one["consequence"] == f"redelivered late; {why}"
    assert [one[name] for name in ("was_due_ns", "is_due_ns", "moved_ns")] == [None] * 3


@pytest.mark.parametrize(
    ("version", "elsewhere", "why"),
    [
        ("7.0.15", "10.0.0.9 is not an address of this host: its clock may differ", "10.0.0.9"),
        ("6.2.1", "", "not measured for redis 6.2.1"),
        ("7.09", "", "not measured for redis 7.09"),
        ("valkey 7.0.1", "", "not measured for redis valkey 7.0.1"),
        ("7.0.15, 7.4.1", "", "not measured for redis 7.0.15, 7.4.1"),  # of a cluster
        ("", "", "not measured for redis of an unknown version"),
    ],
)
def test_what_was_not_measured_has_no_consequence(version: str, elsewhere: str, why: str) -> None:
    (row,) = [plain(one) for one in effects(packed(wall(60), version=version, elsewhere=elsewhere), T0, H, OFFSET)]
    assert why in row["consequence"]
    assert [row[name] for name in ("clock", "immune", "was_due_ns", "is_due_ns", "moved_ns")] == [None] * 5
    assert row["due_wall_ns"] is not None


def test_a_cluster_of_measured_versions_is_measured() -> None:
    known = rule("redis", "ttl", "7.0.15, 8.0.2")
    assert known is not None and known.clock == "wall"


def test_an_address_that_moves_to_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for minute, here in ((90, True), (91, False)):
        monkeypatch.setattr(polled_timers, "on_this_host", lambda _, here=here: here)
        monkeypatch.setattr(polled_timers, "time", SimpleNamespace(monotonic=lambda minute=minute: 60.0 * minute))
        found.append(polled_timers.elsewhere("203.0.113.7") == "")
    assert found == [True, False]


def test_a_time_that_no_column_holds_is_unknown() -> None:
    """A Redis key that expires after the year 2262, and a retention of as many ms as there are."""
    for timer in (
        QueueTimer(b"k*", b"k", "ttl", due_wall_ns=9_999_999_999 * S),
        QueueTimer(b"t", b"tag", "eta", due_ns=1 << 63),
        QueueTimer(b"t", b"g/0", "retention", due_wall_ns=(2**63 - 1) * 1_000_000),
    ):
        (row,) = packed(timer)
        assert (row["due_wall_ns"], row["was_due_ns"]) == (NULL_I64, NULL_I64)
        assert b"2262" in row["consequence"] or b"not measured" in row["consequence"]


def test_beyond_a_number_timers_are_counted_by_queue() -> None:
    timers = [wall(60 + i, name=b"lock:%d" % i) for i in range(MAX_TIMERS + 37)]
    found = effects(packed(*reversed(timers)), T0, H, OFFSET)
    assert found["timers"].sum() == MAX_TIMERS + 37
    assert found["object"].tolist() == [b"lock:%d" % i for i in range(MAX_TIMERS)] + [b""]
    assert found["was_due_ns"][-1] == T0 + (60 + MAX_TIMERS) * S


def test_timers_that_a_jump_moves_come_before_those_that_are_immune() -> None:
    """Workers of Celery hold many tasks with a set time: each is also due for redelivery."""
    n = MAX_TIMERS + 5
    etas = [QueueTimer(b"mail", b"tag%d" % i, "eta", due_ns=T0 + (60 + i) * S) for i in range(n)]
    again = [QueueTimer(b"mail", b"tag%d" % i, "redelivery", due_wall_ns=T0 + OFFSET + (70 + i) * S) for i in range(n)]
    found = effects(packed(*etas, *again, system="celery", version=""), T0, H, OFFSET)
    assert found["timers"].sum() == 2 * n
    listed = found[found["object"] != b""]
    assert listed["object"].tolist() == [b"tag%d" % i for i in range(MAX_TIMERS)]
    assert set(listed["moved_ns"].tolist()) <= {-(70 + i) * S for i in range(n)}


def test_many_queues_make_no_more_rows() -> None:
    n = 3 * MAX_TIMERS + 37
    timers = [QueueTimer(b"%d" % i, b"", kind, unknown="x") for i in range(n) for kind in ("dedup", "redelivery")]
    found = packed(*timers, system="nats", version="2.9.10")
    assert found["timers"].sum() == 2 * n
    assert len(found) <= 2 * MAX_TIMERS + 2


def change(size_ns: int = H, t_ns: int = T0, kind: str = "step", ret: int = 0) -> Batch:
    return make(
        "clock_change",
        1,
        t_ns=t_ns,
        kind=CHANGES.code("kind", kind),
        size_ns=size_ns,
        ret=ret,
        real_mono_before_ns=OFFSET + 7 * S,
    )


def moved(timers: Timers, batch: Batch) -> list[dict[str, Any]]:
    first, *more = timers(batch, T0 + S)
    assert first is batch
    return [plain(row) for one in more if one.table == "timer_effect" for row in one.rows]


@pytest.fixture
def timers() -> Timers:
    """A machine that was suspended for 7 s."""
    return Timers(lambda: 7 * S)


def test_a_jump_is_judged_by_the_last_poll_before_it(timers: Timers) -> None:
    timers.see(packed(wall(60, name=b"gone"), t_ns=T0 - 3 * S))
    whole = packed(wall(60, name=b"a"), wall(61, name=b"b"), t_ns=T0 - S)
    timers.see(whole[:1])
    timers.see(whole[1:])  # another message of the same poll
    for i in range(5):  # the loop stood still
        timers.see(packed(wall(60 + 3600, name=b"after"), t_ns=T0 + 1 + i * S))
    assert [(one["object"], one["polled_ns"]) for one in moved(timers, change())] == [("a", T0 - S), ("b", T0 - S)]
    assert {one["t_ns"] for one in moved(timers, change())} == {T0}
    timers.see(packed(t_ns=T0 + 6 * S))
    assert moved(timers, change(t_ns=T0 + 7 * S)) == []
    timers.forget("redis")
    assert moved(timers, change()) == []


@pytest.mark.parametrize(
    "batch",
    [change(LEAST_NS - 1), change(kind="slew"), change(kind="suspend"), change(ret=-1), change(NULL_I64)],
    ids=("small", "slew", "suspend", "refused", "unknown"),
)
def test_changes_that_move_no_timer(timers: Timers, batch: Batch) -> None:
    timers.see(packed(wall(60)))
    assert moved(timers, batch) == []


class Keys(RedisServer):
    """A server with this role and one lock."""

    def __init__(self, port: int, role: str) -> None:
        url = RedisUrl.parse(f"redis://127.0.0.1:{port}/0")
        super().__init__(f"redis {url.database}", url, 0.5)
        self.its_role = role

    def _poll(self, now_ns: int) -> list[Row]:
        self._due = [wall(60)]
        return [{"server_role": self.its_role, "status": "ok"}]

    def _interrupted(self) -> list[Row]:
        return []


def test_a_key_of_a_primary_and_its_replica_counts_once_also_after_a_fail_over(timers: Timers) -> None:
    servers = [Keys(6379, "primary"), Keys(6380, "replica")]
    polled = [Judged("redis", one, lambda: T0 - S, named="shop", shared=True) for one in servers]

    def effect() -> list[tuple[str, int]]:
        for one in polled:
            one.poll()
            timers.see(np.frombuffer(pack(one.timers(), TABLE.name), TABLE.dtype).copy())
        return [(row["cluster"], row["timers"]) for row in moved(timers, change())]

    assert effect() == [("shop 127.0.0.1:6379", 1)]
    servers[0].its_role, servers[1].its_role = "replica", "primary"
    polled = [Judged("redis", one, lambda: T0 - S // 2, named="shop", shared=True) for one in servers]
    assert effect() == [("shop 127.0.0.1:6380", 1)]


def test_a_clock_that_is_stepped_without_end_makes_no_rows_without_end(timers: Timers) -> None:
    timers.see(packed(*(wall(60, name=b"%d" % i) for i in range(MAX_TIMERS))))
    batches = [one for _ in range(2 * MOST_ROWS // MAX_TIMERS) for one in timers(change(), T0 + S)]
    made = sum(len(one.rows) for one in batches if one.table == "timer_effect")
    lost = sum(one.rows["count"].sum() for one in batches if one.table == "loss")
    assert (made, lost) == (MOST_ROWS, MOST_ROWS)


def test_a_process_that_sends_without_end_takes_no_memory_without_end(timers: Timers) -> None:
    many = packed(*(wall(60, name=b"%d" % i) for i in range(MAX_TIMERS)))
    for _ in range(30):
        timers.see(many)
    for i in range(1100):
        other = many[:1].copy()
        other["cluster"] = b"%d" % i
        timers.see(other)
    assert len(timers.latest(T0)) <= 2 * 1024
