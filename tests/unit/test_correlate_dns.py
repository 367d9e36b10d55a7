"""Names that took long to resolve, or did not: reported as that, with the name server, and not as a slow broker."""

from __future__ import annotations

import numpy as np
import pytest

from agent.correlate.correlator import Correlator
from tests.unit.correlate_scenarios import (
    APP_PID,
    MS,
    START,
    T0,
    UNTIL,
    Host,
    S,
    around_stall,
    broker_slow,
    call,
    code,
    latest,
    peer,
    run,
)

NAMES = peer("10.0.0.53", 53)
OTHER = peer("10.0.0.54", 53)
UNBOUND = {"pid": 853, "comm": b"unbound"}


def wait(host: Host, until_s: float, seconds: float, of: bytes = NAMES) -> None:
    call(
        host,
        t_ns=T0 + int(until_s * S),
        duration_ns=int(seconds * S),
        syscall=b"poll",
        fd_type=b"socket",
        kind=code("slow_syscall", "kind", "waiting"),
        peer=np.frombuffer(of, "V18"),
    )


def serves(host: Host) -> None:
    """Who listens on the name server's port, as it does by TCP."""
    host.add(
        "socket_queue", at=np.arange(UNTIL), **UNBOUND, kind="accept", saddr=NAMES[:16], sport=53, queue=0, limit=128
    )


def connects(
    host: Host, at_s: float, to: bytes = peer("10.0.0.53", 443), took_ns: int = 2 * MS, failed: bool = False
) -> None:
    host.add(
        "tcp_connect",
        at=at_s,
        pid=APP_PID,
        peer=to,
        duration_ns=took_ns,
        result="failed" if failed else "ok",
        errno=111 if failed else -(2**63),
    )


def silent(*waits: tuple[float, float, bytes]) -> Host:
    def stall(host: Host) -> None:
        host.stalled_decision(31.4, 1.4, children=False)
        for until_s, seconds, of in waits:
            wait(host, until_s, seconds, of)

    return around_stall(stall)


def test_a_wait_on_a_name_server_is_not_a_slow_broker() -> None:
    host = silent((31.35, 1.3, NAMES))
    serves(host)
    connects(host, 31.38)
    (found,) = latest(run(host, UNTIL))
    assert (found["cause"], found["cause_detail"]) == ("dns", "unanswered")
    assert (found["culprit_pid"], found["culprit_comm"], found["culprit_object"]) == (853, "unbound", "10.0.0.53:53")
    assert (
        "name server unbound pid 853 at 10.0.0.53:53 did not answer for 1.3 s while a round trip to that address took"
        " 2 ms" in str(found["sentence"])
    )
    assert "broker_slow" not in [c["cause"] for c in found["causes"]]  # type: ignore[attr-defined]


def test_all_waits_of_a_question_that_was_asked_again_count() -> None:
    """Alone, each is too little of the time lost to be its cause; the servers were asked in turn."""
    host = silent((30.4, 0.35, NAMES), (30.76, 0.35, OTHER), (31.12, 0.35, NAMES))
    (found,) = latest(run(host, UNTIL))
    assert found["cause"] == "dns" and found["confidence"] > 0.5  # type: ignore[operator]
    assert "10.0.0.53:53 did not answer for 350 ms, 3 times, 1.05 s in all" in str(found["sentence"])
    assert "what the network did meanwhile is not known" in str(found["sentence"])


def test_who_serves_names_need_not_be_known() -> None:
    (found,) = latest(run(silent((31.35, 1.3, NAMES)), UNTIL))
    assert found["cause"] == "dns" and found["culprit_object"] == "10.0.0.53:53"
    assert found["culprit_comm"] == "" and found["culprit_pid"] == -(2**63)


@pytest.mark.parametrize("port", [53, 443])
def test_where_segments_to_any_port_of_that_address_were_lost_the_network_loses_questions_too(port: int) -> None:
    host = silent((31.35, 1.3, NAMES))
    (before,) = latest(run(host, UNTIL))
    host.add(
        "tcp_retransmit", 3, t_ns=T0 + 31 * S + np.arange(3) * MS, pid=APP_PID, peer=peer("10.0.0.53", port), count=1
    )
    (found,) = latest(run(host, UNTIL))
    assert found["cause"] == "network_loss"
    dns = {c["cause"]: c["confidence"] for c in found["causes"]}["dns"]  # type: ignore[attr-defined]
    assert dns < 0.7 < before["confidence"]  # type: ignore[operator]


def test_where_the_way_to_it_was_slow_for_all_the_name_server_is_not_blamed() -> None:
    host = silent((31.35, 1.3, NAMES))
    connects(host, 31.38, took_ns=600 * MS)
    (found,) = latest(run(host, UNTIL))
    assert found["cause"] == "unknown"
    (why,) = [r["words"] for r in found["ruled_out"] if r["cause"] == "dns"]  # type: ignore[attr-defined]
    assert why == "a round trip to the name server's address alone took 600 ms"


def test_a_name_server_that_refuses_connections_is_no_broker() -> None:
    host = silent()
    connects(host, 31.0, NAMES, failed=True)
    (found,) = latest(run(host, UNTIL))
    assert (found["cause"], found["cause_detail"]) == ("dns", "refused")
    assert "name server 10.0.0.53:53 refused or failed 1 connection" in str(found["sentence"])


def test_without_its_waits_nothing_is_reported_of_it() -> None:
    (found,) = latest(run(silent((31.35, 1.3, NAMES)).without("slow_syscall"), UNTIL))
    assert found["cause"] == "unknown"


def test_a_quick_answer_before_a_slow_broker_is_not_the_cause() -> None:
    host = broker_slow()
    wait(host, 30.06, 0.05)
    (found,) = latest(run(host, UNTIL))
    assert found["cause"] == "broker_slow"
    assert "dns" not in [c["cause"] for c in found["causes"]]  # type: ignore[attr-defined]


def lookup(host: Host, until_s: float, seconds: float, result: str = "ok", of: bytes = NAMES, **more: object) -> None:
    host.add(
        "dns_lookup",
        1,
        **(
            {
                "t_ns": T0 + int(until_s * S),
                "pid": APP_PID,
                "tid": APP_PID,
                "proc_start_ns": START,
                "comm": b"python3",
                "peer": np.frombuffer(of, "V18"),
                "name": b"policy.lab",
                "duration_ns": int(seconds * S),
                "tries": 1,
                "result": code("dns_lookup", "result", result),
                "source": code("dns_lookup", "source", "getaddrinfo"),
            }
            | more
        ),
    )


@pytest.mark.parametrize(
    ("result", "tries", "detail"),
    [("ok", 1, "slow"), ("ok", 3, "lost"), ("timeout", 3, "timeout"), ("servfail", 1, "servfail")],
)
def test_a_lookup_reports_the_name_and_how_it_went(result: str, tries: int, detail: str) -> None:
    host = silent((31.35, 1.3, NAMES))
    lookup(host, 31.36, 1.32, result, tries=tries)
    (found,) = latest(run(host, UNTIL))
    assert (found["cause"], found["cause_detail"], found["culprit_object"]) == ("dns", detail, "10.0.0.53:53")
    assert ("(policy.lab)" if tries == 1 else "(policy.lab, asked 3 times)") in str(found["sentence"])


def test_a_lookup_by_ways_that_no_socket_shows_is_not_a_slow_broker() -> None:
    """By a daemon's own socket, or by one poll of several: what was waited for has no peer, and the only one that is
    known is a broker.
    """

    def without_peer(host: Host) -> None:
        wait(host, 31.3, 1.3, bytes(18))

    host = silent()
    without_peer(host)
    assert [f["cause"] for f in latest(run(host, UNTIL))] == ["broker_slow"]
    host = silent()
    without_peer(host)
    lookup(host, 31.31, 1.32, of=bytes(18))
    (found,) = latest(run(host, UNTIL))
    assert found["cause"] == "dns" and "the resolver did not answer for 1.31 s (policy.lab)." in str(found["sentence"])
    assert found["culprit_object"] == ""


def failed(lookups: bool = True) -> Host:
    """From second 30 on six decisions in ten fail, at once."""
    host = Host()
    host.decisions(0, 30, ms=4)
    host.decisions(30, UNTIL, refused=0.6, ms=4)
    for batch in host.made[1:]:
        wrong = batch.rows["result"] == code("limiter_decision", "result", "refused")
        batch.rows["result"][wrong] = code("limiter_decision", "result", "error")
        for t_ns in batch.rows["t_ns"][wrong].tolist() if lookups else ():
            lookup(host, (t_ns - T0) / S - 1e-5, 0.002, "servfail", rcode=2)
    return host


def test_decisions_that_fail_with_their_lookups() -> None:
    (found,) = latest(run(failed(), UNTIL))
    assert (found["symptom"], found["cause"], found["cause_detail"]) == ("service_errors", "dns", "servfail")
    assert "because name server 10.0.0.53:53 answered with servfail" in str(found["sentence"])
    assert "dns" not in [c["cause"] for c in latest(run(failed(lookups=False), UNTIL))[0]["causes"]]  # type: ignore[attr-defined]


def test_names_that_others_cannot_resolve_are_not_the_cause() -> None:
    host = failed(lookups=False)
    for second in range(30, UNTIL):
        for i in range(30):
            lookup(host, second + i / 50, 0.002, "nxdomain", pid=APP_PID + 1, tid=APP_PID + 1)
    assert [f["cause"] for f in latest(run(host, UNTIL))] == ["unknown"]


def test_names_that_never_could_be_resolved_are_not_the_cause() -> None:
    host = failed(lookups=False)
    for i in range(UNTIL * 40):
        lookup(host, i / 40, 0.002, "nxdomain")
    assert [f["cause"] for f in latest(run(host, UNTIL))] == ["unknown"]


def test_a_healthy_host_that_looks_up_much_reports_nothing() -> None:
    host = Host().healthy(0, UNTIL)
    for i in range(600):
        lookup(host, i / 10 + 0.05, 0.03, "nxdomain" if i % 3 else "ok")
    assert not latest(run(host, UNTIL))


def test_a_lookup_of_a_goroutine_of_its_own_belongs_to_its_processs_decisions() -> None:
    host = silent()
    lookup(host, 31.36, 1.32, "timeout", tid=-(2**63), source=code("dns_lookup", "source", "go"))
    (found,) = latest(run(host, UNTIL))
    assert (found["cause"], found["cause_detail"]) == ("dns", "timeout")
    host = silent()
    lookup(host, 31.36, 1.32, "timeout", tid=APP_PID + 7)
    assert [f["cause"] for f in latest(run(host, UNTIL))] == ["unknown"]


def test_a_wait_that_is_reported_with_its_decision_long_after_it_ended_is_evidence_and_no_loss() -> None:
    host = silent()
    correlator = Correlator()
    for batch in host.made:
        correlator.feed(batch)
    correlator.advance(T0 + 31 * S)
    late = Host()
    wait(late, 30.5, 0.49)
    wait(late, 31.3, 0.7)
    for batch in late.made:
        correlator.feed(batch)
    found = latest(correlator.advance(T0 + 40 * S))
    assert found[0]["cause"] == "dns" and "2 times, 1.19 s in all" in str(found[0]["sentence"])
    assert correlator.losses()["late"] == 0
    host = Host()
    host.decisions(1, 2)
    correlator.feed(host.made[0])
    correlator.advance(T0 + 41 * S)
    assert correlator.losses()["late"] > 0


@pytest.mark.parametrize("forwards", [False, True])
def test_a_name_server_of_this_host_is_followed_to_what_it_waited_for(forwards: bool) -> None:
    """It was busy itself; or it waited for its forwarder, which was stopped."""
    host = around_stall(lambda host: host.stalled_decision(31.4, 1.4, children=False))
    its = {**UNBOUND, "proc_start_ns": START, "tid": 853}
    call(
        host,
        t_ns=T0 + int(31.35 * S),
        duration_ns=int(1.3 * S),
        syscall=b"poll",
        fd_type=b"socket",
        kind=code("slow_syscall", "kind", "waiting"),
        peer=np.frombuffer(NAMES, "V18"),
        waker_pid=853,
        waker_tid=853,
        waker_comm=b"unbound",
    )
    serves(host)
    if forwards:
        wakes = {"waker_pid": 954, "waker_tid": 954, "waker_comm": b"coredns"}
        waits = {"syscall": b"epoll_wait", "kind": "waiting", "duration_ns": int(1.25 * S)}
        host.add("slow_syscall", at=31.34, **its, **waits, **wakes)
        for at, kind in ((30.1, "stopped"), (31.33, "continued")):
            host.add("process_event", at=at, pid=954, comm=b"coredns", kind=kind, signal=19, sender_pid=7)
    else:
        for second in range(34):
            busy = second in (30, 31, 32)
            host.add("cpu_use", at=second + 0.5, **its, interval_ns=S, user_ns=int(0.95 * S * busy), system_ns=0)
    (found,) = latest(run(host, UNTIL))
    wanted = ("process_stopped", 954) if forwards else ("busy", 853)
    assert (found["cause"], found["culprit_pid"]) == wanted, found["sentence"]
    assert "unbound pid 853" in str(found["via"]) + str(found["sentence"])
