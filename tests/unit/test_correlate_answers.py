"""A service without limiter and queue that answers slowly: reported with its cause, once; and not reported where
nothing is wrong.
"""

from __future__ import annotations

import numpy as np
import pytest

from agent.columns import NULL_I64
from tests.unit.correlate_scenarios import MS, START, T0, UNTIL, Host, S, call, code, latest, peer, run

SHOP_PID, PORT, TICK = 1700, 8080, 4 * MS
SHOP = {"pid": SHOP_PID, "tid": SHOP_PID, "comm": b"shop"}


def answers(host: Host, a: int, b: int, rate: int = 40, ms: float = 8, n: int = 0, **columns: object) -> None:
    """Second by second, log-normal; ``n``: another seed."""
    rng = np.random.default_rng(7 + n)
    for second in range(a, b):
        took = np.sort(rng.lognormal(np.log(ms * MS), 0.5, rate).astype(np.int64) // TICK * TICK)
        p50, p90 = (
            int(2.0 ** (int(took[int(q * rate)]).bit_length() - 0.5)) if took[int(q * rate)] else 0 for q in (0.5, 0.9)
        )
        row = {
            "requests": rate,
            "max_ns": took[-1],
            "max_from_ns": T0 + second * S + 300 * MS,
            "p50_ns": p50,
            "p90_ns": p90,
        }
        served(host, second, **row | columns)


def served(host: Host, second: int, **columns: object) -> None:
    row = {
        "pid": SHOP_PID,
        "tid": SHOP_PID,
        "proc_start_ns": START,
        "comm": b"shop",
        "netns": 1,
        "waiting": 0,
        "sport": PORT,
        "interval_ns": S,
        "t_ns": T0 + second * S + 990 * MS,
    }
    host.add("service_latency", 1, **row | columns)


def stalled(seconds: int = 1, requests: int = 1, calls: bool = True, **columns: object) -> Host:
    """After 30 usual seconds requests take 1.4 s, from 30.0 on."""
    host = Host()
    answers(host, 0, 30)
    for n in range(seconds):
        begun = T0 + (30 + n) * S
        served(
            host,
            31 + n,
            requests=requests,
            max_ns=1400 * MS,
            max_from_ns=begun,
            **{"p50_ns": 1400 * MS, "p90_ns": 1400 * MS} if requests > 1 else {"p50_ns": 8 * MS, "p90_ns": 16 * MS},
        )
        if calls:
            own = {
                "pid": SHOP_PID,
                "tid": SHOP_PID,
                "comm": b"shop",
                "t_ns": begun + 1390 * MS,
                "duration_ns": 1380 * MS,
            }
            call(host, **own | {"syscall": b"flock", "fd_type": b"file", "file": b"stock.db"} | columns)
    answers(host, 31 + seconds, UNTIL, n=1)
    return host


def found(host: Host) -> list[dict[str, object]]:
    return [one for one in latest(run(host, UNTIL)) if one["symptom"] == "service_latency"]


def test_a_lock_that_another_process_held() -> None:
    (one,) = found(stalled(holder_pid=123, holder_start_ns=17, holder_comm=b"backup"))
    assert (one["cause"], one["cause_detail"], one["culprit_pid"]) == ("syscall", "flock", 123)
    assert "shop pid 1700 on port 8080 took up to 1.4 s to answer (usually" in str(one["sentence"])
    assert "backup pid 123 held the lock" in str(one["sentence"])
    assert one["start_ns"] == T0 + 30 * S


def test_one_slow_answer_of_unknown_cause_is_not_reported() -> None:
    assert found(stalled(calls=False)) == []


def test_many_slow_answers_are_reported_also_where_no_cause_is_known() -> None:
    (one,) = found(stalled(seconds=3, requests=20, calls=False))
    assert one["cause"] == "unknown"


def test_requests_that_wait_are_reported_before_they_are_answered() -> None:
    """Nothing is answered any more, and nothing else is known."""
    host = Host()
    answers(host, 0, 30)
    for second in range(30, 50):
        served(
            host, second, requests=0, waiting=8, max_ns=(second - 29) * S, max_from_ns=T0 + 30 * S, p50_ns=0, p90_ns=0
        )
    (one,) = [each for each in latest(run(host, 35)) if each["symptom"] == "service_latency"]
    assert (one["state"], one["cause"], one["start_ns"]) == ("open", "unknown", T0 + 30 * S)


def waits(host: Host, a: int, b: int, **columns: object) -> None:
    """Requests that wait since ``a`` and for which nothing is answered."""
    for second in range(a, b):
        row = {"requests": 0, "waiting": 8, "max_ns": (second + 1 - a) * S, "max_from_ns": T0 + a * S}
        served(host, second, p50_ns=0, p90_ns=0, **row | columns)


@pytest.mark.parametrize("locked", [True, False])
def test_who_answered_nothing_since_the_agent_came_is_reported_with_a_known_cause_only(locked: bool) -> None:
    """The thread has waited since before the agent came. Long polls look alike. It is one finding, however long it
    lasts.
    """
    host = Host()
    waits(host, 0, 100)
    for second in range(100 if locked else 0):
        its = {"syscall": b"flock", "fd_type": b"file", "holder_pid": 123, "holder_comm": b"backup"}
        at = {"t_ns": T0 + second * S + 900 * MS, "duration_ns": (second + 9) * S, "basis": "so_far"}
        call(host, pid=SHOP_PID, tid=SHOP_PID, comm=b"shop", **its | at)
    said = [(one["cause"], one["culprit_pid"], one["state"]) for one in latest(run(host, 100))]
    assert said == ([("syscall", 123, "open")] if locked else [])


def queued(host: Host, a: int, b: int, length: int, **columns: object) -> None:
    for second in range(a, b):
        its = {
            "pid": SHOP_PID,
            "proc_start_ns": START,
            "comm": b"shop",
            "netns": 1,
            "sport": PORT,
            "limit": 511,
            "sock_id": 1,
        }
        host.add("socket_queue", 1, t_ns=T0 + second * S + 200 * MS, kind="accept", queue=length, **its | columns)


def test_connections_that_nobody_accepts_are_requests_that_wait() -> None:
    """Also where no cause is known; on the port of one of two listeners."""
    host = Host()
    queued(host, 0, 12, 3)
    queued(host, 0, 12, 0, sock_id=2)
    queued(host, 0, 12, 1, sock_id=3, sport=PORT + 1)  # a single one may be that of a scan
    (one,) = latest(run(host, 12))
    assert (one["symptom"], one["cause"], one["subject"]) == (
        "service_latency",
        "unknown",
        "shop pid 1700 on port 8080",
    )
    assert "accepted no connection for" in str(one["sentence"])


@pytest.mark.parametrize("answers_some", [True, False])
def test_who_accepts_connections_now_and_then_is_busy_only(answers_some: bool) -> None:
    """It answers, or its queue becomes shorter."""
    host = Host()
    for second in range(45):
        queued(host, second, second + 1, (3 if answers_some else 5 - second % 4) if second > 25 else 0)
    if answers_some:
        answers(host, 0, 45)
    assert latest(run(host, 45)) == []


@pytest.mark.parametrize("kind", ["stopped", "frozen"])
@pytest.mark.parametrize(("goes_on", "clients"), [(False, 1), (True, 1), (False, 0)])
def test_a_server_that_was_stopped_before_the_agent_came(goes_on: bool, clients: int, kind: str) -> None:
    """Where nobody waits for it, it may be so on purpose; and a single client may be gone, if the server goes on."""
    host = Host()
    host.add("process_event", at=0.5, **SHOP, proc_start_ns=START, kind=kind, cgroup_id=7)
    if goes_on and kind == "stopped":
        host.add("process_event", at=1.5, **SHOP, proc_start_ns=START, kind="continued", signal=18)
    elif goes_on:
        host.add("process_event", at=1.5, kind="thawed", cgroup_id=7)
    queued(host, 0, 15, clients)
    found = latest(run(host, 15))
    said = [(one["symptom"], one["cause"], one["cause_detail"]) for one in found]
    how = "before" if kind == "stopped" else "frozen"
    assert said == ([] if goes_on or not clients else [("service_latency", "process_stopped", how)])
    if said:
        assert "was stopped for at least" in str(found[0]["sentence"])


@pytest.mark.parametrize("parent", [SHOP_PID, 1])
def test_a_worker_that_was_stopped_accepts_no_connection_of_its_server(parent: int) -> None:
    """A server whose master listens, as nginx's. Another process may be stopped on purpose."""
    host = Host()
    worker = {"pid": SHOP_PID + 1, "comm": b"shop", "proc_start_ns": START}
    host.add("process_event", at=0.5, **worker, tid=SHOP_PID + 1, kind="stopped", signal=NULL_I64)
    host.add("cpu_use", at=np.arange(1, 15), **worker, parent_pid=parent, user_ns=0, system_ns=0)
    queued(host, 0, 15, 3)
    (one,) = latest(run(host, 15))
    cause = ("process_stopped", SHOP_PID + 1) if parent == SHOP_PID else ("unknown", NULL_I64)
    assert (one["symptom"], one["cause"], one["culprit_pid"]) == ("service_latency", *cause)


@pytest.mark.parametrize("waiting", [2, 1])
def test_a_service_that_answers_nobody_is_reported_though_few_that_wait_were_checked(waiting: int) -> None:
    """An event loop that is busy for three seconds, now and then for half a second. One request alone may be of another
    kind, and the others just not have come.
    """
    host = Host()
    for second in range(30):
        answers(host, second, second + 1, rate=13, n=second, **{"max_ns": 400 * MS} if second % 6 == 5 else {})
    for second, longest in ((30, 1400), (31, 1910)):
        served(
            host,
            second,
            requests=0,
            waiting=waiting,
            max_ns=longest * MS,
            max_from_ns=T0 + int(29.6 * S),
            p50_ns=0,
            p90_ns=0,
        )
    if waiting == 2:
        served(
            host, 32, requests=53, max_ns=3000 * MS, max_from_ns=T0 + int(29.6 * S), p50_ns=759 * MS, p90_ns=2990 * MS
        )
    answers(host, 33, UNTIL, rate=13, n=1)
    assert [one["cause"] for one in found(host)] == (["unknown"] if waiting == 2 else [])


def test_the_lock_is_known_once_its_wait_is_over() -> None:
    """Told while it goes on; the calls end with the answers, and those are timed in ticks."""
    host = Host()
    answers(host, 0, 30)
    for second in range(30, 34):
        served(
            host, second, requests=0, waiting=8, max_ns=(second - 29) * S, max_from_ns=T0 + 30 * S, p50_ns=0, p90_ns=0
        )
    served(
        host,
        34,
        requests=8,
        waiting=8,
        max_ns=4800 * MS,
        max_from_ns=T0 + 30 * S + TICK,
        p50_ns=4800 * MS,
        p90_ns=4800 * MS,
    )
    for n in range(8):
        own = {
            "pid": SHOP_PID,
            "tid": SHOP_PID + n,
            "comm": b"shop",
            "t_ns": T0 + 34 * S + 805 * MS,
            "duration_ns": 4800 * MS,
        }
        call(host, **own | {"syscall": b"flock", "fd_type": b"file", "file": b"stock.db"})
        host.add(
            "syscall_latency",
            t_ns=T0 + 34 * S + 990 * MS,
            interval_ns=S,
            pid=SHOP_PID,
            comm=b"shop",
            syscall=b"flock",
            count=1,
            basis="blocked",
            kind="slow",
            sum_ns=4800 * MS,
            max_ns=4800 * MS,
            run_queue_ns=0,
        )
    answers(host, 35, UNTIL, n=1)
    (one,) = latest(run(host, UNTIL))
    assert (one["symptom"], one["cause"], one["cause_detail"]) == ("service_latency", "syscall", "flock")


def test_a_call_of_another_thread_is_no_reason_unless_nothing_is_known_of_its_own() -> None:
    """Who reads a request need not be who works on it: then any thread of the process counts, though less."""
    (sure,) = found(stalled())
    (other,) = found(stalled(tid=SHOP_PID + 1))
    assert sure["cause"] == other["cause"] == "syscall"
    assert float(str(sure["confidence"])) > float(str(other["confidence"]))


def test_a_process_that_was_stopped() -> None:
    host = stalled(calls=False)
    for at, kind in ((30.0, "stopped"), (31.38, "continued")):
        host.add("process_event", at=at, **SHOP, kind=kind, signal=19, sender_pid=77, sender_comm=b"kill")
    (one,) = found(host)
    assert one["cause"] == "process_stopped"


def test_a_process_that_ended_in_order_had_answered() -> None:
    """One of a server's many: its session was over."""
    host = stalled(requests=20, calls=False)
    host.add("process_event", at=31.38, **SHOP, kind="exited", exit_code=0)
    (one,) = found(host)
    assert one["cause"] == "unknown"


@pytest.mark.parametrize(("for_itself_ms", "culprit"), [(0, "burner"), (800, "burner"), (1900, "")])
def test_no_processor(for_itself_ms: int, culprit: str) -> None:
    """A program that made it wait for less than its own threads did is not to blame."""
    host = stalled(calls=False)
    waits = {"t_ns": T0 + 31 * S + 990 * MS, "interval_ns": S, "pid": SHOP_PID, "comm": b"shop", "max_ns": 20 * MS}
    host.add("cpu_wait", **waits, by_pid=55, by_comm=b"burner", count=300, wait_ns=1300 * MS)
    host.add("cpu_wait", **waits, by_pid=SHOP_PID, by_comm=b"shop", count=300, wait_ns=for_itself_ms * MS)
    (one,) = found(host)
    assert (one["cause"], one["culprit_comm"]) == ("cpu", culprit)
    assert (one["cause_detail"] == "preempted") == bool(culprit)


@pytest.mark.parametrize("rate", [40, 120])
def test_a_lasting_rise_is_load_where_more_is_asked_for(rate: int) -> None:
    host = Host()
    answers(host, 0, 30)
    answers(host, 30, 45, rate=rate, ms=160, n=1)
    answers(host, 45, UNTIL, n=2)
    (one,) = found(host)
    assert one["cause"] == ("load" if rate == 120 else "unknown")


def test_what_comes_again_and_again_is_usual() -> None:
    """A report that takes a second, every twelve; nothing is ever said."""
    host = Host()
    for second in range(UNTIL):
        answers(host, second, second + 1, n=second)
        if second % 12 == 5:
            served(
                host,
                second,
                requests=1,
                max_ns=1000 * MS,
                max_from_ns=T0 + (second - 1) * S,
                p50_ns=1000 * MS,
                p90_ns=1000 * MS,
            )
    assert found(host) == []


def test_a_client_that_keeps_quiet_is_no_peer_that_is_waited_for() -> None:
    host = stalled(calls=False)
    client = np.frombuffer(bytes(10) + b"\xff\xff\x0a\0\0\x05" + b"\x39\x30", "V18")
    call(
        host,
        pid=SHOP_PID,
        tid=SHOP_PID,
        comm=b"shop",
        t_ns=T0 + 31 * S + 395 * MS,
        duration_ns=1300 * MS,
        peer=client,
        syscall=b"recvfrom",
        kind=code("slow_syscall", "kind", "waiting"),
        fd_type=b"socket",
    )
    assert found(host) == []


def test_one_cause_is_one_finding() -> None:
    """The service has a limiter, too: its decisions hung in the same call."""
    host = stalled(seconds=2, requests=20)
    host.decisions(0, 30, pid=SHOP_PID, comm=b"shop")
    host.decisions(33, UNTIL, pid=SHOP_PID, comm=b"shop")
    for n in range(2):
        host.stalled_decision(31.395 + n, 1.39, children=False, pid=SHOP_PID)
    (one,) = latest(run(host, UNTIL))
    assert (one["symptom"], one["cause"]) == ("decision_latency", "syscall")
    assert "on port 8080" in str(one["sentence"])


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_reported_of_healthy_services(seed: int) -> None:
    """Ten of them, of all kinds, for ten minutes."""
    rng, host = np.random.default_rng(seed), Host()
    for k in range(10):
        ms, spread, rate = rng.choice([0.2, 3, 40, 300]), rng.uniform(0.2, 1.2), rng.uniform(0.5, 60)
        for second in range(600):
            n = rng.poisson(rate * (1 + 0.5 * np.sin(second / 60)))
            if not n:
                continue
            took = np.sort(rng.lognormal(np.log(ms * MS), spread, n).astype(np.int64) // TICK * TICK)
            served(
                host,
                second,
                pid=SHOP_PID + k,
                sport=PORT + k,
                requests=n,
                max_ns=took[-1],
                max_from_ns=T0 + second * S,
                p50_ns=took[n // 2],
                p90_ns=took[n * 9 // 10],
            )
    assert latest(run(host, 600, every_ms=1000)) == []


@pytest.mark.parametrize("design", [True, False])
def test_who_waits_for_something_to_happen_is_no_fault_when_nothing_happens(design: bool) -> None:
    """Six workers that wait for work all the time, and those who give them work pause twice for six seconds: what is
    answered then took five. Where they never waited before, it is one.
    """
    host = Host()
    for second in range(60):
        idle = second % 30 >= 24
        if not idle:
            answers(
                host,
                second,
                second + 1,
                rate=60,
                ms=20,
                n=second,
                held_ns=5 * S if design else 0,
                max_ns=700 * MS if design else 60 * MS,
            )
        elif second % 30 < 29:
            served(
                host,
                second,
                requests=0,
                waiting=12,
                max_ns=(second % 30 - 23) * S,
                max_from_ns=T0 + second // 30 * 30 * S + 24 * S,
                p50_ns=0,
                p90_ns=0,
            )
        else:
            served(
                host,
                second,
                requests=6,
                waiting=0,
                max_ns=5 * S,
                sum_ns=30 * S,
                held_ns=30 * S,
                max_from_ns=T0 + second // 30 * 30 * S + 24 * S,
                p50_ns=5 * S,
                p90_ns=5 * S,
            )
    assert bool([one for one in latest(run(host, 60)) if one["symptom"] == "service_latency"]) is not design


@pytest.mark.parametrize(("system", "expected"), [(b"rabbitmq", 0), (b"nats", 0), (b"redis", 1)])
def test_messages_that_a_broker_sends_more_seldom_are_no_slow_answers(system: bytes, expected: int) -> None:
    """A consumer acknowledges each message, and gets the next one when it is published."""
    host = Host()
    broker: dict[str, object] = {"system": system, "peer": np.frombuffer(peer("127.0.0.1", PORT), "V18")}
    host.queue(0, 60, **broker)
    for a, b, n, ms in ((0, 30, 100, 10), (30, 60, 20, 50)):
        for second in range(a, b):
            served(host, second, requests=n, sum_ns=S, max_ns=(ms + 2) * MS, p50_ns=ms * MS, p90_ns=ms * MS)
    assert len([one for one in latest(run(host, 60)) if one["symptom"] == "service_latency"]) == expected


def test_a_stall_of_who_has_others_wait_by_design_is_reported() -> None:
    host = Host()
    for second in range(40):
        answers(host, second, second + 1, rate=60, ms=20, n=second, held_ns=5 * S, max_ns=700 * MS)
    for second in range(40, 45):
        served(
            host, second, requests=0, waiting=40, max_ns=(second - 39) * S, max_from_ns=T0 + 40 * S, p50_ns=0, p90_ns=0
        )
    (one,) = [one for one in latest(run(host, 46)) if one["symptom"] == "service_latency"]
    assert one["cause"] == "unknown"


def test_few_clients_that_wait_for_each_answer_are_slow_too() -> None:
    """Three that ask 24 times a second over one connection of HTTP/2, whose answers take a second each for six
    seconds.
    """
    host = Host()
    answers(host, 0, 30, rate=24)
    for second, (n, worst, p90) in enumerate(
        ((4, 996, 759), (2, 732, 732), (1, 0, 0), (1, 612, 47), (2, 948, 759), (1, 948, 47)), 30
    ):
        served(
            host,
            second,
            requests=n,
            waiting=1,
            max_ns=worst * MS,
            max_from_ns=T0 + second * S - 20 * MS,
            p50_ns=0,
            p90_ns=p90 * MS,
        )
    answers(host, 36, UNTIL, rate=24, n=1)
    (one,) = found(host)
    assert (one["cause"], one["subject"]) == ("unknown", f"shop pid {SHOP_PID} on port {PORT}")


def test_intervals_of_two_seconds_as_on_a_crowded_host_leave_no_gaps() -> None:
    host = Host()
    answers(host, 0, 30, rate=8)
    for n in range(5):
        at_ns = T0 + 32 * S + n * 19 * S // 10
        served(
            host,
            0,
            t_ns=at_ns,
            interval_ns=19 * S // 10,
            requests=2,
            p50_ns=140 * MS,
            p90_ns=180 * MS,
            max_ns=190 * MS,
            max_from_ns=at_ns - 300 * MS,
        )
    answers(host, 41, UNTIL, rate=8, n=1)
    (one,) = found(host)
    assert "took for half of the requests 140 ms to answer" in str(one["sentence"])
