"""Faults of brokers and their consumers by rows alone: deliveries that repeat, rebalances, prefetch, retention,
and the database for which consumers wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.unit.correlate_scenarios import MS, PEER, START, T0, UNTIL, Host, S, code, latest, peer, run

LEDGER = np.frombuffer(peer("10.0.0.9", 5432), "V18")
#: A queue that is well: messages are done as fast as they arrive.
WELL: dict[str, Any] = {"lag": 0, "age": 0.05, "incoming": 20, "oldest_pending_s": 0.05, "pending": 2}


def around(bad: Callable[[Host], None], a: int = 30, b: int = 50, **usual: Any) -> Host:
    host = Host()
    host.queue(0, a, **{**WELL, **usual})
    bad(host)
    host.queue(b, UNTIL, **{**WELL, **usual})
    return host


def found(host: Host) -> list[tuple[str, str, str]]:
    return [(str(f["symptom"]), str(f["cause"]), str(f["cause_detail"])) for f in latest(run(host, UNTIL))]


RABBIT: dict[str, Any] = {"system": b"rabbitmq", "consumer_group": b""}
CELERY: dict[str, Any] = {"system": b"celery", "consumer_group": b""}


@pytest.mark.parametrize(
    ("usual", "more", "expected"),
    [
        (RABBIT, {"redelivered": np.arange(20) % 2}, True),  # at every other poll
        (RABBIT, {"redelivered": np.where(np.arange(20) < 2, 10, 0)}, False),  # what an ended consumer held
        (CELERY, {"redelivered": 1, "oldest_pending_s": np.arange(20) % 3 + 0.1}, True),
        (CELERY, {"redelivered": 1, "oldest_pending_s": np.arange(20) + 0.1}, False),  # once, and a long task
        (RABBIT, {"redelivered": -(2**63)}, False),  # not known
    ],
)
def test_messages_that_are_delivered_again_and_again(
    usual: dict[str, Any], more: dict[str, Any], expected: bool
) -> None:
    host = around(lambda h: h.queue(30, 50, **{**WELL, **usual, **more}), **usual, redelivered=0)
    assert (("redelivery", "poison_message", "") in found(host)) == expected


@pytest.mark.parametrize(
    ("rebalances", "unstable", "expected"),
    [
        (3 + np.arange(20) // 3, 6, [("rebalancing", "rebalance", "storm")]),
        (np.where(np.arange(20) < 3, 3, 4), 14, [("rebalancing", "rebalance", "")]),  # one that takes long
        (np.where(np.arange(20) < 3, 3, 4), 3, []),  # a consumer came
        (-(2**63), 0, []),
    ],
)
def test_a_group_that_is_rebalanced_again_and_again(
    rebalances: object, unstable: int, expected: list[tuple[str, str, str]]
) -> None:
    kafka: dict[str, Any] = {"system": b"kafka", "partition": b"0", "rebalances": 3, "group_state": b"stable"}
    state = np.where(np.arange(20) < unstable, b"rebalancing", b"stable")
    host = around(
        lambda h: h.queue(30, 50, **{**WELL, **kafka, "rebalances": rebalances, "group_state": state}), **kafka
    )
    assert found(host) == expected


def test_a_server_whose_polls_always_take_long_has_these_symptoms_too() -> None:
    """Far away, or with many partitions."""
    kafka: dict[str, Any] = {"system": b"kafka", "partition": b"0", "rebalances": 3, "poll_ms": 600}
    host = around(lambda h: h.queue(30, 50, **{**WELL, **kafka, "rebalances": 3 + np.arange(20) // 3}), **kafka)
    assert found(host) == [("rebalancing", "rebalance", "storm")]
    ages, kafka = np.arange(25) + 30.0, {**kafka, "lag": 50, "retention_left_s": 3600.0}
    near = {**kafka, "age": ages, "retention_left_s": 60.0 - ages, "out": 0}
    host = around(lambda h: h.queue(30, 55, **{**WELL, **near}), b=55, **kafka, age=30.0)
    assert "retention_near" in {symptom for symptom, _, _ in found(host)}


@pytest.mark.parametrize(("before", "each_s", "storm"), [(2, 4, True), (6, 12, False)])
def test_a_storm_is_far_more_rebalances_than_in_the_minutes_before(before: int, each_s: int, storm: bool) -> None:
    kafka: dict[str, Any] = {**WELL, "system": b"kafka", "partition": b"0", "group_state": b"stable"}
    host = Host()
    host.queue(0, 90, **kafka, rebalances=1 + np.arange(90) * before // 89)
    host.queue(90, 102, **kafka, rebalances=1 + before + np.arange(12) // each_s)
    host.queue(102, 110, **kafka, rebalances=1 + before + 12 // each_s)
    assert ("rebalancing" in {f["symptom"] for f in latest(run(host, 110))}) == storm


def test_a_consumer_that_crashes_again_and_again_is_why_its_group_is_rebalanced() -> None:
    kafka: dict[str, Any] = {"system": b"kafka", "partition": b"0", "rebalances": 3, "group_state": b"stable"}
    host = around(lambda h: h.queue(30, 50, **{**WELL, **kafka, "rebalances": 3 + np.arange(20) // 3}), **kafka)
    begun = 0
    for n, ended in enumerate((30, 34, 38, 42, 46, UNTIL)):
        process = {"pid": 601 + n, "proc_start_ns": START + begun * S, "comm": b"worker"}
        t = T0 + np.arange(begun, ended) * S
        host.add("tcp_rtt", t_ns=t, **process, role="client", peer=PEER, samples=20, srtt_us=45, interval_ns=S)
        if ended < UNTIL:
            crash = {"kind": code("process_event", "kind", "killed"), "signal": 11, "uid": 1000}
            host.add("process_event", at=ended, **process, **crash)
        begun = ended
    (finding,) = [f for f in latest(run(host, UNTIL)) if f["symptom"] == "rebalancing"]
    assert (finding["cause"], finding["culprit_comm"]) == ("process_killed", "worker")


@pytest.mark.parametrize(
    ("out", "members", "cause"),
    [
        (20, 2, "consumer_slow"),  # a third one, which had come for a moment
        (0, 2, "process_killed"),  # nobody read this partition after it ended
        (20, 1, "process_killed"),  # one of the two
    ],
)
def test_a_consumer_that_ended_while_others_read_its_partition_on_explains_no_later_lag(
    out: float, members: int, cause: str
) -> None:
    kafka: dict[str, Any] = {"system": b"kafka", "partition": b"0", "group_state": b"stable", "rebalances": 3}
    host = Host()
    host.queue(0, 30, **{**WELL, **kafka})
    host.queue(30, 41, **{**WELL, **kafka, "rebalances": 4, "out": out, "consumers": members})
    late = np.arange(10) + 0.5
    slow = {"lag": (late * 10).astype(int), "age": late, "out": 5, "consumers": members, "rebalances": 4}
    host.queue(41, 51, **{**WELL, **kafka, **slow})
    host.queue(51, UNTIL, **{**WELL, **kafka, "rebalances": 4, "consumers": members})
    process = {"pid": 601, "proc_start_ns": START, "comm": b"visitor"}
    t = T0 + np.arange(0, 30) * S
    host.add("tcp_rtt", t_ns=t, **process, role="client", peer=PEER, samples=20, srtt_us=45, interval_ns=S)
    host.add("process_event", at=30, **process, kind=code("process_event", "kind", "killed"), signal=9, uid=1000)
    assert ("queue_lag", cause) in [one[:2] for one in found(host)]


def test_unread_messages_that_are_near_their_retention() -> None:
    """Nothing is read, so that they get older; of a queue with much time left nothing is found."""
    kafka: dict[str, Any] = {"system": b"kafka", "partition": b"0", "lag": 50, "retention_left_s": 3600.0}
    for kept_s, expected in ((60.0, True), (3600.0, False)):
        ages = np.arange(25) + 30.0
        near = {**kafka, "age": ages, "retention_left_s": kept_s - ages, "out": 0}
        host = around(lambda h, near=near: h.queue(30, 55, **{**WELL, **near}), b=55, **kafka, age=30.0)
        assert ("retention_near" in {symptom for symptom, _, _ in found(host)}) == expected


def test_consumers_that_hold_all_that_they_may() -> None:
    """While they do, and acknowledge nothing; a queue of consumers that are only slow has another number at each
    poll.
    """
    ages = np.arange(20) + 0.5
    for pending, out, cause in ((20, 0.0, "prefetch_full"), (18 + np.arange(20) % 3, 4, "consumer_slow")):
        now = {"lag": (20 * ages).astype(int), "age": ages, "pending": pending, "out": out, "oldest_pending_s": ages}
        host = around(lambda h, now=now: h.queue(30, 50, **{**WELL, **RABBIT, **now}), **RABBIT)
        assert found(host)[0][1] == cause


def test_slow_consumers_that_always_hold_all_that_they_may_acknowledge_some() -> None:
    """Also where the first second of the symptom begins just before a poll."""
    usual: dict[str, Any] = {**WELL, **RABBIT, "incoming": 12}
    host = Host()
    host.queue(0, 27, **{**usual, "out": 12})
    host.queue(27, 30, **{**usual, "out": 2, "pending": np.array([4, 15, 20])})
    late = np.arange(6)
    host.queue(30, 36, **{**usual, "out": 2, "pending": 20, "lag": 10 * (late + 1), "age": late + 0.05})
    host.queue(36, UNTIL, **{**usual, "out": 12})
    assert found(host) == [("queue_lag", "consumer_slow", "")]


def waiting_for_ledger(host: Host, seconds: np.ndarray, max_ns: np.ndarray, until: int = UNTIL, **more: object) -> None:
    """A worker talks to its broker and to its database all the time; max_ns: its waits for the latter."""
    t = T0 + np.arange(0, until) * S
    who = {"pid": 501, "proc_start_ns": START, "comm": b"worker"}
    for to in (PEER, LEDGER):
        host.add("tcp_rtt", t_ns=t, **who, role="client", peer=to, samples=20, srtt_us=45, interval_ns=S)
    host.add(
        "syscall_latency",
        at=seconds,
        **who,
        basis="blocked",
        kind="waiting",
        peer=LEDGER,
        interval_ns=S,
        max_ns=max_ns,
        **{"count": 20, **more},
    )


def test_consumers_that_wait_for_their_database() -> None:
    ages = np.arange(20) + 0.5
    now = {"lag": (15 * ages).astype(int), "age": ages, "out": 5}
    host = around(lambda h: h.queue(30, 50, **{**WELL, **RABBIT, **now}), **RABBIT)
    seconds = np.arange(0, UNTIL)
    waiting_for_ledger(host, seconds, np.where((seconds >= 30) & (seconds < 50), 800_000_000, 6_000_000))
    (finding,) = latest(run(host, UNTIL))
    assert (finding["symptom"], finding["cause"], finding["cause_detail"]) == (
        "queue_lag",
        "consumer_slow",
        "dependency",
    )
    assert finding["culprit_object"] == "10.0.0.9:5432"


def test_consumers_whose_database_waits_for_a_lock_are_followed_to_its_holder() -> None:
    """The session that the worker asked, and the one that held what it waited for."""
    ages = np.arange(20) + 0.5
    now = {"lag": (15 * ages).astype(int), "age": ages, "out": 0}
    host = around(lambda h: h.queue(30, 50, **{**WELL, **RABBIT, **now}), **RABBIT)
    seconds = np.arange(0, UNTIL)
    waiting_for_ledger(host, seconds, np.where(seconds >= 49, 20 * S, 6_000_000))
    session = {"pid": 701, "tid": 701, "proc_start_ns": START, "comm": b"postgres"}
    its = {"netns": 1, "role": "server", "sport": 5432, "saddr": peer("10.0.0.9", 0)[:16]}
    host.add("tcp_rtt", at=seconds, **session, **its, peer=peer("10.0.0.9", 40000), rtt=(10, 30, 40, 50))
    waiting = (seconds >= 31) & (seconds < 50)
    took = {"max_ns": np.where(waiting, (seconds - 30) * S + 650 * MS, 5 * MS), "max_from_ns": T0 + 30 * S}
    port = {"netns": 1, "sport": 5432, "interval_ns": S}
    host.add("service_latency", at=seconds + 0.9, **port, **session, waiting=waiting, **took)
    slept = {"kind": "waiting", "syscall": b"epoll_wait", "duration_ns": int(19.5 * S), "waker_pid": 702}
    host.add("slow_syscall", at=49.6, **session, **slept, waker_tid=702, waker_comm=b"postgres")
    for at, kind in ((30.0, "stopped"), (49.55, "continued")):
        host.add("process_event", at=at, pid=702, comm=b"postgres", kind=kind, signal=19, sender_pid=7)
    finding = latest(run(host, UNTIL))[0]
    assert (finding["symptom"], finding["cause"], finding["culprit_pid"]) == ("queue_lag", "process_stopped", 702)
    assert "postgres pid 701" in str(finding["via"]), finding["sentence"]


@pytest.mark.parametrize(("from_s", "detail"), [(30, "dependency"), (0, "")])
def test_waits_that_began_before_the_queue_fell_behind_are_not_its_usual_ones(from_s: int, detail: str) -> None:
    """Its messages were as old once before, so that they are late only after seconds. Usual waits have no rows, since
    they are short; a worker that always waits so long is as usual.
    """
    unknown: dict[str, Any] = {"out_per_s": np.nan}
    ages = np.arange(20) + 0.5
    host = around(lambda h: h.queue(30, 50, **{**WELL, **unknown, "lag": 20, "age": ages}), **unknown)
    once = next(batch for batch in host.made if batch.table == "queue_lag").rows
    once["oldest_undelivered_s"][12:15], once["lag_messages"][12:15] = (1.0, 2.0, 3.0), 20
    waits = np.arange(from_s + 1, 50, 2)
    waiting_for_ledger(host, waits, np.full(len(waits), 2 * S))
    (finding,) = [one for one in latest(run(host, UNTIL)) if int(str(one["end_ns"])) > T0 + 40 * S]
    assert int(str(finding["start_ns"])) > T0 + 31 * S
    assert (finding["symptom"], finding["cause_detail"]) == ("queue_lag", detail)


@pytest.mark.parametrize(("calls", "cause"), [(10, "consumer_slow"), (400, "unknown")])
def test_one_wait_of_many_short_calls(calls: int, cause: str) -> None:
    """As psycopg 3 waits; not a worker that asks its database more and more."""
    ages = np.arange(20) + 0.5
    unknown: dict[str, Any] = {"in_per_s": np.nan, "out_per_s": np.nan}
    host = around(lambda h: h.queue(30, 50, **{**WELL, **unknown, "lag": 20, "age": ages}), **unknown)
    waits = np.arange(31, 50)
    waiting_for_ledger(host, waits, np.full(len(waits), 90_000_000), count=calls, sum_ns=950_000_000)
    (finding,) = latest(run(host, UNTIL))
    assert (finding["symptom"], finding["cause"]) == ("queue_lag", cause)
    assert ("waited 18" in str(finding["sentence"])) == (cause == "consumer_slow")
    ruled_out = str(finding["sentence"]).partition("ruled out")[2]
    assert "consumer slow" not in ruled_out and "load" not in ruled_out  # no rate is known


@pytest.mark.parametrize("slow_s", [None, 0.1])
def test_waits_that_were_there_before_explain_no_old_message(slow_s: float | None) -> None:
    """Its oldest message is older than the rows that are kept: an idle wait of each second, or a steady poller."""
    unknown: dict[str, Any] = {"in_per_s": np.nan, "out_per_s": np.nan}
    ages = np.arange(30) * 2 + 150.0
    host = Host()
    host.queue(0, 200, **{**WELL, **unknown, "lag": 20, "age": 30.0})
    host.queue(200, 230, **{**WELL, **unknown, "lag": 20, "age": ages})
    seconds = np.arange(0, 230)
    if slow_s is None:
        waiting_for_ledger(host, seconds[::2], np.full(115, 2 * S), until=230)
    else:
        polls = {"count": 10, "sum_ns": 990_000_000}
        waiting_for_ledger(host, seconds, np.full(230, int(slow_s * S)), until=230, **polls)
    found = [one for one in latest(run(host, 230)) if one["symptom"] == "queue_lag"]
    assert found and {one["cause_detail"] for one in found} == {""}
