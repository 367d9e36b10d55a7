"""A process that computes all the time is slow by its own work; not where it waited, was kept off the processor, or was
asked for more.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.correlate_scenarios import MS, T0, UNTIL, Host, S, call, peer
from tests.unit.test_correlate_answers import SHOP_PID, answers, found, served

ADDRESS = np.frombuffer(peer("127.0.0.1", 1)[:16], "V16")[0]


def used(
    host: Host, a: int, b: int, share: float, pid: int = SHOP_PID, in_kernel: float = 0.1, comm: bytes = b"shop"
) -> None:
    """What it ran, second by second."""
    t = T0 + (np.arange(a, b) + 1) * S
    host.add(
        "cpu_use",
        t_ns=t,
        pid=pid,
        comm=comm,
        interval_ns=S,
        user_ns=int((1 - in_kernel) * share * S),
        system_ns=int(in_kernel * share * S),
    )


def blocked_loop(ran: float = 0.98, seconds: int = 3, usual: float = 0.12, rate: int = 40) -> Host:
    """After 30 usual seconds nothing is answered from 30.0 on, and then all at once."""
    host = Host()
    answers(host, 0, 30)
    used(host, 0, 30, usual)
    for second in range(30, 30 + seconds):
        served(
            host, second, requests=0, waiting=8, max_ns=(second - 29) * S, max_from_ns=T0 + 30 * S, p50_ns=0, p90_ns=0
        )
    served(
        host,
        30 + seconds,
        requests=rate,
        max_ns=seconds * S,
        max_from_ns=T0 + 30 * S,
        p50_ns=seconds * S // 2,
        p90_ns=seconds * S,
    )
    used(host, 30, 30 + seconds, ran)
    used(host, 30 + seconds, UNTIL, usual)
    answers(host, 31 + seconds, UNTIL, n=1)
    return host


def test_an_event_loop_that_a_computation_blocks() -> None:
    (one,) = found(blocked_loop())
    assert (one["cause"], one["culprit_pid"], one["culprit_comm"]) == ("busy", SHOP_PID, "shop")
    assert "shop pid 1700 was busy: it ran on a CPU for 2.9" in str(one["sentence"])
    assert float(str(one["confidence"])) > 0.85


@pytest.mark.parametrize("netns", [1, 2, None])
def test_the_client_whose_request_waited_longest_is_named(netns: int | None) -> None:
    """As one that asks for all keys. Its process is known if it connected lately; one with that address in another
    namespace is another one.
    """
    host, client = blocked_loop(), peer("127.0.0.1", 51515)
    for table, rows in host.made:
        if table == "service_latency":
            rows["peer"][rows["max_ns"] > S] = np.frombuffer(client, "V18")[0]
    if netns:
        its = {"pid": 77, "comm": b"redis-cli", "netns": netns}
        host.add("tcp_connect", at=29.99, **its, saddr=ADDRESS, sport=51515, result="ok")
    (one,) = found(host)
    who = "redis-cli pid 77 at 127.0.0.1:51515" if netns == 1 else "127.0.0.1:51515"
    assert f"; the request that waited longest came from {who}" in str(one["sentence"])


def test_who_did_not_run_was_not_busy() -> None:
    (one,) = found(blocked_loop(ran=0.05))
    assert one["cause"] == "unknown"


def test_who_always_runs_as_much_was_not_busy_with_that() -> None:
    (one,) = found(blocked_loop(ran=0.98, usual=0.9))
    assert one["cause"] != "busy"


def test_a_single_short_computation() -> None:
    """400 ms of one second, in which it also did what it always does."""
    host = Host()
    answers(host, 0, 30)
    used(host, 0, 30, 0.12)
    served(host, 30, requests=20, max_ns=400 * MS, max_from_ns=T0 + 30 * S + 200 * MS, p50_ns=8 * MS, p90_ns=300 * MS)
    used(host, 30, 31, 0.12 * 0.6 + 0.4)
    answers(host, 31, UNTIL, n=1)
    used(host, 31, UNTIL, 0.12)
    (one,) = found(host)
    assert one["cause"] == "busy"


def test_a_lock_of_the_program_whose_holder_computes() -> None:
    """The thread that serves waits for it at a futex."""
    host = blocked_loop()
    call(
        host,
        pid=SHOP_PID,
        tid=SHOP_PID,
        comm=b"shop",
        t_ns=T0 + 33 * S - 10 * MS,
        duration_ns=2980 * MS,
        syscall=b"futex",
        fd_type=b"",
    )
    (one,) = found(host)
    assert one["cause"] == "busy"


@pytest.mark.parametrize("kind", ["flock", "cpu"])
def test_what_it_waited_for_comes_first(kind: str) -> None:
    """It also ran a little more than usually, as who catches up does."""
    host = blocked_loop(ran=0.3)
    if kind == "flock":
        call(
            host,
            pid=SHOP_PID,
            tid=SHOP_PID,
            comm=b"shop",
            t_ns=T0 + 33 * S - 10 * MS,
            duration_ns=2980 * MS,
            syscall=b"flock",
            fd_type=b"file",
        )
    else:
        t = T0 + np.arange(30, 34) * S
        host.add(
            "cpu_wait",
            4,
            t_ns=t,
            interval_ns=S,
            pid=SHOP_PID,
            comm=b"shop",
            count=300,
            wait_ns=700 * MS,
            max_ns=8 * MS,
            by_pid=77,
            by_comm=b"burn",
        )
    (one,) = found(host)
    assert one["cause"] == ("syscall" if kind == "flock" else "cpu")


def test_who_computes_while_others_run_too_computes() -> None:
    """Half of the time each; usually it runs for an eighth."""
    host = blocked_loop(ran=0.52)
    host.add(
        "cpu_wait",
        3,
        at=np.arange(31, 34),
        interval_ns=S,
        pid=SHOP_PID,
        comm=b"shop",
        count=300,
        wait_ns=470 * MS,
        max_ns=8 * MS,
        by_pid=77,
        by_comm=b"burn",
    )
    (one,) = found(host)
    assert one["cause"] == "busy"
    assert "it waited 1.4" in str(one["sentence"])


def test_more_requests_of_the_usual_price_are_load() -> None:
    host = Host()
    answers(host, 0, 30)
    used(host, 0, 30, 0.25)
    for second in range(30, 45):
        served(
            host, second, requests=160, max_ns=900 * MS, max_from_ns=T0 + second * S, p50_ns=400 * MS, p90_ns=800 * MS
        )
    used(host, 30, 45, 0.99)
    answers(host, 45, UNTIL, n=1)
    used(host, 45, UNTIL, 0.25)
    (one,) = found(host)
    assert one["cause"] == "load"


def test_each_request_takes_more_of_the_processor() -> None:
    host = Host()
    answers(host, 0, 30)
    used(host, 0, 30, 0.2)
    for second in range(30, 45):
        served(
            host, second, requests=35, max_ns=900 * MS, max_from_ns=T0 + second * S, p50_ns=400 * MS, p90_ns=800 * MS
        )
    used(host, 30, 45, 0.99)
    answers(host, 45, UNTIL, n=1)
    used(host, 45, UNTIL, 0.2)
    (one,) = found(host)
    assert (one["cause"], one["culprit_pid"]) == ("busy", SHOP_PID)


def test_a_profile_reports_where_it_ran() -> None:
    host = blocked_loop(seconds=5)
    host.add(
        "on_cpu",
        2,
        at=35,
        interval_ns=3 * S,
        investigation=b"a.0",
        pid=SHOP_PID,
        tid=[SHOP_PID, SHOP_PID + 1],
        comm=b"shop",
        count=[700, 40],
        sum_ns=[2900 * MS, 100 * MS],
        user_stack=[b"sre_ucs1_match;pattern_match", b"epoll"],
    )
    (one,) = found(host)
    assert one["cause"] == "busy"
    assert f"its thread {SHOP_PID} was in sre_ucs1_match." in str(one["sentence"])
    entry = next(e for e in one["evidence"] if e["table"] == "on_cpu")  # type: ignore[attr-defined]
    assert (entry["tid"], entry["where"]) == (SHOP_PID, "sre_ucs1_match < pattern_match")
