"""Processor, memory, descriptors and disks that run short: found where their rows are, with who did it, and never
without them.
"""

from __future__ import annotations

import numpy as np
import pytest

from agent.columns import NULL_I64
from tests.unit.correlate_scenarios import (
    APP_PID,
    MS,
    PEER,
    START,
    T0,
    UNTIL,
    WEB_PID,
    Host,
    S,
    around_stall,
    code,
    latest,
    run,
)

HOG = {"by_pid": 666, "by_comm": b"greedy", "by_proc_start_ns": START}
ME = {"pid": APP_PID, "proc_start_ns": START, "comm": b"python3"}
GROUP = b"/sys/fs/cgroup/app"


def resource(host: Host, kind: str, at: object, **columns: object) -> None:
    t = T0 + (np.atleast_1d(np.asarray(at, float)) * S).astype(np.int64)
    host.add(
        "resource",
        len(t),
        **{"t_ns": t, "kind": code("resource", "kind", kind), "interval_ns": 500 * MS, **ME, **columns},
    )


def preempted(host: Host, wait_s: float = 1.2, **columns: object) -> None:
    """Waits for a processor inside the stalled decision, in five pieces."""
    t = T0 + (30.2 * S + np.arange(1, 6) * wait_s / 5 * S).astype(np.int64)
    single = {"t_ns": t, "tid": APP_PID, "duration_ns": int(wait_s / 5 * S), **ME, **HOG, **columns}
    host.add("cpu_delay", 5, **single)
    summed = {
        "t_ns": T0 + np.array([31, 32]) * S,
        "interval_ns": S,
        "count": 3,
        "wait_ns": int(wait_s / 2 * S),
        "max_ns": int(wait_s / 5 * S),
        **ME,
        **HOG,
        **columns,
    }
    host.add("cpu_wait", 2, **summed)


def handshake(host: Host) -> None:
    host.stalled_decision(31.4, 1.4, children=False)
    host.add("tls_handshake", at=31.39, tid=APP_PID, peer=PEER, duration_ns=int(1.3 * S), **ME)


def causes(host: Host) -> set[object]:
    return {f["cause"] for f in latest(run(host, UNTIL))}


def only(host: Host) -> dict[str, object]:
    found = latest(run(host, UNTIL))
    assert len(found) == 1, [f["sentence"] for f in found]
    return found[0]


def test_a_handshake_that_waits_for_a_processor_is_no_slow_handshake() -> None:
    def stall(host: Host) -> None:
        handshake(host)
        preempted(host)

    host = around_stall(stall)
    found = only(host)
    assert (found["cause"], found["cause_detail"]) == ("cpu", "preempted"), found["sentence"]
    assert (found["culprit_pid"], found["culprit_comm"]) == (666, "greedy")
    assert "greedy pid 666 ran" in str(found["sentence"])
    assert only(host.without("cpu_delay", "cpu_wait"))["cause"] == "tls"


def test_own_threads_and_an_idle_processor_are_nobody() -> None:
    def stall(host: Host) -> None:
        host.stalled_decision(31.4, 1.4, children=False)
        preempted(host, by_pid=0, by_comm=b"")
        preempted(host, wait_s=0.1, by_pid=APP_PID)

    found = only(around_stall(stall))
    assert (found["cause"], found["cause_detail"], found["culprit_pid"]) == ("cpu", "", NULL_I64)


def test_a_quota_is_reported_from_a_busy_host() -> None:
    def stall(host: Host) -> None:
        host.stalled_decision(31.4, 1.4, children=False)
        preempted(host, by_pid=0, by_comm=b"")
        resource(host, "cpu", [30.5, 31.0, 31.5], object=GROUP, waited_ns=400 * MS, events=4, limit=5)

    host = around_stall(stall)
    found = only(host)
    assert (found["cause"], found["cause_detail"], found["culprit_object"]) == ("cpu", "throttled", GROUP.decode())
    assert only(host.without("resource"))["cause_detail"] == ""


def test_what_the_kernel_reports_of_the_host_is_evidence_and_no_quota() -> None:
    def stall(host: Host) -> None:
        host.stalled_decision(31.4, 1.4, children=False)
        preempted(host)
        host.add(
            "resource", 2, at=np.array([31, 32]), kind="cpu", object=b"pressure", waited_ns=700 * MS, interval_ns=S
        )

    found = only(around_stall(stall))
    assert (found["cause"], found["cause_detail"]) == ("cpu", "preempted")
    (entry,) = (e for e in found["evidence"] if e.get("object") == "pressure")  # type: ignore[attr-defined]
    assert entry["value"] == 1.4 * S


def test_a_quota_that_withholds_the_processor_is_a_symptom() -> None:
    host = Host()
    host.decisions(0, UNTIL, rate=8)
    at = np.arange(30.25, 34, 0.5)
    resource(host, "cpu", at, object=GROUP, waited_ns=400 * MS, events=3, limit=3)
    found = only(host)
    assert (found["symptom"], found["cause"], found["cause_detail"]) == ("resource_low", "cpu", "throttled")
    assert f"pid {APP_PID}" in str(found["subject"])
    assert not latest(run(host.without("resource"), UNTIL))


def test_a_quota_that_is_always_met_is_no_news() -> None:
    host = Host()
    host.decisions(0, UNTIL, rate=8)
    resource(host, "cpu", np.arange(0.25, UNTIL, 0.5), object=GROUP, waited_ns=400 * MS, events=3, limit=3)
    assert not latest(run(host, UNTIL))


def test_some_throttling_is_no_news() -> None:
    host = Host()
    host.decisions(0, UNTIL, rate=8)
    resource(host, "cpu", np.arange(30.25, 40, 0.5), object=GROUP, waited_ns=60 * MS, events=1, limit=5)
    assert not latest(run(host, UNTIL))


def test_decisions_that_others_slow_by_a_tenth_of_a_second() -> None:
    """Too short for a stall and over too soon for a lasting rise: what was waited for says it."""
    host = Host()
    host.decisions(0, 30, rate=8)
    host.decisions(30, 33, rate=8, ms=80)
    host.decisions(33, UNTIL, rate=8)
    t = T0 + (np.arange(30.05, 33, 0.1) * S).astype(np.int64)
    host.add("cpu_delay", t_ns=t, tid=APP_PID, duration_ns=40 * MS, **ME, **HOG)
    found = only(host)
    assert (found["cause"], found["cause_detail"]) == ("cpu", "preempted")
    assert found["culprit_pid"] == 666
    assert not causes(host.without("cpu_delay")) & {"cpu"}


def test_waits_that_slow_no_decision_are_no_news() -> None:
    host = Host()
    host.decisions(0, UNTIL, rate=8)
    t = T0 + (np.arange(30.05, 33, 0.1) * S).astype(np.int64)
    host.add("cpu_delay", t_ns=t, tid=APP_PID + 1, duration_ns=40 * MS, **ME, **HOG)
    assert not latest(run(host, UNTIL))


def test_pages_that_come_and_go() -> None:
    def stall(host: Host) -> None:
        host.stalled_decision(31.4, 1.4, children=False)
        resource(host, "memory", [30.5, 31.0, 31.5], object=GROUP, events=200, faults=90, used=1 << 24, limit=1 << 24)

    host = around_stall(stall)
    found = only(host)
    assert (found["cause"], found["culprit_pid"], found["culprit_object"]) == ("memory", APP_PID, GROUP.decode())
    assert only(host.without("resource"))["cause"] == "unknown"


def test_pages_that_are_read_without_a_limit_are_no_want_of_memory() -> None:
    def stall(host: Host) -> None:
        host.stalled_decision(31.4, 1.4, children=False)
        resource(host, "memory", [30.5, 31.0, 31.5], faults=90, events=0)

    assert only(around_stall(stall))["cause"] == "unknown"


def test_who_was_killed_for_want_of_memory() -> None:
    host = Host()
    host.decisions(0, 31, rate=8)
    resource(host, "oom", 31.2, object=GROUP, events=1)
    found = only(host)
    assert (found["symptom"], found["cause"], found["cause_detail"]) == ("resource_low", "memory", "oom")
    assert found["culprit_pid"] == APP_PID
    assert not latest(run(host.without("resource"), UNTIL))


def descriptors(host: Host, until: float = 33) -> None:
    resource(host, "fd", [5.25, 15.25, 25.25], used=20, limit=1024)
    resource(host, "fd", np.arange(30.25, until, 0.5), used=20, limit=20)
    resource(host, "fd", until, used=20, limit=1024)


def test_no_descriptor_is_left() -> None:
    host = Host()
    host.decisions(0, UNTIL, rate=8)
    descriptors(host)
    found = only(host)
    assert (found["symptom"], found["cause"], found["cause_detail"]) == ("resource_low", "resource_limit", "fd")
    assert (found["culprit_pid"], found["state"]) == (APP_PID, "closed")
    assert not latest(run(host.without("resource"), UNTIL))


@pytest.mark.parametrize("used", [3, 4])
def test_who_never_may_open_another_file_is_no_news(used: int) -> None:
    """As sandboxed processes do."""
    host = Host()
    host.decisions(0, UNTIL, rate=8)
    resource(host, "fd", np.arange(0.25, UNTIL, 0.5), used=used, limit=3)
    assert not latest(run(host, UNTIL))


def test_errors_of_decisions_where_no_descriptor_is_left() -> None:
    host = Host()
    host.decisions(0, 30)
    host.decisions(30, UNTIL, result=code("limiter_decision", "result", "error"))
    descriptors(host, UNTIL)
    found = latest(run(host, UNTIL))
    assert {f["cause"] for f in found} == {"resource_limit"}, [f["sentence"] for f in found]
    assert {"resource_limit"} != {f["cause"] for f in latest(run(host.without("resource"), UNTIL))}


def test_a_queue_that_is_not_accepted_for_want_of_descriptors() -> None:
    host = Host()
    host.accept(0, 30)
    host.accept(30, 40, queue=512, drops=12 + np.arange(10) * 7)
    host.accept(40, UNTIL, drops=75)
    web = {"pid": WEB_PID, "comm": b"nginx"}
    resource(host, "fd", [5, 15, 25], used=20, limit=64, **web)
    resource(host, "fd", np.arange(30.25, 40, 0.5), used=64, limit=64, **web)
    found = latest(run(host, UNTIL))
    assert {f["cause"] for f in found} == {"resource_limit"}, [f["sentence"] for f in found]
    assert {f["cause"] for f in latest(run(host.without("resource"), UNTIL))} == {"accept_overflow"}


def test_a_disk_that_is_full() -> None:
    host = Host()
    host.decisions(0, UNTIL, rate=8)
    size = 1 << 30
    resource(host, "disk", [5, 15, 25], object=b"/data", used=size // 2, limit=size)
    resource(host, "disk", np.arange(30.25, 33, 0.5), object=b"/data", used=size - 4096, limit=size)
    found = only(host)
    assert (found["symptom"], found["cause"], found["cause_detail"]) == ("resource_low", "resource_limit", "disk_full")
    assert found["culprit_object"] == "/data" and "/data" in str(found["subject"])


def test_a_disk_that_has_always_been_full_is_no_news() -> None:
    host = Host()
    host.decisions(0, UNTIL, rate=8)
    resource(host, "disk", np.arange(0.25, UNTIL, 0.5), object=b"/boot", used=1 << 20, limit=1 << 20)
    assert not latest(run(host, UNTIL))


def waits(host: Host, a: float, b: float, longest_ms: int, sum_ms: int, **columns: object) -> None:
    t = T0 + (np.arange(a, b) * S).astype(np.int64)
    host.add(
        "cpu_wait",
        len(t),
        **{
            "t_ns": t,
            "interval_ns": S,
            "count": 9,
            "wait_ns": sum_ms * MS,
            "max_ns": longest_ms * MS,
            **ME,
            **HOG,
            **columns,
        },
    )


@pytest.mark.parametrize(("longest_ms", "sum_ms", "found"), [(150, 700, True), (12, 900, False), (150, 160, False)])
def test_waits_that_no_busy_host_has(longest_ms: int, sum_ms: int, found: bool) -> None:
    """Of a program whose decisions take no time, whatever happens around them. Many short waits are a busy host."""
    host = Host()
    host.decisions(0, UNTIL, rate=8, ms=0.01)
    waits(host, 2.5, 30, 2, 6)
    waits(host, 30.5, 34, longest_ms, sum_ms)
    waits(host, 30.5, 34, 500, 900, pid=APP_PID + 7)  # reports nothing: nobody is known to suffer
    got = latest(run(host, UNTIL))
    assert [(f["symptom"], f["cause_detail"], f["culprit_pid"]) for f in got] == [
        ("resource_low", "preempted", 666)
    ] * found


def test_long_intervals_are_no_long_waits() -> None:
    """Where the agent itself starves, its sums are of several seconds."""
    host = Host()
    host.decisions(0, UNTIL, rate=8)
    made = host.made[0].rows
    made["duration_ns"][(made["t_ns"] > T0 + 33 * S) & (made["t_ns"] < T0 + 35 * S)] *= 100
    waits(host, 2.5, 30, 2, 6)
    waits(host, 33.5, 35, 8, 250, interval_ns=4 * S)
    assert not [f for f in latest(run(host, UNTIL)) if f["symptom"] == "resource_low"]


def test_a_quota_that_withholds_little_and_slows_decisions() -> None:
    host = Host()
    host.decisions(0, 30, rate=8)
    host.decisions(30, 34, rate=8, ms=120)
    host.decisions(34, UNTIL, rate=8)
    resource(host, "cpu", np.arange(30.25, 34, 0.5), object=GROUP, waited_ns=130 * MS, events=1, limit=3)
    waits(host, 31, 35, 90, 400, by_pid=0, by_comm=b"")
    found = [f for f in latest(run(host, UNTIL)) if f["cause"] == "cpu"]
    assert [f["cause_detail"] for f in found] == ["throttled"]
    assert "throttled" not in {f["cause_detail"] for f in latest(run(host.without("resource"), UNTIL))}


def test_who_is_known_of_one_episode_is_known_of_its_finding() -> None:
    """The decision does not tell who ran instead, what withheld the processor does."""

    def stall(host: Host) -> None:
        host.stalled_decision(31.4, 1.4, children=False)
        preempted(host, by_pid=0, by_comm=b"")
        waits(host, 32.5, 35, 400, 900)

    found = only(around_stall(stall))
    assert (found["symptom"], found["cause"], found["culprit_pid"]) == ("decision_latency", "cpu", 666)
