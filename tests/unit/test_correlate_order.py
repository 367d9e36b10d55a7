"""Messages that came twice or out of order: what is said, and why they did."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.correlate_scenarios import START, T0, UNTIL, Host, S, code, latest, run

OLD, NEW = 501, 502
QUEUE: dict[str, Any] = {"system": b"celery", "destination": b"orders", "consumer_group": b"", "interval_ns": S}


def consumed(host: Host, a: float, b: float, pid: int = NEW, **more: Any) -> Host:
    """20 messages a second."""
    n = int(b - a)
    t = T0 + (np.arange(a, b) * S).astype(np.int64) + S // 2
    columns: dict[str, Any] = {
        **QUEUE,
        "t_ns": t,
        "pid": pid,
        "proc_start_ns": START,
        "comm": b"worker",
        "source": code("message_order", "source", "consumer"),
        "messages": 20,
        "duplicates": 0,
        "out_of_order": 0,
    }
    host.add("message_order", n, **(columns | more))
    return host


def again(host: Host, at: float, n: int = 3, **more: Any) -> Host:
    return consumed(
        host,
        at,
        at + 1,
        duplicates=n,
        duplicate_id=b"order-4711",
        repeated_s=6.0,
        first_pid=OLD,
        first_proc_start_ns=START,
        first_comm=b"worker",
        **more,
    )


def ended(host: Host, at: float, kind: str = "killed") -> Host:
    host.add(
        "process_event", at=at, pid=OLD, comm=b"worker", kind=kind, signal=9, sender_pid=777, sender_comm=b"oom-script"
    )
    return host


def found(host: Host, symptom: str) -> list[dict[str, Any]]:
    return [one for one in latest(run(host, UNTIL)) if one["symptom"] == symptom]


def test_messages_of_a_killed_consumer_that_another_one_gets() -> None:
    host = again(ended(consumed(Host(), 0, 30), 24.0), 30)
    (finding,) = latest(run(consumed(host, 31, UNTIL), UNTIL))
    assert finding["cause"] == "process_killed" and finding["culprit_pid"] == OLD
    assert "(order-4711 after 6 s) because worker pid 501 was killed" in finding["sentence"]


@pytest.mark.parametrize("metric", ["duplicates", "out_of_order"])
def test_without_a_cause_it_reports_how_many_and_which(metric: str) -> None:
    host = consumed(Host(), 0, 30)
    if metric == "duplicates":
        again(host, 30, 3)
        again(host, 31, 2)
        words = "5 of 40 messages of celery queue orders were consumed again"
    else:
        consumed(host, 30, 32, out_of_order=np.array([3, 2]), out_of_order_id=b"order-4711", behind=12)
        words = "5 of 40 messages of celery queue orders were consumed out of order"
    (finding,) = found(consumed(host, 32, UNTIL), metric)
    assert finding["cause"] == "unknown" and finding["sentence"].startswith(words)
    assert "order-4711" in finding["sentence"]


def test_a_jump_of_the_clock_by_hours_makes_them_due_again() -> None:
    host = consumed(Host(), 0, 30)
    host.step(29.0, 7200 * S)
    (finding,) = latest(run(consumed(again(host, 30), 31, UNTIL), UNTIL))
    assert finding["cause"] == "clock_step"
    assert "3 of 20 messages of celery queue orders were consumed again" in finding["sentence"]


@pytest.mark.parametrize(
    ("reported", "polled", "partition", "cause"),
    [  # the name of the cluster, those of the clusters with a queue of that name, and their partition
        (b"east", (b"east", b"west"), b"", "rebalance"),
        (b"", (b"east",), b"", "rebalance"),
        (b"", (b"east",), b"0", "rebalance"),
        (b"production", (b"east",), b"", "rebalance"),  # the consumer's own name for it
        (b"production", (b"east", b"west"), b"", "unknown"),
        (b"", (b"east", b"west"), b"", "unknown"),
    ],
)
def test_a_report_need_not_have_the_name_of_the_cluster_if_there_is_one_such_queue(
    reported: bytes, polled: tuple[bytes, ...], partition: bytes, cause: str
) -> None:
    host = again(consumed(Host(), 0, 30, cluster=reported), 30, cluster=reported)
    for cluster in polled:
        rebalances = np.where(np.arange(UNTIL) < 29, 3, 5) if cluster == b"east" else 50
        where = {**QUEUE, "cluster": cluster, "partition": partition, "rebalances": rebalances}
        host.queue(0, UNTIL, **{name: it for name, it in where.items() if name != "interval_ns"})
    (finding,) = found(consumed(host, 31, UNTIL, cluster=reported), "duplicates")
    assert finding["cause"] == cause


def test_produced_ones_are_told_from_consumed_ones() -> None:
    host = consumed(Host(), 0, 30, source=code("message_order", "source", "sample"))
    again(host, 30, source=code("message_order", "source", "sample"))
    (finding,) = found(consumed(host, 31, UNTIL, source=code("message_order", "source", "sample")), "duplicates")
    assert finding["sentence"].startswith("3 of 20 messages of celery queue orders were produced again")
