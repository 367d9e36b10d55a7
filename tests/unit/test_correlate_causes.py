"""Each cause is found where its rows are, and never without them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.unit.correlate_scenarios import (
    ALL,
    APP_PID,
    MS,
    PEER,
    REDIS,
    REDIS_PID,
    START,
    T0,
    UNTIL,
    WEB_PID,
    Host,
    S,
    accept_overflow,
    around_stall,
    broker_down,
    broker_slow,
    call,
    clock_step,
    code,
    cpu,
    lagging,
    latest,
    network_loss,
    network_rtt,
    peer,
    refusing,
    run,
    syscall,
    tls,
)

REDIS_SERVER = {"pid": 900, "comm": b"redis-server"}


@pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.__name__)
def test_cause_is_found(scenario: Callable[[], Host]) -> None:
    found = latest(run(scenario(), UNTIL))
    assert [f["cause"] for f in found] == [scenario.__name__], [f["sentence"] for f in found]
    assert 0.5 <= found[0]["confidence"] <= 1  # type: ignore[operator]
    assert found[0]["evidence"]
    if scenario is syscall:
        assert found[0]["cause_detail"] == "fsync"
    if scenario is not clock_step:
        assert all(c["cause"] not in ("clock_step", "leap") for c in found[0]["causes"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("longer", [True, False])
def test_decisions_that_wait_for_one_connection_wait_for_its_server(longer: bool) -> None:
    """A pool of one: each waits for those before it, and then for the server; only that wait is a call to a peer."""

    def stall(host: Host) -> None:
        for n in range(13):
            its = {"pid": APP_PID, "tid": 100 + n, "comm": b"python3", "t_ns": T0 + 30 * S + (n + 1) * 100 * MS}
            host.add("limiter_decision", **its, limiter_id=b"api", library=b"own", duration_ns=(n + 1) * 100 * MS)
            wait = {"kind": "waiting", "syscall": b"recvfrom", "fd_type": b"socket", "peer": REDIS}
            host.add("slow_syscall", **its, **wait, duration_ns=99 * MS, blocked_ns=99 * MS, run_queue_ns=0)
        usual = MS if longer else 99 * MS
        host.add(
            "syscall_latency",
            t_ns=T0 + np.arange(60) * S,
            pid=APP_PID,
            comm=b"python3",
            basis="blocked",
            kind="waiting",
            peer=REDIS,
            interval_ns=S,
            max_ns=np.where(np.arange(60) == 31, 99 * MS, usual),
        )

    (found,) = latest(run(around_stall(stall), UNTIL))
    assert (found["cause"] == "broker_slow") == longer, found["sentence"]


@pytest.mark.parametrize(
    ("pid", "held", "cause"),
    [(WEB_PID, 8, "syscall"), (WEB_PID, 2, "accept_overflow"), (APP_PID, 8, "accept_overflow")],
)
def test_a_listener_that_a_call_held_up_is_not_merely_slow(pid: int, held: int, cause: str) -> None:
    host = accept_overflow()
    call(host, syscall=b"flock", fd_type=b"file", pid=pid, tid=pid, t_ns=T0 + 39 * S, duration_ns=held * S)
    (found,) = latest(run(host, UNTIL))
    assert (found["symptom"], found["cause"]) == ("accept_overflow", cause)
    assert "nginx" in str(found["sentence"])


WITHOUT = [
    (broker_slow, "slow_syscall"),
    (network_rtt, "tcp_rtt"),
    (network_loss, "tcp_retransmit"),
    (broker_down, "tcp_connect"),
    (tls, "tls_handshake"),
    (syscall, "slow_syscall"),
    (cpu, "slow_syscall"),
    (clock_step, "clock_change"),
]


@pytest.mark.parametrize(("scenario", "table"), WITHOUT, ids=lambda x: getattr(x, "__name__", x))
def test_cause_is_not_claimed_without_its_rows(scenario: Callable[[], Host], table: str) -> None:
    found = latest(run(scenario().without(table), UNTIL))
    assert found
    assert all(scenario.__name__ not in [f["cause"], *(c["cause"] for c in f["causes"])] for f in found)  # type: ignore[attr-defined]


def test_a_rise_without_a_cause_is_unknown_and_reports_what_was_checked() -> None:
    found = latest(run(refusing(), UNTIL))
    assert [f["cause"] for f in found] == ["unknown"]
    assert {"clock_step", "config", "load"} <= {r["cause"] for r in found[0]["ruled_out"]}  # type: ignore[attr-defined]
    assert "; cause unknown; ruled out: " in str(found[0]["sentence"])


def test_a_sentence_is_well_spaced_where_the_network_is_not_known() -> None:
    output = [
        str(found["sentence"])
        for scenario in (broker_slow(), broker_slow().without("tcp_rtt"))
        for found in latest(run(scenario, UNTIL))
    ]
    assert any("did not answer for 1.4 s (network RTT unknown)" in one for one in output), output
    assert not any(re.search(r" [;,.]|  |swhile", one) for one in output), output


def test_evidence_of_another_process_does_not_count() -> None:
    host = around_stall(lambda h: h.stalled_decision(31.4, 1.4, children=False))
    call(host, syscall=b"fsync", fd_type=b"file", pid=WEB_PID, tid=WEB_PID)
    assert [f["cause"] for f in latest(run(host, UNTIL))] == ["unknown"]


def test_a_stalled_redis_is_one_finding_that_opens_and_closes() -> None:
    host = Host().healthy(0, 30)
    host.stalled_decision(31.4, 1.4)
    host.decisions(31.4, UNTIL)
    host.rtt(30, UNTIL)
    host.queue(30.9, 31.9, poll_ns=1_200 * MS)
    host.queue(32, UNTIL)
    out = run(host, UNTIL)
    states = [int(row["state"]) for batch in out if batch.table == "finding" for row in batch.rows]
    assert len({bytes(r["finding_id"]) for b in out for r in b.rows}) == 1
    assert states[0] == 0 and states[-1] == 1 and states == sorted(states)
    found = latest(out)[0]
    assert found["cause"] == "broker_slow"
    for part in (
        "limiter api",
        "python3 pid 4242",
        "1.4 s",
        "redis-server pid 900 at 127.0.0.1:6399",
        "RTT",
        "us",
        "Also affected: the redis server",
    ):
        assert part in str(found["sentence"])
    assert found["start_ns"] == T0 + 30 * S and T0 + int(31.4 * S) <= int(found["end_ns"]) <= T0 + 32 * S  # type: ignore[call-overload]


def test_a_stalled_redis_shows_in_its_poller_alone() -> None:
    host = Host()
    host.queue(0, 30)
    host.queue(30, 31, poll_ms=1_500)
    host.queue(32, UNTIL)
    assert [f["cause"] for f in latest(run(host, UNTIL))] == ["broker_slow"]


@pytest.mark.parametrize(("rtt_ms", "cause"), [(630, "network_rtt"), (350, "network_rtt"), (180, "broker_slow")])
@pytest.mark.parametrize("asked", [6399, 15692])  # the port of clients, and one for metrics
def test_a_poll_of_several_round_trips_takes_several_times_as_long(rtt_ms: int, cause: str, asked: int) -> None:
    host = Host()
    poller: dict[str, Any] = {"to": peer("127.0.0.1", asked), "comm": b"tickscope-poll"}
    host.queue(0, 30)
    host.rtt(0, 30, **poller)
    host.queue(30, 34, status=b"down", failure=code("queue_lag", "failure", "no_answer"), poll_ms=3_000)
    host.rtt(30, 34, us=rtt_ms * 1e3, **poller)
    host.queue(34, UNTIL)
    host.rtt(34, UNTIL, **poller)
    (found,) = [f for f in latest(run(host, UNTIL)) if f["symptom"] == "broker_stall"]
    assert found["cause"] == cause


@pytest.mark.parametrize(("measured_ms", "cause"), [(460, "network_rtt"), (200, "broker_slow")])
def test_a_smoothed_rtt_rises_slowly(measured_ms: int, cause: str) -> None:
    """Eight round trips of 460 ms are a poll of 3.7 s; what is measured counts, beyond a delayed acknowledgement."""
    host = Host()
    poller: dict[str, Any] = {"comm": b"tickscope-poll", "pid": 600, "samples": 2}
    host.queue(0, 30)
    host.rtt(0, 30, raw_min_us=3_000, **poller)
    host.rtt(30, 34, us=200_000, raw_min_us=measured_ms * 1_000, **poller)
    host.queue(34, 35, poll_ms=3_700)
    host.rtt(34, UNTIL, raw_min_us=3_000, **poller)
    host.queue(36, UNTIL)
    (found,) = [f for f in latest(run(host, UNTIL)) if f["symptom"] == "broker_stall"]
    assert found["cause"] == cause


@pytest.mark.parametrize("lasts_s", [3, 8])
def test_a_connect_whose_syn_was_lost_is_no_slow_network(lasts_s: int) -> None:
    """The poller connects anew, and the first round trip of that has the second until the SYN was retransmitted."""
    host, until = Host(), 30 + lasts_s
    poller: dict[str, Any] = {"comm": b"tickscope-poll", "pid": 600}
    host.rtt(0, UNTIL, raw_min_us=3_000)
    host.queue(0, 30)
    host.rtt(0, 30, raw_min_us=3_000, **poller)
    host.queue(30, until, status=b"down", failure=code("queue_lag", "failure", "no_answer"), poll_ms=1_500)
    host.rtt(30, until, us=1_023_000, **poller)
    host.queue(until, UNTIL)
    host.rtt(until, UNTIL, raw_min_us=3_000, **poller)
    n = 4 * lasts_s
    host.add(
        "tcp_retransmit",
        n,
        t_ns=T0 + 30 * S + np.arange(n) * 250 * MS,
        **poller,
        proc_start_ns=START,
        peer=PEER,
        kind="syn",
        count=1,
    )
    (found,) = [f for f in latest(run(host, UNTIL)) if f["symptom"] == "broker_stall"]
    assert found["cause"] == "network_loss"


@pytest.mark.parametrize(("waited_ms", "cause"), [(1_200, "cpu"), (90, "broker_slow")])
def test_a_poller_that_got_no_processor_blames_no_broker(waited_ms: int, cause: str) -> None:
    host = Host()
    host.queue(0, 30)
    host.queue(30, 31, poll_ms=1_500)
    host.queue(32, UNTIL)
    host.add(
        "cpu_wait",
        at=30.9,
        interval_ns=S,
        pid=13674,
        comm=b"tickscope-poll",
        by_pid=55,
        by_comm=b"mypy",
        count=1,
        wait_ns=waited_ms * MS,
        max_ns=waited_ms * MS,
    )
    assert [f["cause"] for f in latest(run(host, UNTIL))] == [cause]


@pytest.mark.parametrize(
    ("failure", "findings"),
    [
        ("refused", [("broker_down", "broker_down")]),
        ("no_answer", [("broker_slow", "broker_stall")]),
        ("login", []),  # its clients are served
    ],
)
def test_a_broker_that_is_down_one_that_does_not_answer_and_one_that_refuses_tickscope(
    failure: str, findings: list[tuple[str, str]]
) -> None:
    host = Host()
    host.queue(0, 30)
    host.queue(
        30,
        36,
        status=b"down",
        failure=code("queue_lag", "failure", failure),
        reason=b"whatever it is called",
        lag=-(2**63),
        age=np.nan,
    )
    host.queue(36, UNTIL)
    found = latest(run(host, UNTIL))
    assert [(f["cause"], f["symptom"]) for f in found] == findings
    for one in found:
        assert one["state"] == "closed"
        assert one["evidence"][0]["peer"] == "127.0.0.1:6399"  # type: ignore[index]


def test_a_broker_that_never_was_there_is_reported_after_three_polls() -> None:
    for polls, reported in ((2, []), (3, ["broker_down"])):
        host = Host()
        host.queue(5, 5 + polls, status=b"down", reason=b"Connection refused", lag=-(2**63), age=np.nan)
        assert [f["cause"] for f in latest(run(host, 20))] == reported


def test_a_stall_of_another_server_is_another_finding() -> None:
    host = around_stall(lambda h: h.stalled_decision(31.4, 1.4))
    elsewhere = {"peer": np.frombuffer(peer("10.0.0.7", 6379), "V18"), "destination": b"other"}
    host.queue(0, 30, **elsewhere)  # type: ignore[arg-type]
    host.queue(30, 31, poll_ns=1_200 * MS, **elsewhere)  # type: ignore[arg-type]
    found = latest(run(host, UNTIL))
    assert [f["cause"] for f in found] == ["broker_slow", "broker_slow"]
    assert "10.0.0.7:6379" in str([f["sentence"] for f in found])


@pytest.mark.parametrize("status", [b"stalled", b"stopped"])
def test_a_group_that_never_moved_while_messages_arrive(status: bytes) -> None:
    host = Host()
    grown = np.arange(UNTIL)
    host.queue(
        0, UNTIL, lag=grown * 100 + 1, age=grown * 1.0, out=0, consumers=0, status=np.where(grown < 10, b"ok", status)
    )
    found = latest(run(host, UNTIL))
    assert [(f["cause"], f["state"]) for f in found] == [("consumer_stopped", "open")]
    idle = Host()
    idle.queue(0, UNTIL, lag=5, age=grown * 1.0, out=0, incoming=0, consumers=0, status=status)
    assert latest(run(idle, UNTIL)) == []


def test_waits_that_only_the_sums_show_name_the_peer_where_they_are_unusual() -> None:
    def sums(host: Host, longest: float) -> None:
        t = T0 + np.arange(20, 45) * S
        host.add(
            "syscall_latency",
            25,
            t_ns=t,
            pid=APP_PID,
            comm=b"python3",
            basis="blocked",
            kind="waiting",
            peer=PEER,
            max_ns=np.where(t == T0 + 32 * S, int(1.39 * S), int(longest * S)),
            run_queue_ns=0,
        )

    for longest, cause in ((0.02, "broker_slow"), (1.2, "unknown")):
        host = around_stall(lambda h: h.stalled_decision(31.4, 1.4, children=False))
        sums(host, longest)
        assert [f["cause"] for f in latest(run(host, UNTIL))] == [cause]


def test_more_arrivals_than_usual_are_load_not_a_slow_consumer() -> None:
    assert [f["cause"] for f in latest(run(lagging(incoming=300, out=100), UNTIL))] == ["load"]


def test_a_group_that_lost_a_consumer_is_a_rebalance_or_a_slow_consumer() -> None:
    found = latest(run(lagging(consumers=1, out=95), UNTIL))
    assert [f["cause"] for f in found] == ["rebalance"]


@pytest.mark.parametrize(
    ("every_s", "state", "cause", "detail"),
    [
        (2, "stable", "rebalance", "storm"),
        (20, "stable", "consumer_stopped", ""),
        (20, "rebalancing", "rebalance", ""),  # it does not end, so nothing is acknowledged
    ],
)
def test_a_group_that_is_rebalanced_again_and_again_is_a_storm(
    every_s: int, state: str, cause: str, detail: str
) -> None:
    host = lagging(consumers=2, out=0, rebalances=4 + np.arange(UNTIL - 30) // every_s, group_state=state.encode())
    (finding,) = latest(run(host, UNTIL))
    assert (finding["cause"], finding["cause_detail"]) == (cause, detail)


def test_a_limit_that_was_lowered_for_a_while_stays_the_cause_when_it_is_back() -> None:
    host = Host()
    host.decisions(0, 30, limit_per_s=100.0)
    host.decisions(30, 40, limit_per_s=20.0, refused=0.6)
    host.decisions(40, UNTIL, limit_per_s=100.0)
    assert [(f["cause"], f["state"]) for f in latest(run(host, UNTIL))] == [("config", "closed")]


def test_a_load_of_which_a_share_was_watched_is_a_lower_bound_or_not_known() -> None:
    def busy(before: float, during: float) -> dict[str, object]:
        host = Host()
        host.decisions(0, 30, limit_per_s=100.0, burst=10.0, sample_rate=before)
        host.decisions(30, UNTIL, rate=200.0, refused=0.6, limit_per_s=100.0, burst=10.0, sample_rate=during)
        (found,) = latest(run(host, UNTIL))
        return found

    whole, sampled, unknown = busy(1, 1), busy(1, 0.5), busy(0.5, 0.5)
    assert [f["cause"] for f in (whole, sampled, unknown)] == ["load", "load", "unknown"]
    assert [bool(re.search(r"to at least \d+ per second", str(f["sentence"]))) for f in (whole, sampled)] == [
        False,
        True,
    ]
    assert ["of decisions that were seen (usually" in str(f["sentence"]) for f in (whole, sampled)] == [False, True]
    assert [e.get("at_least") for e in sampled["evidence"] if e["what"] == "requested units"] == [True]  # type: ignore[attr-defined]
    assert "only a share of its decisions was observed" in str(unknown["ruled_out"])


@pytest.mark.filterwarnings("error")
def test_a_limit_where_there_was_none_is_a_cause_and_no_number() -> None:
    host = Host()
    host.decisions(0, 30, unlimited=1, burst=10.0)
    host.decisions(30, UNTIL, limit_per_s=20.0, burst=10.0, unlimited=0, refused=0.6)
    (found,) = latest(run(host, UNTIL))
    assert found["cause"] == "config"
    assert "its limit was lowered from unlimited to 20 per second" in str(found["sentence"])
    assert "Infinity" not in json.dumps(found["evidence"])


def test_waits_that_their_callers_gave_up_are_no_slow_decisions() -> None:
    host = Host()
    host.decisions(0, UNTIL)
    host.decisions(
        30, UNTIL, rate=3, result=code("limiter_decision", "result", "cancelled"), wait_ns=60 * S, duration_ns=5 * S
    )
    assert latest(run(host, UNTIL)) == []


def thinking() -> Host:
    """A server that thinks for 36 ms over each answer: its acknowledgements come with the answers, and the RTT looks as
    long.
    """
    host = Host().healthy(0, 30)
    host.rtt(30, 45, us=36_000)
    for at in np.arange(30, 45, 0.1):
        host.stalled_decision(at, 0.036)
    return host


@pytest.mark.parametrize(("connect_ms", "cause"), [(0.1, "broker_slow"), (37, "network_rtt")])
def test_an_rtt_that_the_server_made_long_is_not_the_networks(connect_ms: float, cause: str) -> None:
    host = thinking()
    host.add(
        "tcp_connect",
        7,
        at=np.arange(31, 38),
        pid=1,
        peer=peer("127.0.0.1", 80),
        result="ok",
        duration_ns=int(connect_ms * MS),
    )
    found = latest(run(host, UNTIL))
    assert [f["cause"] for f in found] == [cause], [f["sentence"] for f in found]


def test_a_server_that_gets_no_cpu_is_not_slow_itself() -> None:
    host = around_stall(lambda h: h.stalled_decision(31.4, 1.4))
    t = T0 + np.arange(0, 45) * S
    queued = np.where((t >= T0 + 30 * S) & (t <= T0 + 32 * S), 700 * MS, 20 * MS)
    host.add("syscall_latency", t_ns=t, **REDIS_SERVER, basis="blocked", kind="waiting", max_ns=0, run_queue_ns=queued)
    found = latest(run(host, UNTIL))
    assert [f["cause"] for f in found] == ["cpu"], [f["sentence"] for f in found]
    assert "redis-server" in str(found[0]["sentence"])


def test_ordinary_load_is_no_reason_for_a_rise_that_lasts() -> None:
    """Both processes wait for a CPU for 30 ms a second, before and after; a server takes 44 ms for each answer now."""
    host = Host()
    host.decisions(0, 30, rate=12, ms=0.8)
    host.decisions(30, UNTIL, rate=12, ms=45)
    decisions = [rows for table, rows in host.made if table == "limiter_decision"][-1]
    t = decisions["t_ns"]
    call(host, t_ns=t, duration_ns=44 * MS, kind=code("slow_syscall", "kind", "waiting"), peer=PEER)
    host.rtt(0, UNTIL)
    host.server(0, UNTIL)
    at = np.arange(0, UNTIL) + 0.9
    for pid, comm in ((APP_PID, b"python3"), (REDIS_PID, b"redis-server")):
        load = {"by_pid": 77, "by_comm": b"cc1", "interval_ns": S, "count": 3, "wait_ns": 30 * MS, "max_ns": 12 * MS}
        host.add("cpu_wait", at=at, pid=pid, comm=comm, **load)
    (found,) = latest(run(host, UNTIL))
    assert (found["cause"], "redis-server pid 900" in str(found["sentence"])) == ("broker_slow", True)
