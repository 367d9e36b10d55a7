"""A service that is slow since the thread that had read the request slept, as an on-demand profile saw it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from agent.columns import NULL_I64
from agent.correlate.episode import Episode, Verdict
from agent.correlate.finding import Finding
from agent.correlate.rank import best_first
from tests.unit.correlate_scenarios import MS, START, T0, UNTIL, Host, S, call, code, latest, run
from tests.unit.test_correlate_answers import SHOP_PID, answers, served

BEGUN, PROFILE_NS, OTHER = T0 + 32 * S, 3 * S, SHOP_PID + 7

INTERRUPT = {"waker_pid": NULL_I64, "waker_tid": NULL_I64, "waker_comm": b"interrupt"}


def slow(check: Mapping[str, object] | None = None, **seen: object) -> Host:
    """Nothing is answered from 30.0 on for 4 s; a look begins at 32.0. seen: of the row of its thread."""
    host = Host()
    answers(host, 0, 30)
    for second in (30, 31, 32, 33):
        served(
            host, second, requests=0, waiting=8, max_ns=(second - 29) * S, max_from_ns=T0 + 30 * S, p50_ns=0, p90_ns=0
        )
    served(host, 34, requests=60, max_ns=4 * S, max_from_ns=T0 + 30 * S, p50_ns=3 * S, p90_ns=4 * S)
    sleeps(host, **seen)
    answers(host, 35, UNTIL, n=1)
    return host


def sleeps(host: Host, **seen: object) -> None:
    row = {
        "tid": SHOP_PID,
        "syscall": b"futex",
        "sum_ns": 1990 * MS,
        "waker_pid": SHOP_PID,
        "waker_tid": OTHER,
        "waker_comm": b"shop",
    }
    row |= {
        "pid": SHOP_PID,
        "proc_start_ns": START,
        "comm": b"shop",
        "t_ns": BEGUN + PROFILE_NS,
        "interval_ns": PROFILE_NS,
        "count": 1,
    } | seen
    host.add(
        "off_cpu",
        1,
        **{"max_ns": row["sum_ns"]}
        | row
        | {
            "state": code("off_cpu", "state", "sleeping"),
            "kind": code("off_cpu", "kind", "waiting"),
        },
    )


def only(host: Host) -> dict[str, object]:
    (one,) = [one for one in latest(run(host, UNTIL)) if one["symptom"] == "service_latency"]
    return one


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (
            {},
            (
                "its thread 1700, which had read the request, slept in futex for the last 1.99 s or more, waiting for a"
                f" lock or another thread of its program; its thread {OTHER} woke it"
            ),
        ),
        ({"sum_ns": 1999 * MS}, "slept in futex for the last 2 s or more"),
        ({"sum_ns": 60 * MS, "interval_ns": 1060 * MS}, "slept in futex for the last 60 ms or more"),
        (
            {"syscall": b"clock_nanosleep", "waker_pid": 999, "waker_comm": b"cc1"},
            "slept in clock_nanosleep for the last 1.99 s or more, as its program requested",
        ),
        (
            {"syscall": b"nanosleep", "sum_ns": 60 * MS, "interval_ns": 1060 * MS, **INTERRUPT},
            "slept in nanosleep for the last 60 ms or more, as its program requested",
        ),
        (
            {"syscall": b"wait4", "waker_pid": 999, "waker_comm": b"sleep"},
            "slept in wait4 for the last 1.99 s or more, waiting for a child process",
        ),
        (
            {"syscall": b"epoll_wait", "waker_pid": OTHER},
            (
                "slept in epoll_wait for the last 1.99 s or more, waiting for another process of its program; shop pid"
                f" {OTHER} woke it"
            ),
        ),
    ],
)
def test_where_the_thread_slept(seen: dict[str, object], words: str) -> None:
    one = only(slow(**seen))
    call_ = (seen.get("syscall", b"futex")).decode()  # type: ignore[attr-defined]
    assert (one["cause"], one["cause_detail"], one["confidence"]) == ("asleep", call_, 0.45)
    assert words in str(one["sentence"])
    assert one["culprit_pid"] == (OTHER if "epoll" in call_ else SHOP_PID)


@pytest.mark.parametrize(
    ("seen", "cause"),
    [
        ({}, "asleep"),
        ({"count": 30}, "unknown"),  # of 120 answers
        ({"max_ns": 2 * S}, "unknown"),
        ({"syscall": b"futex"}, "unknown"),
    ],
)
def test_a_sleep_before_each_answer(seen: dict[str, object], cause: str) -> None:
    """Each answer takes 0.94 s: no thread is known to have a request when the profile begins."""
    host = Host()
    answers(host, 0, 30)
    answers(host, 30, 38, n=1, max_ns=940 * MS, p50_ns=759 * MS, p90_ns=759 * MS)
    sleeps(host, **{"tid": NULL_I64, "syscall": b"clock_nanosleep", "count": 100, "max_ns": 930 * MS} | seen)
    answers(host, 38, UNTIL, n=1)
    one = only(host)
    assert one["cause"] == cause
    assert ("slept in clock_nanosleep 100 times for up to 930 ms each" in str(one["sentence"])) == (cause == "asleep")


@pytest.mark.parametrize(("ms", "cause"), [(74.4, "asleep"), (120, "asleep"), (40, "unknown"), (150, "unknown")])
def test_a_median_is_known_to_a_power_of_two(ms: float, cause: str) -> None:
    host = Host()
    answers(host, 0, 30)
    answers(host, 30, 38, n=14, max_ns=180 * MS, p50_ns=95 * MS, p90_ns=95 * MS)
    sleeps(host, tid=NULL_I64, syscall=b"clock_nanosleep", count=100, max_ns=int(ms * MS))
    answers(host, 38, UNTIL, n=14)
    assert only(host)["cause"] == cause


def test_answers_that_waited_for_its_recovery_had_no_sleep() -> None:
    """Clients that each wait for their answer ask little meanwhile, and much when it is over."""
    host = Host()
    answers(host, 0, 30)
    for second in range(30, 38):
        slept = {"max_ns": 940 * MS, "max_from_ns": T0 + (second - 1) * S, "p50_ns": 759 * MS, "p90_ns": 759 * MS}
        served(host, second, requests=2 if second < 37 else 90, waiting=2, **slept)
    sleeps(host, tid=NULL_I64, syscall=b"clock_nanosleep", count=6, max_ns=930 * MS)
    answers(host, 38, UNTIL, n=1)
    assert only(host)["cause"] == "asleep"


@pytest.mark.parametrize(
    "seen",
    [
        {"tid": OTHER},  # another thread
        {"sum_ns": 900 * MS},  # and then it did something else
        {"sum_ns": 90 * MS},
        {"syscall": b"epoll_wait"},  # an event loop
        {"syscall": b"epoll_wait", "waker_pid": 999, "waker_comm": b"curl"},
        {"syscall": b"epoll_wait", **INTERRUPT},
        {"t_ns": T0 + 20 * S},
    ],
)
def test_what_reports_nothing(seen: dict[str, object]) -> None:
    assert only(slow(**seen))["cause"] == "unknown"


@pytest.mark.parametrize(("call", "cause"), [(b"futex", "unknown"), (b"clock_nanosleep", "asleep")])
def test_one_that_has_answered_owes_nothing(call: bytes, cause: str) -> None:
    """It sleeps until there is more to do, while others are slow; but nobody waits for that by sleeping for a time, so
    it is what it does with each request.
    """
    host = Host()
    answers(host, 0, 30)
    for second in range(30, 38):
        served(
            host,
            second,
            tid=SHOP_PID + second - 30,
            requests=20,
            waiting=8,
            max_ns=1400 * MS,
            max_from_ns=T0 + (second - 1) * S + 500 * MS,
            p50_ns=1400 * MS,
            p90_ns=1400 * MS,
        )
    sleeps(host, sum_ns=PROFILE_NS, waker_pid=NULL_I64, waker_tid=NULL_I64, waker_comm=b"", syscall=call)
    answers(host, 38, UNTIL, n=1)
    assert only(host)["cause"] == cause


def test_a_cause_goes_before_however_unsure_it_is() -> None:
    sure = Verdict("memory", 0.35, "1/2", "pages had to be read")
    asleep = Verdict("asleep", 0.45, "1/2", "it slept", (), "futex")
    assert sorted([asleep, Verdict("cpu", 0.0, "", ""), sure], key=best_first)[:2] == [sure, asleep]
    assert reported(asleep, sure).cause.cause == "memory"


def test_what_else_the_process_has_without_a_cause_is_no_second_finding() -> None:
    found = reported(Verdict("asleep", 0.45, "1/2", "it slept", (), "futex"))
    late = Episode("decision_latency", (1, 2), 0, "shop", "1/2", 0, S, "high_ns", "ns", 0.0, 1.0, 0.5, 0)
    assert found.accepts(Verdict("unknown", 0.0, "", ""), late, 0)
    late.scope = "3/4"
    assert not found.accepts(Verdict("unknown", 0.0, "", ""), late, 0)


def reported(*verdicts: Verdict) -> Finding:
    found = Finding(0, S, 0)
    found.add_verdicts(
        Episode("service_latency", (1, 2), 0, "shop", "1/2", 0, S, "med_ns", "ns", 0.0, 1.0, 0.5, 0), [*verdicts]
    )
    return found


def test_anything_else_that_explains_it_goes_before() -> None:
    host = slow()
    call(
        host,
        pid=SHOP_PID,
        tid=SHOP_PID,
        comm=b"shop",
        t_ns=T0 + 34 * S,
        duration_ns=3900 * MS,
        syscall=b"flock",
        fd_type=b"file",
        file=b"stock.db",
        holder_pid=123,
        holder_start_ns=17,
        holder_comm=b"backup",
    )
    one = only(host)
    assert (one["cause"], one["culprit_pid"]) == ("syscall", 123)
