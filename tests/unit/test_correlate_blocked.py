"""A process that nobody watches for anything else is held up: reported with what held it up, and not reported where it
only does more.
"""

from __future__ import annotations

import numpy as np
import pytest

from agent.batch import Batch
from agent.correlate.correlator import Correlator
from tests.unit.correlate_scenarios import MS, START, T0, UNTIL, Host, S, call, latest, run

PID = 2100
OWN = {"pid": PID, "tid": PID, "proc_start_ns": START, "comm": b"archiver"}


def held(host: Host, second: int, calls: int, each_ms: float) -> None:
    host.add(
        "syscall_latency",
        t_ns=T0 + second * S + 990 * MS,
        interval_ns=S,
        syscall=b"fsync",
        count=calls,
        sum_ns=int(calls * each_ms * MS),
        max_ns=int(each_ms * MS),
        run_queue_ns=0,
        basis="blocked",
        kind="slow",
        **OWN,
    )


def host(
    calls: int, each_ms: float, reported: bool = True, seconds: int = 6, usual: int = 5, **columns: object
) -> Host:
    out = Host()
    for second in range(UNTIL):
        bad = 30 <= second < 30 + seconds
        held(out, second, calls if bad else usual, each_ms if bad else 4)
        for n in range(min(calls, 20) if bad and reported else 0):
            end = T0 + second * S + (n + 1) * S // min(calls, 20) - MS
            call(
                out,
                **OWN
                | {
                    "t_ns": end,
                    "duration_ns": int(each_ms * MS),
                    "syscall": b"fsync",
                    "fd_type": b"file",
                    "device": b"sdb",
                    **columns,
                },
            )
    return out


def found(of: Host) -> list[dict[str, object]]:
    return [one for one in latest(run(of, UNTIL)) if one["symptom"] == "blocked_time"]


@pytest.mark.parametrize("usual", [5, 0])
def test_calls_that_take_longer(usual: int) -> None:
    (one,) = found(host(4, 220, usual=usual))
    assert (one["cause"], one["cause_detail"], one["culprit_object"]) == ("syscall", "fsync", "/dev/sdb")
    assert "archiver pid 2100 was blocked in system calls for up to 880 ms" in str(one["sentence"])


def test_one_long_wait_for_a_lock() -> None:
    (one,) = found(host(1, 2900, seconds=1, syscall=b"flock", holder_pid=9, holder_start_ns=5, holder_comm=b"rsync"))
    assert (one["cause"], one["culprit_comm"]) == ("syscall", "rsync")


def test_short_lived_processes_leave_room_for_the_others() -> None:
    """As of a build: 60 a second begin, each for a second, before and after the one that is held up begins."""
    of, seen = host(4, 220), list[Correlator]()
    of.made = [Batch(b.table, b.rows[b.rows["t_ns"] >= T0 + 12 * S]) for b in of.made]
    for second in range(30):
        of.add(
            "syscall_latency",
            60,
            at=second,
            pid=50_000 + second * 60 + np.arange(60),
            proc_start_ns=T0 + (second - 1) * S,
            comm=b"cc1",
            interval_ns=S,
            count=3,
            sum_ns=MS,
            max_ns=MS,
            basis="blocked",
            kind="slow",
        )
    (one,) = [f for f in latest(run(of, UNTIL, each=seen.append)) if f["symptom"] == "blocked_time"]
    assert one["culprit_object"] == "/dev/sdb" and seen[-1].losses()["subjects"] == 0


def test_more_of_the_same_is_no_symptom() -> None:
    assert found(host(200, 4.5, reported=False)) == []


def test_without_a_cause_nothing_is_reported() -> None:
    assert found(host(4, 220, reported=False)) == []


def test_one_cause_is_one_finding() -> None:
    """Its limiter's decisions hung in the same call."""
    of = host(1, 2900, seconds=1, syscall=b"flock")
    of.decisions(0, 28, pid=PID, comm=b"archiver")
    of.decisions(31, UNTIL, pid=PID, comm=b"archiver")
    of.stalled_decision(30.999, 2.95, children=False, pid=PID)
    (one,) = latest(run(of, UNTIL))
    assert (one["symptom"], one["cause"]) == ("decision_latency", "syscall")


def test_processes_that_write_as_they_please() -> None:
    """Bursts of all sizes, each call as long as ever: ten minutes of ten of them."""
    rng, of = np.random.default_rng(3), Host()
    for second in range(600):
        for k in range(10):
            calls = int(rng.pareto(1.1) * 5) if rng.random() < 0.5 else 0
            times = rng.lognormal(np.log(6 * MS), 0.8, min(calls, 400))
            of.add(
                "syscall_latency",
                at=second,
                interval_ns=S,
                syscall=b"write",
                count=len(times),
                sum_ns=int(times.sum()),
                basis="blocked",
                kind="slow",
                **OWN | {"pid": PID + k},
            )
    assert latest(run(of, 600, every_ms=1000)) == []


def test_an_end_does_not_explain_what_was_before_it() -> None:
    of = host(4, 220)
    of.add("process_event", at=36, **OWN, kind="exited", exit_code=0, signal=15, sender_pid=77)
    (one,) = found(of)
    assert one["cause"] == "syscall"


def test_what_an_agent_takes_off_is_no_trouble() -> None:
    of = host(4, 220, syscall=b"close", fd_type=b"", device=b"")
    for batch in of.made:
        batch.rows["comm"] = b"tickscope"
    assert found(of) == []


def test_calls_of_several_kinds_on_one_disk_count_together() -> None:
    """Neither for long enough to be the reason on its own."""
    of = host(1, 240, syscall=b"pwrite64")
    for second in range(30, 36):
        held(of, second, 1, 240)
        call(
            of,
            **OWN
            | {
                "t_ns": T0 + second * S + 400 * MS,
                "duration_ns": 230 * MS,
                "syscall": b"fdatasync",
                "fd_type": b"file",
                "device": b"sdb",
            },
        )
    (one,) = found(of)
    assert (one["cause"], one["cause_detail"]) == ("syscall", "pwrite64")
    assert "and 6 other calls on that disk, too" in str(one["sentence"])
