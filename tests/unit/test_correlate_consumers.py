"""From a queue that falls behind to its consumers, and to what these do in place of taking the next message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agent.columns import NULL_I64
from tests.unit.correlate_scenarios import MS, PEER, T0, UNTIL, Host, S, latest, peer, run
from tests.unit.test_correlate_queues import CONSUMERS, talk, well

WORKER_ROW: dict[str, Any] = {"pid": 502, "comm": b"worker-2"}
WORKER = {**WORKER_ROW, "tid": 502}
BAD = np.arange(30, 38)


def behind(out: float) -> Host:
    """From 30 s on for 8 s, this many messages a second are acknowledged, of 40."""
    host = well(0, 30)
    ages = np.arange(8) * 0.8 + 0.8
    host.queue(30, 38, lag=(ages * 40).astype(int), age=ages, incoming=40, out=out, consumers=3)
    talk(host, 30, 38, b"worker-1", b"worker-3")
    return well(38, UNTIL, host)


def spent(host: Host, call: bytes, at: Any, ms: int, **more: Any) -> None:
    """The sums of these seconds."""
    its = {"basis": "blocked", "kind": "waiting", "syscall": call, "interval_ns": S, "count": 2, "run_queue_ns": 0}
    host.add("syscall_latency", at=at, **WORKER_ROW, **its, sum_ns=ms * MS, max_ns=ms * MS // 2, **more)


def only(host: Host) -> dict[str, Any]:
    (one,) = [one for one in latest(run(host, UNTIL)) if one["symptom"] == "queue_lag"]
    return one


def so_far(host: Host, from_s: float, until_s: float, **call: Any) -> None:
    """A call that goes on."""
    at = np.arange(np.ceil(from_s + 1), until_s)
    lasted = ((at - from_s) * S).astype(int)
    its = {"fd_type": b"", "run_queue_ns": 0, "basis": "so_far", **call}
    host.add("slow_syscall", at=at, **WORKER, **its, duration_ns=lasted)


@pytest.mark.parametrize("until_s", [None, 34, UNTIL])
def test_it_waits_for_a_lock_that_another_process_holds(until_s: int | None) -> None:
    """Until the end of the wait, or as far as it is known until then: what has not ended is only seen so far."""
    host = behind(0.0)
    its = {"kind": "slow", "syscall": b"flock", "fd_type": b"file", "file": b"stock.db", "run_queue_ns": 0}
    held = {"holder_pid": 123, "holder_comm": b"backup", "holder_start_ns": T0}
    if until_s is not None:
        so_far(host, 30.1, until_s, **its, **held)
    if until_s is None or until_s < UNTIL:
        host.add("slow_syscall", at=37.9, **WORKER, **its, **held, basis="blocked", duration_ns=7800 * MS)
    one = only(host)
    assert (one["cause"], one["culprit_pid"], one["via"]) == ("syscall", 123, "worker-2 pid 502")
    assert "backup pid 123 held the lock" in one["sentence"]
    assert ("was blocked for 7.9 s so far;" in one["sentence"]) == (until_s == UNTIL)


@pytest.mark.parametrize(("began_s", "cause"), [(30.2, "process_wait"), (5.0, "consumer_stopped")])
def test_it_sleeps_and_has_not_come_back(began_s: float, cause: str) -> None:
    """Some thread of it may sleep for hours."""
    host = behind(0.0)
    spent(host, b"poll", np.arange(1, 31), 900)
    so_far(host, began_s, UNTIL, kind="waiting", syscall=b"clock_nanosleep")
    one = only(host)
    assert one["cause"] == cause, one["sentence"]


@pytest.mark.parametrize(("before_ms", "cause"), [(60, "process_wait"), (950, "consumer_slow")])
def test_it_sleeps_for_longer_than_before(before_ms: int, cause: str) -> None:
    """Some thread of it may always sleep."""
    host = behind(8.0)
    spent(host, b"clock_nanosleep", np.arange(1, 31), before_ms)
    spent(host, b"clock_nanosleep", BAD + 1, 950)
    one = only(host)
    assert one["cause"] == cause, one["sentence"]
    assert ("slept in clock_nanosleep for 90.2 % of the time (usually 6.09 %)" in one["sentence"]) == (before_ms == 60)


def test_each_waits_in_turn_for_what_another_does_while_it_has_the_lock() -> None:
    """Two of them: half of the time each sleeps, for the other half it waits."""
    host, sleep = behind(8.0), b"clock_nanosleep"
    its = {"kind": "slow", "syscall": b"flock", "fd_type": b"file", "file": b"stock.db", "run_queue_ns": 0}
    two = {1: {"pid": 501, "comm": b"worker-1"}, 2: WORKER_ROW}
    talk(host, 30, 38, b"worker-1", b"worker-2")
    for n in range(13):
        who, other = two[1 + n % 2], two[2 - n % 2]
        held = {"holder_pid": other["pid"], "holder_comm": other["comm"], "holder_start_ns": T0}
        host.add("slow_syscall", at=30.1 + (n + 1) * 0.6, **who, tid=who["pid"], **its, **held, duration_ns=599 * MS)
    for who in two.values():
        for at, ms in ((np.arange(1, 31), 60), (BAD + 1, 500)):
            sums = {"basis": "blocked", "kind": "waiting", "syscall": sleep, "interval_ns": S, "count": 2}
            host.add("syscall_latency", at=at, **who, **sums, run_queue_ns=0, sum_ns=ms * MS, max_ns=600 * MS)
    one = only(host)
    assert (one["cause"], one["cause_detail"]) == ("process_wait", sleep.decode()), one["sentence"]


def test_it_runs_a_child_for_each_message() -> None:
    host = behind(8.0)
    for n in range(13):
        its = {"kind": "waiting", "syscall": b"wait4", "fd_type": b"", "run_queue_ns": 0, "duration_ns": 580 * MS}
        child = {"waker_pid": 900 + n, "waker_comm": b"convert", "waker_tid": 900 + n}
        host.add("slow_syscall", at=30.1 + (n + 1) * 0.6, **WORKER, **its, **child)
    signalled = {"waker_pid": 33, "waker_comm": b"kill", "waker_tid": 33}
    host.add("slow_syscall", at=38.0, **WORKER, **{**its, **signalled, "duration_ns": 99 * MS})
    spent(host, b"poll", np.arange(1, 31), 900)
    spent(host, b"wait4", BAD + 1, 970)
    one = only(host)
    assert (one["cause"], one["cause_detail"], one["culprit_comm"]) == ("process_wait", "wait4", "convert")


def test_a_child_of_it_that_talks_to_nobody_waits_for_a_lock() -> None:
    """As those of Celery, which do the work."""
    host, child = behind(0.0), {"pid": 540, "comm": b"celery"}
    host.add("cpu_use", at=np.arange(1, 30, 10), **child, interval_ns=S, user_ns=0, system_ns=0, parent_pid=502)
    its = {"kind": "slow", "syscall": b"flock", "fd_type": b"file", "file": b"stock.db", "run_queue_ns": 0}
    held = {"holder_pid": 123, "holder_comm": b"backup", "holder_start_ns": T0}
    host.add("slow_syscall", at=37.9, **child, tid=540, **its, **held, duration_ns=7800 * MS)
    one = only(host)
    assert (one["cause"], one["culprit_pid"], one["via"]) == ("syscall", 123, "celery pid 540")


def test_it_tries_again_and_again_to_get_a_lock() -> None:
    """As SQLite does."""
    host = behind(0.0)
    its = {"kind": "waiting", "syscall": b"clock_nanosleep", "fd_type": b"", "file": b"app.db", "run_queue_ns": 0}
    held = {"holder_pid": 123, "holder_comm": b"backup", "holder_start_ns": T0}
    for n in range(60):
        host.add("slow_syscall", at=32 + n / 10, **WORKER, **its, **held, duration_ns=99 * MS)
    spent(host, b"poll", np.arange(1, 31), 900)
    spent(host, b"clock_nanosleep", BAD + 1, 970)
    one = only(host)
    assert (one["cause"], one["culprit_pid"]) == ("process_wait", 123)
    assert "between tries to lock app.db, which backup pid 123 held" in one["sentence"]


def test_a_client_that_waits_for_messages_of_other_queues_is_no_reason() -> None:
    host = behind(8.0)
    talk(host, 30, 38, b"worker-2")
    its = {"kind": "waiting", "syscall": b"recvfrom", "fd_type": b"socket", "run_queue_ns": 0, "duration_ns": 950 * MS}
    for second in BAD:
        host.add("slow_syscall", at=second + 0.98, **WORKER, **its, peer=PEER)
    assert only(host)["cause"] == "consumer_slow"


@pytest.mark.parametrize(("usual_ms", "cause"), [(30, "busy"), (900, "consumer_slow")])
def test_it_computes(usual_ms: int, cause: str) -> None:
    host = behind(8.0)
    for at, ms in ((np.arange(1, 31), usual_ms), (BAD + 1, 960)):
        host.add("cpu_use", at=at, **WORKER_ROW, interval_ns=S, user_ns=ms * MS, system_ns=0)
    one = only(host)
    assert one["cause"] == cause, one["sentence"]


def test_a_server_that_answers_each_of_its_requests_late() -> None:
    """No answer takes nearly as long as the queue is behind."""
    host, upstream = behind(8.0), peer("10.0.0.8", 8080)
    its = {"role": "client", "peer": upstream, "rtt": (30, 40, 45, 50), "interval_ns": S}
    host.add("tcp_rtt", at=np.arange(UNTIL), **WORKER_ROW, **its)
    spent(host, b"recvfrom", np.arange(1, 31), 60, peer=upstream)
    spent(host, b"recvfrom", BAD + 1, 950, peer=upstream)
    one = only(host)
    assert one["culprit_object"] == "10.0.0.8:8080", one["sentence"]


def test_all_that_are_as_ever_are_no_reason() -> None:
    host = behind(8.0)
    talk(host, 30, 38, *CONSUMERS)
    assert only(host)["cause"] == "consumer_slow"


def untaken(client: bool = True, consumers: int = 1) -> Host:
    """A queue of which no message is taken, since before the agent; its consumer's connection was seen at the start."""
    host, seconds = Host(), np.arange(20)
    its = {"status": b"stalled", "pending": 0, "oldest_pending_s": np.nan}
    host.queue(0, 20, lag=100 + seconds * 40, age=3.0 + seconds, incoming=40, out=0, consumers=consumers, **its)
    if client:
        ends = {"kind": "connection", "role": "client", "peer": PEER, "queue": 0, "proc_start_ns": T0 - 60 * S}
        host.add("socket_queue", at=0.3, **WORKER, **ends)
    return host


@pytest.mark.parametrize(
    ("client", "consumers", "active"), [(True, 1, False), (False, 1, False), (True, 0, False), (True, 1, True)]
)
def test_a_consumer_that_was_stopped_before_the_agent_came(client: bool, consumers: int, active: bool) -> None:
    """No message may be taken on purpose, so it is reported with a known cause only; and where there are consumers. Who
    still talks to the broker was not stopped.
    """
    host = untaken(client, consumers)
    if active:
        host.rtt(5, 20, to=PEER, pid=502)
    host.add("process_event", at=0.2, **WORKER, proc_start_ns=T0 - 60 * S, kind="stopped", signal=NULL_I64)
    said = [(one["symptom"], one["cause"], one["culprit_pid"]) for one in latest(run(host, 20))]
    assert said == ([("queue_lag", "process_stopped", 502)] if client and consumers and not active else [])


@pytest.mark.parametrize("event", ["killed", "waits for a server"])
def test_what_else_a_silent_client_does_explains_no_queue_of_which_nothing_is_taken(event: str) -> None:
    host, its = untaken(), {**WORKER, "proc_start_ns": T0 - 60 * S}
    if event == "waits for a server":
        wait = {"kind": "waiting", "syscall": b"recvfrom", "fd_type": b"socket", "peer": peer("10.0.0.7", 443)}
        so_far(host, -10, 20, **wait, proc_start_ns=T0 - 60 * S)
    else:
        host.add("process_event", at=4.2, **its, kind="killed", signal=9)
    assert [one for one in latest(run(host, 20)) if one["symptom"] == "queue_lag"] == []


@pytest.mark.parametrize("locked", [True, False])
def test_a_consumer_that_was_blocked_before_the_agent_came(locked: bool) -> None:
    host = untaken()
    if locked:
        call = {"kind": "slow", "syscall": b"flock", "fd_type": b"file", "file": b"stock.db", "run_queue_ns": 0}
        so_far(
            host, -10, 20, **call, proc_start_ns=T0 - 60 * S, holder_pid=123, holder_comm=b"backup", holder_start_ns=T0
        )
    said = [(one["symptom"], one["cause"], one["culprit_pid"], one["via"]) for one in latest(run(host, 20))]
    assert said == ([("queue_lag", "syscall", 123, "worker-2 pid 502")] if locked else [])


def test_a_queue_that_is_read_again_is_no_longer_untaken() -> None:
    host = untaken()
    host.add("process_event", at=0.2, **WORKER, proc_start_ns=T0 - 60 * S, kind="stopped", signal=NULL_I64)
    host.add("process_event", at=20.1, **WORKER, proc_start_ns=T0 - 60 * S, kind="continued", signal=18)
    host.queue(20, UNTIL, incoming=40, consumers=1)
    (one,) = latest(run(host, UNTIL))
    assert (one["state"], one["cause"]) == ("closed", "process_stopped")
    assert "No message of redis queue orders group workers was taken for" in one["sentence"]
