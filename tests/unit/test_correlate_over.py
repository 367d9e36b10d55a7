"""Ends of processes that were over when something else began: they are not blamed for it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.correlate_scenarios import APP_PID, MS, PEER, REDIS_PID, START, T0, Host, S, latest, run
from tests.unit.test_correlate_processes import event
from tests.unit.test_correlate_queues import CONSUMERS, talk, well

LIMITER_PID, NEXT_PID = 777, 901
PYTHON3 = {"pid": APP_PID, "tid": APP_PID, "comm": b"python3"}


def connects(host: Host, at: np.ndarray, ms: float) -> None:
    host.add("tcp_connect", at=at, **PYTHON3, peer=PEER, result="ok", duration_ns=int(ms * MS))


def burst(out: float) -> Host:
    """Redis has another client, a limiter, which is killed again and again at 21 s; at 30 s far more messages arrive,
    of which that many are taken.
    """
    host = well(0, 30)
    for n in range(5):
        event(
            host,
            "killed",
            21 + n / 4,
            pid=LIMITER_PID + n,
            comm=b"lab-api",
            signal=9,
            proc_start_ns=T0 + int((20.8 + n / 4) * S),
        )
    for a, b, pid, start in ((0, 21, LIMITER_PID, START), (23, 60, LIMITER_PID + 5, T0 + int(22.1 * S))):
        t = T0 + (np.arange(a, b) * S).astype(np.int64)
        host.add(
            "tcp_rtt",
            t_ns=t,
            pid=pid,
            proc_start_ns=start,
            comm=b"lab-api",
            role="client",
            peer=PEER,
            rtt=(30, 40, 45, 50),
            interval_ns=S,
        )
    late = np.arange(8) * 0.4 + 0.4
    host.queue(
        30,
        38,
        lag=(late * 400).astype(int),
        age=late,
        incoming=1000,
        out=out,
        oldest_pending_s=0.1,
        pending=12,
        consumers=3,
    )
    talk(host, 30, 38, *CONSUMERS)
    return well(38, 60, host)


@pytest.mark.parametrize(("out", "cause"), [(600, "load"), (10, "consumer_slow")])
def test_a_client_that_was_started_again_before_is_not_blamed_for_what_nobody_took(out: float, cause: str) -> None:
    (found,) = (f for f in latest(run(burst(out), 60)) if f["symptom"] == "queue_lag")
    assert found["cause"] == cause


def stalled(end: float, **event_columns: object) -> Host:
    """The network is slow from 30 to 31.4 s, and somebody waits for Redis, which ends at that second and has a
    successor.
    """
    host = Host(1).healthy(0, 30)
    event(host, "killed", end, signal=15)
    host.add(
        "tcp_rtt",
        30,
        at=np.arange(30, 60),
        pid=NEXT_PID,
        comm=b"redis-server",
        role="server",
        sport=6399,
        peer=PEER,
        rtt=(10, 40, 45, 50),
        **{"proc_start_ns": T0 + int((end + 0.01) * S)} | event_columns,
    )
    host.stalled_decision(31.4, 1.4)
    host.rtt(30, 31.4, us=1_300_000, every=0.5)
    for part in (host.decisions, host.rtt, host.accept, host.web):
        part(31.4, 60)
    host.queue(30, 60)
    return host


def cause(host: Host) -> object:
    (found,) = (f for f in latest(run(host, 60)) if f["symptom"] == "decision_latency")
    return found["cause"]


def test_who_was_connected_to_the_next_one_is_slow_for_another_reason() -> None:
    assert cause(stalled(29.2)) == "process_restarted"
    host = stalled(29.2)
    connects(host, np.array([29.3, 29.5, 29.7]), 1)
    assert cause(host) == "network_rtt"


@pytest.mark.parametrize(("connected", "reported"), [(30.2, "network_rtt"), (31.1, "process_restarted")])
def test_who_was_connected_to_the_next_one_early_was_slow_for_another_reason(connected: float, reported: str) -> None:
    """The server ended at 30.02 s, and the decision was slow from 30 to 31.4 s."""
    host = stalled(30.02)
    connects(host, connected + np.array([0.0, 0.05, 0.1]), 1)
    assert cause(host) == reported


def test_who_ended_in_order_when_the_next_one_was_there_already_held_nobody_up() -> None:
    """As a server that reads its settings again: what it had begun it does to the end."""
    assert cause(stalled(29.2, proc_start_ns=T0 + 25 * S)) == "network_rtt"


@pytest.mark.parametrize(("end", "reported"), [(30.1, "process_restarted"), (31.3, "network_rtt")])
def test_an_end_explains_what_comes_after_it(end: float, reported: str) -> None:
    assert cause(stalled(end)) == reported


@pytest.mark.parametrize(("before", "reported"), [(24.0, "process_restarted"), (8.0, "network_rtt")])
def test_a_restart_loop_is_of_short_lives(before: float, reported: str) -> None:
    """The server ended at 31.3 s, near the end of the episode. An end of the process before it counts as the loop's
    first only if the next one did not run for long.
    """
    host = stalled(31.3, proc_start_ns=T0 + int(31.31 * S))
    event(host, "killed", before, pid=NEXT_PID + 1, signal=15)
    event(host, "killed", 31.3, pid=REDIS_PID, signal=15, proc_start_ns=T0 + int((before + 0.01) * S))
    assert cause(host) == reported


def test_connects_that_take_long_are_not_refused_by_one_that_ended() -> None:
    host = Host(1).healthy(0, 60)
    connects(host, np.arange(0.1, 30, 0.1), 1)
    event(host, "killed", 30.0, pid=REDIS_PID, signal=9)
    connects(host, np.arange(31.0, 34, 0.1), 450)
    connects(host, np.arange(34.1, 60, 0.1), 1)
    slow = [f for f in latest(run(host, 60)) if f["symptom"] == "connect_latency"]
    assert slow and not {"process_killed", "process_restarted"} & {str(f["cause"]) for f in slow}


def test_a_message_that_is_held_for_long_hides_no_other_trouble_of_its_queue() -> None:
    host = well(0, 30)
    held = np.arange(60) + 0.4
    host.queue(30, 90, lag=0, age=np.nan, incoming=40, oldest_pending_s=held, pending=4, consumers=3)
    talk(host, 30, 90, b"worker-1", b"worker-3")
    late = np.arange(8) * 0.4 + 0.4
    more = {"incoming": 1000, "out": 600, "pending": 12, "consumers": 3}
    host.queue(90, 98, lag=(late * 400).astype(int), age=late, oldest_pending_s=60.4 + np.arange(8), **more)
    talk(host, 90, 98, *CONSUMERS)
    host.queue(98, 110, lag=0, age=np.nan, incoming=40, oldest_pending_s=68.4 + np.arange(12), pending=4, consumers=3)
    talk(host, 98, 110, *CONSUMERS)
    held_up, flooded = sorted(latest(run(host, 110)), key=lambda f: str(f["start_ns"]))
    assert (held_up["cause"], flooded["cause"]) == ("consumer_stopped", "load")
    assert held_up["end_ns"] > flooded["end_ns"]


def test_consumers_that_take_a_batch_now_and_then_have_not_stopped() -> None:
    host = well(0, 30, incoming=50)
    behind = np.arange(11) + 0.4
    acked = np.array([11, 0, 0, 3, 0, 12, 0, 0, 12, 0, 0.0])
    host.queue(
        30,
        41,
        lag=(behind * 24).astype(int),
        age=behind,
        incoming=24,
        out=None,
        oldest_pending_s=behind,
        pending=12,
        consumers=3,
        out_per_s=acked,
    )
    well(41, 60, host, incoming=24)
    (found,) = latest(run(host, 60))
    assert found["cause"] == "consumer_slow"
