"""A delay, a loss, resets and a slow server, told apart by what was seen of that peer at that time; and handshakes that
are slow on the way only.
"""

from __future__ import annotations

import numpy as np
import pytest

from agent.correlate.resent import Resent, _after
from tests.unit.correlate_scenarios import (
    APP_PID,
    MS,
    REDIS,
    REDIS_PID,
    T0,
    UNTIL,
    US,
    Host,
    S,
    code,
    latest,
    network_loss,
    peer,
    run,
)

PEER = np.frombuffer(REDIS, "V18")
OTHER = np.frombuffer(peer("127.0.0.1", 80), "V18")
CC1 = {"pid": 55, "comm": b"cc1"}
PYTHON3 = {"pid": APP_PID, "tid": APP_PID, "comm": b"python3"}


def connects(host: Host, at: np.ndarray, ms: object, to: np.ndarray = PEER) -> None:
    """Connects that were through at ``at`` seconds after T0."""
    host.add(
        "tcp_connect", at=at, pid=APP_PID, peer=to, result="ok", duration_ns=(np.asarray(ms) * MS).astype(np.int64)
    )


def sent_again(host: Host, at: object, kind: str = "data") -> None:
    t = np.atleast_1d(np.asarray(at, np.float64))
    host.add("tcp_retransmit", at=t, pid=APP_PID, peer=PEER, kind=kind, count=1)


def asking(took_s: float, connect_ms: object, quick: bool = True) -> Host:
    """Decisions of so long for 5 s, each with a connect of so long in it; another server at that address answers at
    once.
    """
    host = Host().healthy(0, 30)
    usual = np.arange(0.5, 30, 0.5)
    connects(host, usual, 0.1)
    for at in np.arange(31, 36, took_s + 0.05):
        host.stalled_decision(at + took_s, took_s)
    inside = np.arange(31, 36, took_s + 0.05) + took_s - 0.01
    connects(host, inside, np.resize(np.asarray(connect_ms, np.float64), len(inside)))
    if quick:
        connects(host, np.arange(31, 36, 0.25), 0.1, OTHER)
    return host


def causes(host: Host) -> list[object]:
    return [f["cause"] for f in latest(run(host, UNTIL))]


def test_connects_that_took_long_meanwhile_are_the_networks_though_another_port_is_quick() -> None:
    assert causes(asking(0.6, 290)) == ["network_rtt"]


def test_connects_that_were_quick_meanwhile_leave_the_server() -> None:
    assert causes(asking(0.6, 0.12)) == ["broker_slow"]


def test_connects_before_and_after_prove_nothing() -> None:
    host = asking(0.6, 290)
    connects(host, np.arange(37, 40, 0.1), 0.1)
    assert causes(host) == ["network_rtt"]


def test_segments_sent_again_under_slow_round_trips_are_not_taken_for_loss() -> None:
    host = asking(0.6, 290)
    sent_again(host, np.arange(31.2, 35, 0.65))
    found = latest(run(host, UNTIL))
    assert [f["cause"] for f in found] == ["network_rtt"]
    assert "slow round trips alone can cause" in str(found[0]["causes"])


def test_a_connect_whose_syn_was_lost_is_no_slow_round_trip() -> None:
    host = asking(1.2, 1002)
    sent_again(host, np.arange(31, 36, 1.25) + 0.4, "syn")
    assert causes(host) == ["network_loss"]


def test_whose_connects_are_not_answered_on_a_crowded_host_is_not_slow() -> None:
    """As behind a firewall that drops them: the kernel of a slow server would answer them, however crowded it is
    here.
    """
    host = asking(1.2, 1002)
    sent_again(host, np.arange(31, 36, 1.25) + 0.4, "syn")
    t = T0 + np.arange(0, UNTIL) * S + S - 1
    cpu_saturated = np.where((t > T0 + 31 * S) & (t < T0 + 37 * S), S, 10 * MS)
    host.add("syscall_latency", t_ns=t, **CC1, run_queue_ns=cpu_saturated, count=1, basis="blocked", kind="slow")
    (found,) = latest(run(host, UNTIL))
    assert (found["cause"], found["confidence"]) == ("network_loss", 0.6)


@pytest.mark.parametrize("took_s", [0.5, 0.8])
def test_round_trips_that_vary_are_asked_to(took_s: float) -> None:
    """A wait may have two of them, and the longest are what counts."""
    host = asking(took_s, [40, 390, 120, 310, 200, 260, 80])
    (found,) = latest(run(host, UNTIL))
    assert found["cause"] == "network_rtt"
    assert "varying from packet to packet" in str(found["sentence"]), found["sentence"]


@pytest.mark.parametrize(("floor_us", "cause"), [(290_000, "network_rtt"), (42_000, "broker_slow")])
def test_without_connects_the_rtt_must_rise_above_what_an_acknowledgement_may_be_held_back(
    floor_us: int, cause: str
) -> None:
    host = Host().healthy(0, 30)
    for at in np.arange(31, 36, 0.65):
        host.stalled_decision(at + 0.3, 0.3)
    host.rtt(30, 36, us=floor_us)
    connects(host, np.arange(31, 36, 0.25), 0.1, OTHER)
    assert causes(host) == [cause]


@pytest.mark.parametrize(
    ("connect_ms", "mean_us", "cause"),
    [
        ([1, 390, 120, 310, 200, 260], 210_000, "network_rtt"),
        ([1, 390, 120, 310, 200, 260], 2_000, "broker_slow"),  # another program's round trips are short
        ([0.1], 210_000, "broker_slow"),
    ],
)
def test_delays_that_vary_let_some_round_trips_be_short(connect_ms: list[float], mean_us: int, cause: str) -> None:
    """The shortest one of a second shows nothing, nor does one quick connect of several."""
    host = Host().healthy(0, 30)
    for at in np.arange(31, 36, 0.65):
        host.stalled_decision(at + 0.3, 0.3)
    host.rtt(30, 36, us=170_000)
    host.made[-1].rows["rtt_min_us"] = 60_000
    host.rtt(30, 36, us=mean_us, to=OTHER.tobytes(), pid=APP_PID + 1)
    host.made[-1].rows["rtt_min_us"] = 1_000
    at = np.arange(31, 36, 0.1)
    connects(host, at, np.resize(connect_ms, len(at)), OTHER)
    assert causes(host) == [cause]


@pytest.mark.parametrize(("answered_ms", "cause"), [(4, "network_rtt"), (44, "broker_slow"), (None, "broker_slow")])
def test_what_a_server_of_this_host_answered_at_once_was_under_way(answered_ms: int | None, cause: str) -> None:
    """Though an acknowledgement may be held back for as long."""
    host = Host().healthy(0, 30)
    for at in np.arange(31, 36, 0.1):
        host.stalled_decision(at + 0.046, 0.046)
    host.rtt(30, 36, us=45_000)
    connects(host, np.arange(31, 36, 0.25), 0.1, OTHER)
    for part in (host.server, host.accept, host.web, host.queue):
        part(30, UNTIL)
    host.decisions(36, UNTIL)
    host.rtt(36, UNTIL)
    host.add(
        "service_latency",
        5,
        at=np.arange(32, 37),
        pid=REDIS_PID,
        comm=b"redis-server",
        sport=6399,
        requests=10,
        interval_ns=S,
        max_ns=-(2**63) if answered_ms is None else answered_ms * MS,
        p50_ns=0,
        p90_ns=0,
    )
    (found,) = (f for f in latest(run(host, UNTIL)) if f["symptom"] == "decision_latency")
    assert found["cause"] == cause


def handshaking(lossy: bool = False, slow: bool = False) -> Host:
    """Decisions that spend most of their time in a TLS handshake."""
    host = asking(0.6, 200 if slow else 0.12)
    for at in np.arange(31, 36, 0.65):
        host.add(
            "tls_handshake",
            t_ns=T0 + int((at + 0.6) * S) - 10 * US,
            pid=APP_PID,
            tid=APP_PID,
            peer=PEER,
            duration_ns=int(0.44 * S),
            result=0,
        )
    if lossy:
        sent_again(host, np.arange(31.2, 35, 0.65))
    return host


@pytest.mark.parametrize(
    ("lossy", "slow", "cause"), [(False, False, "tls"), (True, False, "network_loss"), (False, True, "network_rtt")]
)
def test_a_handshake_that_is_slow_on_the_way_is_the_networks(lossy: bool, slow: bool, cause: str) -> None:
    assert causes(handshaking(lossy, slow)) == [cause]


def failing(count: int = 24, resets: int = 24, refused: int = 0) -> Host:
    """Some decisions fail within two seconds."""
    host = Host().healthy(0, UNTIL)
    t = T0 + (np.linspace(30.1, 32, count) * S).astype(np.int64)
    host.add("limiter_decision", count, t_ns=t, **PYTHON3, limiter_id=b"small", result="error", duration_ns=1 * MS)
    host.decisions(0, UNTIL, rate=8, limiter=b"small")
    host.add(
        "tcp_reset", resets, t_ns=t[:resets] - 100 * US, pid=APP_PID, peer=PEER, role="client", direction="received"
    )
    host.add("tcp_connect", refused, t_ns=t[:refused] - 100 * US, pid=APP_PID, peer=PEER, result="failed", errno=111)
    return host


@pytest.mark.parametrize(
    ("resets", "refused", "cause", "detail"),
    [(24, 0, "network_loss", "reset"), (24, 20, "broker_down", ""), (0, 0, "unknown", "")],
)
def test_decisions_that_fail_are_reported_with_what_failed_them(
    resets: int, refused: int, cause: str, detail: str
) -> None:
    (found,) = latest(run(failing(resets=resets, refused=refused), UNTIL))
    assert (found["symptom"], found["cause"], found["cause_detail"]) == ("service_errors", cause, detail)
    if detail:
        assert found["culprit_object"] == "127.0.0.1:6399"


def test_two_failures_are_none_and_neither_are_those_of_a_limiter_that_fails_every_now_and_then() -> None:
    assert latest(run(failing(2, 0), UNTIL)) == []
    host = failing(8, 0)
    host.decisions(
        0, 60, rate=0.6, limiter=b"small", result=code("limiter_decision", "result", "error")
    )  # one in fourteen
    assert latest(run(host, UNTIL)) == []


def test_a_broker_that_answers_late_as_segments_were_lost_is_not_slow() -> None:
    host = Host().healthy(0, 30)
    host.queue(30, 31, poll_ms=900)
    for part in (host.decisions, host.rtt, host.server, host.accept, host.web):
        part(30, UNTIL)
    host.queue(31, UNTIL)
    assert causes(host) == ["broker_slow"]
    host.add("tcp_retransmit", 2, t_ns=T0 + np.array([29_700, 30_100]) * MS, pid=1, peer=PEER, kind="data", count=1)
    assert causes(host) == ["network_loss"]


@pytest.mark.parametrize(
    ("to", "doubled", "cause"),
    [
        ("127.0.0.1", 0, "network_loss"),
        ("127.0.0.1", 4, "broker_slow"),  # we had them already
        ("10.9.9.9", 0, "broker_slow"),
    ],
)
def test_answers_that_a_server_of_this_host_sent_again_to_us_were_lost(to: str, doubled: int, cause: str) -> None:
    host = asking(1.2, 0.1, quick=False)
    for batch in host.made:
        if batch.table == "tcp_rtt":
            batch.rows["saddr"] = np.frombuffer(REDIS[:16], "V16")
    if doubled:
        host.server(31, 36)
        rows = host.made[-1].rows
        rows["saddr"], rows["doubled"] = np.frombuffer(REDIS[:16], "V16"), 1
    host.add(
        "tcp_retransmit",
        4,
        at=np.arange(31.3, 36, 1.25),
        pid=900,
        saddr=REDIS[:16],
        sport=6399,
        peer=peer(to, 40000),
        kind="data",
        count=1,
    )
    assert causes(host) == [cause]


def test_slow_round_trips_while_processors_are_short_are_less_sure() -> None:
    host = asking(0.6, 290)
    seconds = np.arange(0, UNTIL) + 0.9
    host.add(
        "syscall_latency",
        at=seconds,
        pid=5,
        basis="blocked",
        kind="slow",
        interval_ns=S,
        max_ns=0,
        run_queue_ns=np.where((seconds > 30) & (seconds < 37), 1500 * MS, 10 * MS),
    )
    (sure,), (unsure,) = latest(run(asking(0.6, 290), UNTIL)), latest(run(host, UNTIL))
    assert sure["cause"] == unsure["cause"] == "network_rtt"
    assert float(sure["confidence"]) > 0.8 > 0.7 > float(unsure["confidence"])  # type: ignore[arg-type]


def sums(host: Host, doubled: int, late: bool = True) -> None:
    """Of the second after the stall: what was sent to Redis, how much of that it had already, and whether its
    acknowledgement came after the timeout, or was lost.
    """
    host.add(
        "tcp_rtt",
        t_ns=T0 + 31 * S + 900 * MS,
        pid=APP_PID,
        role="client",
        peer=REDIS,
        rtt=(5, 40, 45, 27_000 if late else 50),
        segments=60,
        again=3,
        doubled=doubled,
        interval_ns=S,
    )


@pytest.mark.parametrize(
    ("doubled", "late", "cause"),
    [
        (0, True, "network_loss"),
        (1, True, "network_loss"),
        (3, True, "broker_slow"),
        (3, False, "network_loss"),  # what was lost is the acknowledgement
    ],
)
def test_what_the_peer_had_already_was_not_lost(doubled: int, late: bool, cause: str) -> None:
    host = network_loss()
    sums(host, doubled, late)
    (found,) = latest(run(host, UNTIL))
    assert found["cause"] == cause
    output = str(found["sentence"]) + str(found["ruled_out"])
    assert (
        "3 of 60 TCP segments between it and redis-server pid 900 at 127.0.0.1:6399 had to be retransmitted" in output
    )
    assert ("but it already had 3 of them" in output) == (cause == "broker_slow")


@pytest.mark.parametrize(
    ("tries", "syn", "waited_s", "share"),
    [(1, False, 0.5, 1.0), (1, False, 6.0, 0.1), (3, False, 3.0, 1.0), (1, True, 3.0, 1.0), (1, True, 30.0, 0.1)],
)
def test_so_many_tries_explain_a_wait_of_so_long(tries: int, syn: bool, waited_s: float, share: float) -> None:
    most = _after(tries, 1e9 if syn else 2e8, 0.0)
    assert Resent(tries, 100, 0, most).explains(waited_s * 1e9) == pytest.approx(share)
    assert Resent(tries, 100, tries, most).explains(waited_s * 1e9) == 0
