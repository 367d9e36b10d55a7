"""Workers that nobody reaches by a connection: what is done to them from outside is reported, what belongs to their
life is not.
"""

from __future__ import annotations

import numpy as np
import pytest

from agent.columns import NULL_I64
from tests.unit.correlate_scenarios import T0, Host, S, code, latest, run
from tests.unit.test_correlate_processes import event

WORKER, MASTER = 4100, 4000


def at_work(host: Host, from_s: int, to_s: int, pid: int = WORKER, comm: bytes = b"celery") -> Host:
    """It waits at a pipe in each second, as a child of a pool does."""
    for at in range(from_s, to_s):
        host.add(
            "syscall_latency",
            t_ns=T0 + at * S + S // 2,
            pid=pid,
            tid=pid,
            comm=comm,
            cgroup_id=4711,
            syscall=b"read",
            basis="blocked",
            kind="waiting",
            interval_ns=S,
            count=9,
            sum_ns=S // 2,
            max_ns=S // 10,
        )
    return host


def done(host: Host, kind: str, at: float, by: str = "other", pid: int = WORKER, **more: object) -> None:
    columns = {"comm": b"celery", "parent_pid": MASTER, "sender_is": code("process_event", "sender_is", by)} | more
    event(host, kind, at, pid, **columns)


def reported(host: Host) -> list[tuple[object, object]]:
    return [(f["cause"], f["culprit_pid"]) for f in latest(run(host, 60))]


@pytest.mark.parametrize("by", ["other", "ancestor", "parent"])
def test_a_worker_that_is_killed_is_reported_though_another_takes_its_place(by: str) -> None:
    host = at_work(at_work(Host(1).healthy(0, 60), 0, 40), 40, 60, pid=WORKER + 1)
    done(host, "killed", 40.0, by, signal=9, sender_pid=MASTER if by == "parent" else 77)
    assert reported(host) == [("process_killed", WORKER)]


@pytest.mark.parametrize(("kind", "by", "number"), [("oom_killed", "kernel", 9), ("killed", "itself", 11)])
def test_a_worker_that_ran_out_of_memory_or_crashed_is_reported(kind: str, by: str, number: int) -> None:
    host = at_work(Host(1).healthy(0, 60), 0, 40)
    done(host, kind, 40.0, by, signal=number)
    assert reported(host) == [("process_killed", WORKER)]


@pytest.mark.parametrize("by", ["other", "ancestor", "parent"])
def test_a_worker_that_is_stopped_is_reported(by: str) -> None:
    host = at_work(Host(1).healthy(0, 60), 0, 40)
    done(host, "stopped", 40.1, by, signal=19, sender_pid=MASTER if by == "parent" else 77)
    done(host, "continued", 42.3, signal=18)
    assert reported(host) == [("process_stopped", WORKER)]


@pytest.mark.parametrize(
    ("kind", "by", "number"),
    [
        ("killed", "parent", 9),
        ("killed", "parent", 6),
        ("killed", "terminal", 9),
        ("killed", "asked", 9),
        ("killed", "other", 15),
        ("killed", "other", 10),
        ("exited", "other", 15),
    ],
)
def test_an_end_that_belongs_to_its_life_is_not_reported(kind: str, by: str, number: int) -> None:
    host = at_work(Host(1).healthy(0, 60), 0, 40)
    done(host, kind, 40.0, by, signal=number, exit_code=1)
    assert reported(host) == []


@pytest.mark.parametrize(
    ("by", "number", "took_s"), [("other", 20, 3), ("terminal", 19, 3), ("parent", 19, 3), ("other", 19, 0.9)]
)
def test_job_control_what_its_parent_started_and_a_moment_may_stop_it(by: str, number: int, took_s: float) -> None:
    host = at_work(Host(1).healthy(0, 60), 0, 40)
    done(host, "stopped", 40.1, by, signal=number)
    done(host, "continued", 40.1 + took_s, signal=18)
    assert reported(host) == []


def test_a_debugger_may_hold_it() -> None:
    host = at_work(Host(1).healthy(0, 60), 0, 40)
    done(host, "traced", 40.1, "kernel", signal=19)
    assert reported(host) == []


@pytest.mark.parametrize("parent_at", [39.2, 41.5])
def test_a_tree_that_is_ended_as_a_whole_is_a_job_that_ended(parent_at: float) -> None:
    host = at_work(Host(1).healthy(0, 60), 0, 40)
    for at, pid in sorted([(40.0, WORKER), (parent_at, MASTER)]):
        done(host, "killed", at, pid=pid, signal=9, comm=b"make" if pid == MASTER else b"celery")
    assert reported(host) == []


def test_short_lives_shells_and_who_rests_are_nobodys_workers() -> None:
    host = Host(1).healthy(0, 60)
    at_work(host, 30, 40)
    at_work(host, 0, 40, pid=5000, comm=b"bash")
    done(host, "killed", 40.0, signal=9)
    done(host, "killed", 40.5, pid=5000, comm=b"bash", signal=9)
    done(host, "killed", 41.0, pid=5001, comm=b"sleep", signal=9)
    assert reported(host) == []


def test_what_ends_of_its_program_later_is_no_successor() -> None:
    host = at_work(Host(1).healthy(0, 60), 0, 40)
    done(host, "killed", 40.0, signal=9)
    for n in range(3):
        done(host, "exited", 44.0 + n, pid=6000 + n, exit_code=1, signal=np.iinfo(np.int64).min, sender_pid=-1)
    assert reported(host) == [("process_killed", WORKER)]


def test_a_tree_whose_parent_had_ended_before_is_a_job_that_ended() -> None:
    host = at_work(Host(1).healthy(0, 60), 0, 40)
    done(host, "killed", 39.9, pid=MASTER, signal=9, comm=b"make", sender_pid=77)
    done(host, "killed", 40.0, signal=9, parent_pid=1, sender_pid=77)
    assert reported(host) == []


def test_who_ends_outside_of_the_namespace_is_nobodys_parent() -> None:
    host = at_work(Host(1).healthy(0, 60), 0, 40)
    done(host, "killed", 40.0, signal=9, parent_pid=NULL_I64)
    done(host, "killed", 41.0, pid=NULL_I64, signal=9)
    assert reported(host) == [("process_killed", WORKER)]
