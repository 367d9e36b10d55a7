"""Processes that stop, end and come back: found by themselves, and as what was behind others' trouble."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agent.cli.explain import timeline
from agent.columns import NULL_I64
from agent.common.sentence import plain
from agent.correlate.catalogue import symptom_of
from agent.correlate.episode import Episode
from agent.correlate.words import pieces
from tests.unit.correlate_scenarios import APP_PID, MS, PEER, REDIS_PID, START, T0, Host, S, code, latest, run

CGROUP = 4711


def event(
    host: Host, kind: str, at: float, pid: int = REDIS_PID, comm: bytes = b"redis-server", **more: object
) -> None:
    columns: dict[str, object] = {
        "t_ns": T0 + int(at * S),
        "pid": pid,
        "tid": pid,
        "proc_start_ns": START,
        "comm": comm,
        "cgroup_id": CGROUP,
        "kind": code("process_event", "kind", kind),
        "sender_pid": 31,
        "sender_comm": b"bash",
    }
    host.add("process_event", 1, **(columns | more))


def test_a_server_that_stood_still_is_named_with_who_stopped_it() -> None:
    host = Host(1).healthy(0, 60)
    event(host, "stopped", 30.2, signal=19)
    event(host, "continued", 32.7, signal=18)
    (found,) = latest(run(host, 60))
    assert (found["symptom"], found["cause"], found["cause_detail"]) == (
        "process_stopped",
        "process_stopped",
        "SIGSTOP",
    )
    assert (found["culprit_pid"], found["culprit_comm"], found["state"]) == (REDIS_PID, "redis-server", "closed")
    assert (
        "redis-server pid 900 was stopped for 2.5 s from boot+5030.200 to boot+5032.700 (SIGSTOP from bash, pid 31)."
        in str(found["sentence"])
    )
    assert found["end_ns"] == T0 + int(32.7 * S)


def test_a_stop_that_lasts_is_reported_while_it_lasts() -> None:
    host = Host(1).healthy(0, 40)
    event(host, "stopped", 30.2, signal=19)
    (found,) = latest(run(host, 40))
    assert (found["cause"], found["state"]) == ("process_stopped", "open")


@pytest.mark.parametrize("seed", range(3))
def test_stops_of_a_moment_are_silent(seed: int) -> None:
    """As cpulimit does it."""
    host = Host(seed).healthy(0, 60)
    for n in range(200):
        event(host, "stopped", 20 + n / 10, signal=19)
        event(host, "continued", 20.07 + n / 10, signal=18)
    assert latest(run(host, 60)) == []


def test_who_nobody_depends_on_may_stop_and_end() -> None:
    host = Host(1).healthy(0, 60)
    event(host, "stopped", 20, pid=5, comm=b"vim", signal=20)
    event(host, "killed", 30, pid=6, comm=b"cc1", signal=9)
    event(host, "frozen", 31, pid=NULL_I64, proc_start_ns=NULL_I64, comm=b"", cgroup_id=99)
    assert latest(run(host, 60)) == []


@pytest.mark.parametrize(
    ("signal", "timeline"), [(9, True), (11, True), (6, True), (15, False), (1, False), (2, False)]
)
def test_an_end_that_somebody_asked_for_is_no_trouble(signal: int, timeline: bool) -> None:
    host = Host(1).healthy(0, 60)
    event(host, "killed", 30, signal=signal)
    found = latest(run(host, 60))
    assert [f["cause"] for f in found] == ["process_killed"] * timeline


@pytest.mark.parametrize(
    ("status", "asked", "timeline"), [(0, NULL_I64, False), (1, NULL_I64, True), (3, 15, False), (143, NULL_I64, False)]
)
def test_an_end_of_its_own(status: int, asked: int, timeline: bool) -> None:
    host = Host(1).healthy(0, 60)
    event(host, "exited", 30, exit_code=status, signal=asked, sender_pid=NULL_I64, sender_comm=b"")
    found = latest(run(host, 60))
    assert [(f["cause"], f["cause_detail"]) for f in found] == [("process_killed", "exit")] * timeline


def test_out_of_memory_is_reported() -> None:
    host = Host(1).healthy(0, 60)
    event(host, "oom_killed", 30, pid=APP_PID, comm=b"python3", signal=9)
    (found,) = latest(run(host, 60))
    assert (found["cause"], found["cause_detail"], found["culprit_pid"]) == ("process_killed", "oom", APP_PID)


def test_a_program_that_ends_again_and_again_is_one_finding() -> None:
    host = Host(1).healthy(0, 60)
    event(host, "killed", 30, signal=9)
    for n in range(1, 7):
        event(host, "killed", 30 + n / 2, pid=2000 + n, signal=9, proc_start_ns=T0 + int((30 + n / 2 - 0.2) * S))
    (found,) = latest(run(host, 60))
    assert (found["cause"], found["symptom"]) == ("process_restarted", "process_gone")
    assert found["culprit_pid"] in {REDIS_PID, *range(2001, 2007)}


def test_workers_that_end_side_by_side_are_no_restarts() -> None:
    host = Host(1).healthy(0, 60)
    for n in range(4):
        host.decisions(0, 30, pid=3000 + n, limiter=b"pool")
        event(host, "killed", 30 + n / 10, pid=3000 + n, comm=b"python3", signal=9)
    assert {f["cause"] for f in latest(run(host, 60))} == {"process_killed"}


@pytest.mark.parametrize("taken_out", [False, True])
def test_slow_decisions_are_explained_by_the_server_that_stood_still(taken_out: bool) -> None:
    host = Host(1).healthy(0, 60)
    host.stalled_decision(32.7, 2.5)
    event(host, "stopped", 30.2, signal=19)
    event(host, "continued", 32.65, signal=18)
    batches = [b for b in host.made if not (taken_out and b.table == "process_event")]
    host.made = batches
    found = latest(run(host, 60))
    assert found
    if taken_out:
        assert "process_stopped" not in {f["cause"] for f in found}
    else:
        (one,) = found
        assert (one["cause"], one["symptom"], one["culprit_pid"]) == ("process_stopped", "decision_latency", REDIS_PID)


def test_a_frozen_container_stands_still() -> None:
    host = Host(1).healthy(0, 60)
    host.decisions(0, 30, pid=555, limiter=b"boxed", cgroup_id=CGROUP, comm=b"boxed")
    whole = {"pid": NULL_I64, "proc_start_ns": NULL_I64, "comm": b""}
    event(host, "frozen", 30, **whole, sender_comm=b"dockerd", sender_pid=80)
    event(host, "thawed", 34, **whole)
    (found,) = latest(run(host, 60))
    assert (found["cause"], found["cause_detail"], found["culprit_pid"]) == ("process_stopped", "frozen", 555)
    assert "(cgroup frozen by dockerd, pid 80)" in str(found["sentence"])


@pytest.mark.parametrize("kind", ["exited", "killed", "stopped"])
def test_what_happens_outside_of_our_pid_namespace_is_no_event_of_who_is_in_that_cgroup(kind: str) -> None:
    host = Host(1).healthy(0, 60)
    host.decisions(0, 60, pid=555, limiter=b"boxed", cgroup_id=CGROUP, comm=b"python")
    outside = {"pid": NULL_I64, "sender_pid": NULL_I64, "comm": b"python", "exit_code": 2}
    for n in range(3):
        event(host, kind, 30 + n, **outside, signal=9)
    assert latest(run(host, 60)) == []


def test_who_talks_all_the_time_may_not_stand_still_but_end() -> None:
    host = Host(1).healthy(0, 60)
    elsewhere = PEER.tobytes()[:16] + b"\x01\x02"
    host.rtt(0, 30, pid=61, to=elsewhere)
    host.rtt(0, 60, pid=62, to=elsewhere)
    event(host, "stopped", 40, pid=61, comm=b"sender", signal=19)
    event(host, "continued", 44, pid=61, comm=b"sender", signal=18)
    event(host, "killed", 50, pid=62, comm=b"other", signal=9)
    assert [(f["cause"], f["culprit_pid"]) for f in latest(run(host, 60))] == [("process_stopped", 61)]


@pytest.mark.parametrize("taken_out", [False, True])
def test_lag_is_explained_by_the_consumer_that_stood_still(taken_out: bool) -> None:
    host = Host(1)
    host.rtt(0, 90, pid=71)
    host.rtt(0, 90, pid=72)
    host.queue(0, 30)
    host.queue(30, 50, age=np.arange(20) + 1.0, lag=np.arange(20) * 100 + 100, out=0)
    host.queue(50, 90)
    if not taken_out:
        event(host, "stopped", 30, pid=72, comm=b"consumer", signal=19)
        event(host, "continued", 49.5, pid=72, comm=b"consumer", signal=18)
    found = [f for f in latest(run(host, 90)) if f["symptom"] == "queue_lag"]
    assert [f["cause"] for f in found] == ["consumer_stopped" if taken_out else "process_stopped"]
    assert taken_out or found[0]["culprit_pid"] == 72


@pytest.mark.parametrize("taken_out", [False, True])
def test_an_accept_queue_is_full_since_its_process_stood_still(taken_out: bool) -> None:
    host = Host(1)
    host.accept(0, 40)
    host.accept(40, 45, queue=8, limit=8)
    host.accept(45, 60)
    if not taken_out:
        event(host, "stopped", 39.5, pid=700, comm=b"nginx", signal=19)
        event(host, "continued", 45, pid=700, comm=b"nginx", signal=18)
    (found,) = [f for f in latest(run(host, 60)) if f["symptom"] == "accept_overflow"]
    assert found["cause"] == ("accept_overflow" if taken_out else "process_stopped")


@pytest.mark.parametrize(
    ("kind", "columns", "cause"),
    [("killed", {"signal": 9}, "process_killed"), ("exited", {"signal": 15, "exit_code": 0}, "process_restarted")],
)
def test_who_served_an_address_before_is_remembered(kind: str, columns: dict[str, object], cause: str) -> None:
    """Refused connects to a server that has another process by now."""
    host = Host(1).healthy(0, 30)
    host.stalled_decision(31.4, 1.4)
    host.refused()
    for part in (host.decisions, host.rtt, host.accept, host.web):
        part(31.4, 60)
    host.queue(30, 60)
    host.server(31.4, 60)
    host.made[-1].rows["pid"], host.made[-1].rows["proc_start_ns"] = 901, T0 + 31 * S
    event(host, kind, 29.95, **columns)
    (found,) = [f for f in latest(run(host, 60)) if f["symptom"] == "decision_latency"]
    assert (found["cause"], found["culprit_pid"]) == (cause, REDIS_PID)


@pytest.mark.parametrize(("one_for_each_client", "twice"), [(True, False), (True, True), (False, False)])
def test_a_process_for_each_client_ends_with_its_connection(one_for_each_client: bool, twice: bool) -> None:
    """As PostgreSQL's: another one serves other clients all the time. Without it, the server was restarted. twice: the
    poller has connected anew, and its last connection's process ends after it has got an answer from another one.
    """
    host = Host(1).healthy(0, 30)
    host.queue(30, 34, status=b"down", failure=code("queue_lag", "failure", "no_answer"), poll_ms=3_000)
    host.queue(34, 60)
    second: dict[str, Any] = {"pid": 902, "proc_start_ns": T0 + 30 * S + 500 * MS}
    host.server(31, 34 if twice else 60)
    for name, value in second.items():
        host.made[-1].rows[name] = value
    if one_for_each_client:
        host.server(0, 60)
        host.made[-1].rows["pid"] = 901
        host.server(0.2, 30)
    ended: dict[str, Any] = {"signal": NULL_I64, "exit_code": 0, "sender_pid": NULL_I64, "sender_comm": b""}
    event(host, "exited", 30.2, **ended)
    if twice:
        event(host, "exited", 34.2, **ended, **second)
    (found,) = [f for f in latest(run(host, 60)) if f["symptom"] == "broker_stall"]
    causes = {one["cause"] for one in found["causes"]}  # type: ignore[attr-defined]
    assert bool(causes & {"process_restarted", "process_killed"}) != one_for_each_client


def test_many_events_are_bounded() -> None:
    host = Host(1).healthy(0, 40)
    t = T0 + np.sort(np.random.default_rng(1).integers(0, 40 * S, 20_000))
    host.add(
        "process_event",
        20_000,
        t_ns=t,
        pid=np.arange(20_000) + 10**5,
        comm=b"sh",
        kind="killed",
        signal=9,
        proc_start_ns=t - 5_000_000,
    )
    assert {table for table, _ in host.made} > {"process_event"}
    assert latest(run(host, 40)) == []


@pytest.mark.parametrize(("gap", "timeline"), [(0.02, False), (0.9, True)])
def test_a_restart_on_purpose_is_no_trouble(gap: float, timeline: bool) -> None:
    """As a deploy does it: nobody need have felt it."""
    host = Host(1).healthy(0, 60)
    event(host, "killed", 30.5, signal=9)
    host.server(31, 60)
    host.made[-1].rows["pid"], host.made[-1].rows["proc_start_ns"] = 901, T0 + int((30.5 + gap) * S)
    host.made[-1].rows["cgroup_id"] = CGROUP
    found = latest(run(host, 60))
    assert [f["cause"] for f in found] == ["process_killed"] * timeline


def test_programs_that_end_again_and_again_are_counted_in_words() -> None:
    ended = Episode(
        "process_gone", (), 0, "worker pid 12", "", T0, T0 + S, "happens", "", 0.0, 3.0, 0.0, 0, comm="worker"
    )
    output = plain(pieces(symptom_of(ended).clause(ended)))
    assert output.startswith("worker ended 3 times, a new process each time, the last one worker pid 12, at ")


@pytest.mark.parametrize(("ns", "none"), [(1, True), (0, True), (1_000_000, False)])
def test_what_has_no_length_is_not_asked_to_last(ns: int, none: bool) -> None:
    row = {
        "finding_id": "a1",
        "state": "closed",
        "start_ns": T0,
        "end_ns": T0 + ns,
        "boot_id": "",
        "symptom": "process_gone",
        "subject": "worker pid 12",
        "cause": "process_killed",
        "cause_detail": "SIGKILL",
        "confidence": 0.98,
        "sentence": "Worker ended.",
        "severity": "alarm",
        "culprit_pid": 12,
        "culprit_comm": "worker",
        "culprit_object": "",
        "causes": [],
        "evidence": [{"role": "timeline", "what": "process_gone", "object": "", "t_ns": T0, "end_ns": T0 + ns}],
        "ruled_out": [],
        "sentence_parts": [],
    }
    lines = " ".join(timeline(row, NULL_I64))
    assert ("over at once" in lines) == none
    assert ("for 1ms" in lines) != none and "for 1ns" not in lines
    assert ("lasted 1ms" in lines) != none


@pytest.mark.parametrize(
    ("age_s", "by", "found"),
    [(6, "parent", 0), (6, "ancestor", 0), (12, "parent", 0), (6, "other", 1), (25, "parent", 1)],
)
def test_what_its_own_parent_kills_soon_after_its_start_is_nobodys_loss(age_s: int, by: str, found: int) -> None:
    """As test suites do it with the servers that they start, one after the other."""
    host = Host(1).healthy(0, 60)
    for n in range(3):
        pid, ended = 7100 + n, T0 + (54 - (2 - n) * age_s) * S
        started = ended - age_s * S + S // 10
        host.add(
            "socket_queue",
            age_s - 1,
            t_ns=started + np.arange(age_s - 1) * S,
            pid=pid,
            tid=pid,
            proc_start_ns=started,
            comm=b"fake-server",
            kind="accept",
            sport=8999,
            cgroup_id=CGROUP,
        )
        event(
            host,
            "killed",
            (ended - T0) / S,
            pid,
            b"fake-server",
            signal=9,
            proc_start_ns=started,
            parent_pid=31,
            sender_is=code("process_event", "sender_is", by),
        )
    assert min(1, len(latest(run(host, 60)))) == found
