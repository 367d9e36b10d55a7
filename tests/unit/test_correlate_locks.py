"""Calls that waited for a lock name who held it; calls on files name the disk."""

from __future__ import annotations

import pytest

from tests.unit.correlate_scenarios import APP_PID, MS, START, T0, UNTIL, Host, S, around_stall, call, latest, run

HOLDER = {"holder_pid": 123, "holder_start_ns": 17, "holder_comm": b"backup"}


def stalled(**columns: object) -> dict[str, object]:
    def stall(host: Host) -> None:
        host.stalled_decision(31.4, 1.4, children=False)
        call(host, **({"syscall": b"flock", "fd_type": b"file", "file": b"state.db"} | columns))

    (found,) = latest(run(around_stall(stall), UNTIL))
    return found


def convoy() -> Host:
    """Fifteen decisions a second, each of which waits 120 ms for a lock that another process takes again and again."""
    host = Host()
    host.decisions(0, 30, rate=15)
    ends = [T0 + int((30 + 0.2 * i) * S) for i in range(1, 20)]
    mine = {"pid": APP_PID, "tid": APP_PID, "proc_start_ns": START, "comm": b"python3"}
    host.add("limiter_decision", t_ns=ends, limiter_id=b"api", library=b"own", cost=1.0, duration_ns=120 * MS, **mine)
    for n, end in enumerate(ends):
        holder = HOLDER if n % 4 else {"holder_pid": 124, "holder_start_ns": 18, "holder_comm": b"fellow"}
        call(host, syscall=b"fcntl", fd_type=b"file", t_ns=end - MS, duration_ns=118 * MS, **holder)
    host.decisions(34.2, UNTIL, rate=15)
    return host


def test_who_held_the_lock_is_the_culprit() -> None:
    found = stalled(**HOLDER)
    assert (found["cause"], found["cause_detail"]) == ("syscall", "flock")
    assert (found["culprit_pid"], found["culprit_comm"], found["culprit_object"]) == (123, "backup", "state.db")
    assert "flock on state.db of python3 pid 4242 was blocked for 1.25 s; backup pid 123 held the lock" in str(
        found["sentence"]
    )


def test_a_thread_of_the_same_process_is_reported_to_be_one() -> None:
    assert "another thread of it held the lock" in str(stalled(**HOLDER | {"holder_pid": APP_PID})["sentence"])


def test_a_process_that_has_ended_is_not_reported_to_hold_it() -> None:
    found = stalled(holder_pid=123)
    assert found["culprit_pid"] == 123
    assert "; pid 123 took the lock and ended, and a process with its descriptor holds it" in str(found["sentence"])


def test_nobody_is_blamed_where_no_holder_is_known() -> None:
    found = stalled()
    assert (found["cause"], found["cause_detail"]) == ("syscall", "flock")
    assert not found["culprit_comm"]
    assert not found["culprit_object"]
    assert "held the lock" not in str(found["sentence"])


def test_calls_on_a_file_name_its_disk() -> None:
    found = stalled(syscall=b"fsync", file=b"journal", device=b"sda")
    assert (found["cause_detail"], found["culprit_object"], found["culprit_comm"]) == ("fsync", "/dev/sda", "")
    assert "fsync on journal (disk sda)" in str(found["sentence"])


def test_several_waits_that_are_short_alone_are_one_finding_with_who_held_the_lock_longest() -> None:
    (found,) = latest(run(convoy(), UNTIL))
    assert (found["symptom"], found["cause"], found["culprit_pid"]) == ("decision_latency", "syscall", 123)
    assert "fcntl on a file of python3 pid 4242 was blocked 19 times, for up to 118 ms; backup pid 123" in str(
        found["sentence"]
    )


@pytest.mark.parametrize("table", ["slow_syscall"])
def test_without_the_calls_the_convoy_has_no_cause(table: str) -> None:
    (found,) = latest(run(convoy().without(table), UNTIL))
    assert (found["cause"], found["culprit_comm"]) == ("unknown", "")
