"""Requests that are given up after the same time each, along a chain of calls: one finding, which names the server at
its end.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.correlate_scenarios import MS, START, T0, Host, S, latest, peer, run
from tests.unit.test_correlate_processes import event

NETNS, UNTIL = 1, 70
FRONT_PID, MIDDLE_PID, BACK_PID = 2000, 2001, 2002
MIDDLE, BACK = peer("10.0.0.2", 8082), peer("10.0.0.3", 8083)


def requests(host: Host, at: np.ndarray, pid: int, to: bytes, waited_s: object = None, comm: bytes = b"front") -> None:
    """Each by a connection of its own. waited_s: given up after so long, else answered within 5 ms."""
    began = T0 + (np.sort(at) * S).astype(np.int64)
    took = np.full(len(at), 5 * MS) if waited_s is None else (np.broadcast_to(waited_s, len(at)) * S).astype(np.int64)
    who = {
        "pid": pid,
        "tid": pid,
        "proc_start_ns": START,
        "comm": comm,
        "netns": NETNS,
        "peer": np.frombuffer(to, "V18"),
    }
    host.add("tcp_connect", len(at), t_ns=began + 200_000, duration_ns=200_000, result="ok", errno=0, **who)
    more = {"waited_ns": took // (4 * MS) * 4 * MS, "bytes_in": 0} if waited_s is not None else {"bytes_in": 99}
    host.add(
        "tcp_close",
        len(at),
        t_ns=began + took,
        duration_ns=took,
        role="client",
        srtt_us=150,
        bytes_out=80,
        **who,
        **more,
    )


def serves(host: Host, pid: int, at: bytes, comm: bytes) -> None:
    host.add(
        "tcp_rtt",
        at=np.arange(UNTIL),
        pid=pid,
        comm=comm,
        netns=NETNS,
        role="server",
        saddr=at[:16],
        sport=int.from_bytes(at[16:], "little"),
        peer=peer("10.0.0.9", 40000),
        rtt=(5, 90, 100, 110),
    )


QUIET = np.concatenate([np.arange(0, 30, 0.2), np.arange(36, UNTIL, 0.2)])
BAD = np.arange(30, 36, 0.2)


def chain(front_s: object = 1.0, middle_s: object = 1.0) -> Host:
    """The one in front asks the middle one, and that the one behind, which does not answer for six seconds."""
    host = Host()
    rng = np.random.default_rng(5)
    for pid, comm, to, waited in (
        (FRONT_PID, b"front", MIDDLE, front_s),
        (MIDDLE_PID, b"middle", BACK, middle_s),
    ):
        requests(host, QUIET, pid, to, None, comm)
        requests(host, BAD, pid, to, np.asarray(waited) + rng.uniform(0, 0.004, len(BAD)), comm)
    serves(host, MIDDLE_PID, MIDDLE, b"middle")
    serves(host, BACK_PID, BACK, b"back")
    return host


def test_a_chain_is_one_finding_about_the_server_at_its_end() -> None:
    (found,) = latest(run(chain(), UNTIL))
    assert (found["symptom"], found["cause"]) == ("deadline_exceeded", "broker_slow")
    assert (found["culprit_pid"], found["culprit_comm"], found["culprit_object"]) == (BACK_PID, "back", "10.0.0.3:8083")
    output = str(found["sentence"])
    assert "each after 1 s" in output
    assert "front pid 2000" in output
    assert "middle pid 2001" in output
    assert found["start_ns"] == pytest.approx(T0 + 30 * S, abs=20 * MS)  # when the first of them was asked


def test_a_deadline_that_is_passed_on_grows_shorter_along_the_chain() -> None:
    (found,) = latest(run(chain(front_s=1.0, middle_s=0.8), UNTIL))
    assert (found["cause"], found["culprit_pid"]) == ("broker_slow", BACK_PID)


def test_the_server_at_the_end_was_stopped() -> None:
    host = chain()
    event(host, "stopped", 29.9, pid=BACK_PID, comm=b"back", signal=19)
    event(host, "continued", 35.9, pid=BACK_PID, comm=b"back", signal=18)
    (found,) = latest(run(host, UNTIL))
    assert (found["cause"], found["culprit_pid"], found["cause_detail"]) == ("process_stopped", BACK_PID, "SIGSTOP")
    assert {e["what"] for e in found["evidence"]} >= {"deadline_exceeded", "process_stopped"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(("own", "cause"), [(False, "network_loss"), (True, "unknown")])
def test_connects_without_an_answer_are_lost_on_the_way_unless_there_is_none(own: bool, cause: str) -> None:
    host = Host()
    requests(host, QUIET, FRONT_PID, BACK)
    serves(host, BACK_PID, BACK, b"back")
    who = {"pid": FRONT_PID, "proc_start_ns": START, "comm": b"front", "netns": NETNS}
    host.add(
        "tcp_rtt",
        at=np.arange(UNTIL),
        role="client",
        saddr=(BACK if own else MIDDLE)[:16],
        peer=BACK,
        samples=5,
        rtt_sum_us=500,
        rtt_min_us=90,
        rtt_max_us=110,
        **who,
    )
    host.add("tcp_connect", len(BAD), at=BAD + 1, duration_ns=S, result="aborted", peer=BACK, tid=FRONT_PID, **who)
    (found,) = latest(run(host, UNTIL))
    assert (found["symptom"], found["cause"]) == ("deadline_exceeded", cause)


def test_segments_to_it_were_lost() -> None:
    host = chain()
    host.add(
        "tcp_retransmit",
        30,
        t_ns=T0 + 30 * S + np.arange(30) * 200 * MS + 50 * MS,
        sport=41000 + np.arange(30),
        pid=MIDDLE_PID,
        comm=b"middle",
        netns=NETNS,
        peer=BACK,
        kind=0,
        count=2,
    )
    (found,) = latest(run(host, UNTIL))
    assert (found["cause"], found["culprit_object"]) == ("network_loss", "10.0.0.3:8083")


@pytest.mark.parametrize(("rtt_ms", "cause"), [(700, "network_rtt"), (90, "broker_slow")])
def test_round_trips_to_it_took_that_long(rtt_ms: int, cause: str) -> None:
    """By another connection to it, which is kept."""
    host = chain()
    for a, b, ms in ((0, 30, 0.4), (30, 36, rtt_ms), (36, UNTIL, 0.4)):
        host.rtt(a, b, us=ms * 1e3, to=BACK, pid=MIDDLE_PID)
        host.made[-1].rows["netns"] = NETNS
    found = [f["cause"] for f in latest(run(host, UNTIL)) if f["symptom"] == "deadline_exceeded"]
    assert found == [cause]


@pytest.mark.parametrize("seed", range(5))
def test_requests_that_are_given_up_by_chance_are_none(seed: int) -> None:
    """By users, after between a tenth of a second and ten."""
    host, rng = Host(seed), np.random.default_rng(seed)
    requests(host, QUIET, FRONT_PID, MIDDLE)
    at = np.sort(rng.uniform(30, 45, 8))
    requests(host, at, FRONT_PID, MIDDLE, np.exp(rng.uniform(np.log(0.1), np.log(10), 8)))
    assert latest(run(host, UNTIL)) == []


def test_programs_that_run_for_one_request_each_are_reported() -> None:
    """As a shell script that has curl ask."""
    host = Host()
    for n, at in enumerate(np.arange(0, UNTIL, 0.5)):
        late = 30 <= at < 35
        requests(host, np.array([at]), 5000 + n, MIDDLE, 1.0 if late else None, b"curl")
        for batch in host.made[-2:]:
            batch.rows["proc_start_ns"] = T0 + int(at * S) - 20 * MS
    (found,) = latest(run(host, UNTIL))
    assert (found["symptom"], found["cause"], found["culprit_object"]) == (
        "deadline_exceeded",
        "broker_slow",
        "10.0.0.2:8082",
    )


def test_a_check_that_always_runs_out_is_usual() -> None:
    host = Host()
    requests(host, np.arange(0, UNTIL, 2.0), FRONT_PID, MIDDLE, 1.0)
    assert latest(run(host, UNTIL)) == []


def test_a_few_times_in_as_many_minutes_are_no_recurrence() -> None:
    host = Host()
    requests(host, np.arange(0, 320, 0.25), FRONT_PID, MIDDLE)
    for minute in range(1, 6):
        requests(host, minute * 60 + np.arange(6) * 0.2, FRONT_PID, MIDDLE, 1.0)
    assert len(latest(run(host, 330, every_ms=500))) == 5


@pytest.mark.parametrize(("wait_ms", "cause"), [(180, "broker_slow"), (950, "cpu")])
def test_who_waited_for_a_processor_most_of_the_time_is_the_reason_and_who_did_now_and_then_is_none(
    wait_ms: int, cause: str
) -> None:
    host = chain()
    for second in range(30, 37):
        host.add(
            "cpu_wait",
            t_ns=T0 + second * S + 990 * MS,
            interval_ns=S,
            pid=BACK_PID,
            comm=b"back",
            by_pid=55,
            by_comm=b"burner",
            count=20,
            wait_ns=wait_ms * MS,
            max_ns=90 * MS,
        )
    found = [f["cause"] for f in latest(run(host, UNTIL)) if f["symptom"] == "deadline_exceeded"]
    assert found == [cause]


def test_what_the_server_at_the_end_waited_for_is_the_reason() -> None:
    """It waits for a lock that another process holds, which nobody calls."""
    host, holder = chain(), {"waker_pid": 2003, "waker_tid": 2003, "waker_comm": b"backup"}
    its = {"kind": "waiting", "syscall": b"epoll_wait", "fd_type": b"", "duration_ns": 5900 * MS, "run_queue_ns": 0}
    host.add("slow_syscall", at=35.95, pid=BACK_PID, tid=BACK_PID, comm=b"back", **its, **holder)
    (found,) = latest(run(host, UNTIL))
    assert (found["cause"], found["culprit_pid"]) == ("process_wait", 2003)
    assert str(found["via"]).endswith("back pid 2002")
