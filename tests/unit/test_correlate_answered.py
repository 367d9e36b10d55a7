"""Servers that answer with errors: reported with what they say, and with the server at which the errors begin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agent.columns import NULL_I64
from tests.unit.correlate_scenarios import APP_PID, MS, REDIS, START, T0, UNTIL, Host, S, code, latest, peer, run

CLIENT, PROXY, APP, DATABASE = 700, 710, 720, 730
NETNS = 4026531840
PROXY_AT, APP_AT, DATABASE_AT = (peer("127.0.0.1", port) for port in (8080, 8000, 5432))
NGINX = {"pid": PROXY, "comm": b"nginx", "netns": NETNS}
GUNICORN = {"pid": APP, "tid": APP, "comm": b"gunicorn"}


def times(a: float, b: float) -> np.ndarray:
    return T0 + (np.arange(a, b) * S).astype(np.int64)


def talks(
    host: Host, pid: int, comm: bytes, to: bytes, server: int, its: bytes, port: int, until: float = UNTIL
) -> None:
    """One asks the other all the time."""
    t = times(0, until)
    shared: dict[str, Any] = {"t_ns": t, "netns": NETNS, "rtt": (10, 30, 40, 50)}
    host.add("tcp_rtt", pid=pid, comm=comm, role="client", peer=to, saddr=to[:16], **shared)
    host.add(
        "tcp_rtt",
        pid=server,
        comm=its,
        role="server",
        sport=port,
        saddr=to[:16],
        peer=peer("127.0.0.1", 40000),
        **shared,
    )


def answers(
    host: Host,
    a: float,
    b: float,
    pid: int,
    to: bytes,
    protocol: bytes,
    output: bytes = b"",
    n: int = 20,
    **more: object,
) -> None:
    t = times(a, b)
    host.add(
        "service_answer",
        t_ns=t,
        pid=pid,
        proc_start_ns=START,
        netns=NETNS,
        peer=to,
        protocol=protocol,
        code=output,
        count=n,
        interval_ns=S,
        **more,
    )


def chain(client: bytes, proxy: bytes = b"", app: bytes = b"", protocol: bytes = b"postgresql") -> Host:
    """A client asks a proxy, which asks an application, which asks a database. For five seconds each answers with the
    error that is given, if any.
    """
    host = Host()
    talks(host, CLIENT, b"wrk", PROXY_AT, PROXY, b"nginx", 8080)
    talks(host, PROXY, b"nginx", APP_AT, APP, b"gunicorn", 8000)
    talks(host, APP, b"gunicorn", DATABASE_AT, DATABASE, b"postgres", 5432)
    for pid, to, speaks, output in (
        (CLIENT, PROXY_AT, b"http", client),
        (PROXY, APP_AT, b"http", proxy),
        (APP, DATABASE_AT, protocol, app),
    ):
        answers(host, 0, 30, pid, to, speaks)
        answers(host, 30, 35, pid, to, speaks, output)
        answers(host, 35, UNTIL, pid, to, speaks)
    return host


@pytest.mark.parametrize(
    ("protocol", "output", "cause", "detail"),
    [
        (b"postgresql", b"53300", "resource_limit", "clients"),
        (b"postgresql", b"53100", "resource_limit", "disk_full"),
        (b"mysql", b"1040", "resource_limit", "clients"),
        (b"redis", b"OOM", "resource_limit", "memory"),
        (b"redis", b"READONLY", "failover", "read_only"),
        (b"redis", b"LOADING", "broker_down", ""),
        (b"postgresql", b"42P01", "server_error", "42P01"),
    ],
)
def test_errors_that_pass_through_others_are_those_of_the_last_one(
    protocol: bytes, output: bytes, cause: str, detail: str
) -> None:
    (finding,) = latest(run(chain(b"500", b"500", output, protocol), UNTIL))
    assert (finding["symptom"], finding["cause"], finding["cause_detail"]) == ("service_errors", cause, detail)
    assert (finding["culprit_pid"], finding["culprit_object"]) == (DATABASE, "127.0.0.1:5432")
    assert output.decode() in str(finding["sentence"])
    assert finding["state"] == "closed"


@pytest.mark.parametrize(("share", "cause"), [(0.7, "busy"), (0.2, "server_error")])
def test_a_server_that_refuses_while_it_runs_a_script_is_busy(share: float, cause: str) -> None:
    """Redis, from five seconds on: the script may end before the errors do."""
    host = chain(b"500", b"500", b"BUSY", b"redis")
    for a, b, ran in ((0, 30, 0.1), (30, 35, share), (35, UNTIL, 0.1)):
        its = {"pid": DATABASE, "comm": b"redis-server", "interval_ns": S, "system_ns": 0}
        host.add("cpu_use", t_ns=times(a, b) + S, **its, user_ns=int(ran * S))
    (finding,) = latest(run(host, UNTIL))
    assert (finding["cause"], finding["culprit_pid"]) == (cause, DATABASE), finding["sentence"]


@pytest.mark.parametrize(
    ("output", "cause"), [(b"OOM", "resource_limit"), (b"READONLY", "failover"), (b"ERR", "server_error")]
)
def test_a_limiter_fails_because_its_server_answers_with_errors(output: bytes, cause: str) -> None:
    """Nobody polls the server, and most of its answers are well."""
    host = Host()
    for a, b in ((0, 30), (30, 33), (33, UNTIL)):
        host.rtt(a, b)
        host.server(a, b)
        failed: dict[str, Any] = {"result": code("limiter_decision", "result", "error")} if a == 30 else {}
        host.decisions(a, b, **failed)
        answers(host, a, b, APP_PID, REDIS, b"redis", n=200)
    answers(host, 30, 33, APP_PID, REDIS, b"redis", output, n=30)
    for finding in latest(run(host, UNTIL)):
        assert (finding["symptom"], finding["cause"]) == ("service_errors", cause), finding["sentence"]
        assert output.decode() in str(finding["sentence"])
    assert "limiter api" in str(finding["sentence"])


def test_what_was_answered_with_errors_all_the_time_is_no_news() -> None:
    host = chain(b"")
    answers(host, 0, UNTIL, CLIENT, PROXY_AT, b"http", b"500", n=20)
    assert latest(run(host, UNTIL)) == []


def test_where_all_else_stops_the_usual_errors_are_no_news() -> None:
    """A client that says more than its server knows gets an error each time that it connects."""
    host = Host()
    talks(host, APP, b"gunicorn", DATABASE_AT, DATABASE, b"redis-server", 5432)
    answers(host, 0, UNTIL, APP, DATABASE_AT, b"redis", b"ERR", n=10)
    answers(host, 0, 30, APP, DATABASE_AT, b"redis", n=80)
    answers(host, 35, UNTIL, APP, DATABASE_AT, b"redis", n=80)
    assert latest(run(host, UNTIL)) == []


def test_an_error_among_usual_ones_is_reported_as_what_it_is() -> None:
    host = Host()
    talks(host, APP, b"gunicorn", DATABASE_AT, DATABASE, b"redis-server", 5432)
    answers(host, 0, UNTIL, APP, DATABASE_AT, b"redis", b"ERR", n=10)
    answers(host, 0, UNTIL, APP, DATABASE_AT, b"redis", n=60)
    answers(host, 30, 35, APP, DATABASE_AT, b"redis", b"OOM", n=8)
    (finding,) = latest(run(host, UNTIL))
    assert (finding["cause"], finding["cause_detail"], finding["start_ns"]) == ("resource_limit", "memory", T0 + 29 * S)
    assert "(OOM)" in str(finding["sentence"])
    assert "ERR)" not in str(finding["sentence"])


def test_errors_in_answer_to_tickscope_impact_nobody() -> None:
    host = Host()
    answers(host, 0, UNTIL, APP, DATABASE_AT, b"redis", comm=b"gunicorn")
    answers(host, 0, 30, CLIENT, DATABASE_AT, b"redis", comm=b"tickscope-poll")
    answers(host, 30, UNTIL, CLIENT, DATABASE_AT, b"redis", b"ERR", comm=b"tickscope-poll")
    assert latest(run(host, UNTIL)) == []


def test_one_of_many_clients_that_fails_is_reported() -> None:
    """A twentieth of the answers, where no such error was known before."""
    host = chain(b"")
    answers(host, 30, 35, CLIENT, PROXY_AT, b"http", b"500", n=3)
    assert [f["symptom"] for f in latest(run(host, UNTIL))] == ["service_errors"]


def test_requests_that_a_proxy_gives_up_are_passed_on_to_whom_its_server_waits_for() -> None:
    """gunicorn waits for a database that stands still: one finding, of the database."""
    host = chain(b"504")
    t = times(30, 35)
    host.add(
        "tcp_close", len(t), t_ns=t + S // 2, **NGINX, peer=APP_AT, role="client", waited_ns=1_000_000_000, bytes_in=0
    )
    host.add(
        "slow_syscall", at=34, **GUNICORN, kind="waiting", peer=DATABASE_AT, syscall=b"recvfrom", duration_ns=4 * S
    )
    host.add(
        "process_event",
        2,
        at=np.array([30, 34]),
        pid=DATABASE,
        comm=b"postgres",
        kind=np.array([code("process_event", "kind", kind) for kind in ("stopped", "continued")]),
        signal=19,
        sender_pid=31,
        sender_comm=b"bash",
    )
    found = latest(run(host, UNTIL))
    assert {f["cause"] for f in found} == {"process_stopped"}
    assert {f["culprit_pid"] for f in found} == {DATABASE}
    assert len(found) == 1


@pytest.mark.parametrize("output", [b"MOVED", b"ERR unknown"])
def test_redirections_of_a_cluster_and_introductions_are_no_errors(output: bytes) -> None:
    assert latest(run(chain(b"", b"", output, b"redis"), UNTIL)) == []


def test_an_error_of_its_own_is_reported_as_such() -> None:
    (finding,) = latest(run(chain(b"503"), UNTIL))
    assert (finding["symptom"], finding["cause"], finding["culprit_pid"]) == ("service_errors", "server_error", PROXY)
    assert "HTTP 503" in str(finding["sentence"])
    assert "probably" in str(finding["sentence"])


def refused(errno: int = 111) -> Host:
    host = chain(b"502")
    t = times(30, 35)
    host.add("tcp_connect", t_ns=t, **NGINX, peer=APP_AT, result="failed", errno=errno, duration_ns=90_000)
    return host


def test_a_proxy_whose_server_refuses_is_not_to_blame() -> None:
    (finding,) = [f for f in latest(run(refused(), UNTIL)) if f["symptom"] == "service_errors"]
    assert (finding["cause"], finding["culprit_object"]) == ("broker_down", "127.0.0.1:8000")
    assert "refused" in str(finding["sentence"])


@pytest.mark.parametrize("direction", ["received", "sent"])
def test_a_proxy_whose_connections_are_reset_is_not_to_blame(direction: str) -> None:
    """Those that it resets itself are no failures."""
    host = chain(b"502")
    host.add("tcp_reset", t_ns=times(30, 35), **NGINX, peer=APP_AT, role="client", direction=direction)
    (finding,) = [f for f in latest(run(host, UNTIL)) if f["symptom"] == "service_errors"]
    was_reset = direction == "received"
    assert (finding["cause"], finding["cause_detail"] == "reset") == (
        "network_loss" if was_reset else "server_error",
        was_reset,
    )
    assert ("connections of nginx pid" in str(finding["sentence"])) == was_reset


@pytest.mark.parametrize("received", [0, 120, None])
def test_a_server_that_closes_without_an_answer_is_to_blame(received: int | None) -> None:
    """Connections that were closed after an answer, or of which nothing is known, are no failures."""
    host = chain(b"502", b"502")
    n = 40
    t = T0 + 30 * S + np.arange(n) * 100 * MS
    bytes_in = NULL_I64 if received is None else received
    its = {"peer": DATABASE_AT, "netns": NETNS, "role": "client", "bytes_in": bytes_in, "bytes_out": 80}
    host.add("tcp_close", n, t_ns=t, pid=APP, comm=b"gunicorn", **its)
    (finding,) = [f for f in latest(run(host, UNTIL)) if f["symptom"] == "service_errors"]
    closed = received == 0
    at = "127.0.0.1:5432" if closed else "127.0.0.1:8000"
    assert (finding["cause"], finding["culprit_object"], finding["cause_detail"] == "closed") == (
        "server_error",
        at,
        closed,
    )
    assert ("without an answer" in str(finding["sentence"])) == closed


def test_a_killed_server_behind_a_proxy_is_the_cause() -> None:
    host = refused()
    host.add(
        "process_event",
        t_ns=T0 + 30 * S - S // 100,
        pid=APP,
        comm=b"gunicorn",
        kind="killed",
        signal=9,
        sender_pid=31,
        sender_comm=b"bash",
    )
    found = latest(run(host, UNTIL))
    assert {f["cause"] for f in found} == {"process_killed"}
    assert {f["culprit_pid"] for f in found} == {APP}


def test_requests_that_a_proxy_gives_up_are_those_of_who_does_not_answer() -> None:
    host = chain(b"504")
    t = times(30, 35)
    host.add(
        "tcp_close",
        t_ns=t,
        **NGINX,
        peer=APP_AT,
        role="client",
        waited_ns=700_000_000 + 100_000_000 * np.arange(len(t)),
        bytes_in=0,
    )
    (finding,) = [f for f in latest(run(host, UNTIL)) if f["symptom"] == "service_errors"]
    assert (finding["cause"], finding["culprit_pid"]) == ("broker_slow", APP)


def test_the_errors_of_who_gives_up_are_followed_to_what_its_server_waited_for() -> None:
    """A session of the database waits for a lock that another process holds."""
    host = chain(b"502", b"500")
    t = times(30, 35)
    host.add(
        "tcp_close",
        len(t),
        t_ns=t + S // 2,
        pid=APP,
        comm=b"gunicorn",
        netns=NETNS,
        peer=DATABASE_AT,
        role="client",
        waited_ns=1_000_000_000,
        bytes_in=0,
    )
    its = {"kind": "waiting", "syscall": b"epoll_wait", "fd_type": b"", "duration_ns": 4900 * MS, "run_queue_ns": 0}
    by = {"waker_pid": 999, "waker_tid": 999, "waker_comm": b"vacuum"}
    host.add("slow_syscall", at=34.95, pid=DATABASE, tid=DATABASE, comm=b"postgres", **its, **by)
    found = latest(run(host, UNTIL))
    assert {(one["cause"], one["culprit_pid"]) for one in found} == {("process_wait", 999)}


def test_a_server_that_cannot_resolve_what_it_asks_is_reported_with_its_name_server() -> None:
    host, at = chain(b"502", b"502"), times(30, 35)
    host.add(
        "dns_lookup",
        t_ns=at,
        **GUNICORN,
        peer=peer("10.0.0.53", 53),
        name=b"db.internal",
        duration_ns=2 * S,
        tries=2,
        result="timeout",
    )
    found = [f for f in latest(run(host, UNTIL)) if f["symptom"] == "service_errors"]
    assert [(f["cause"], f["cause_detail"], f["culprit_object"]) for f in found] == [("dns", "timeout", "10.0.0.53:53")]


CONFIDENT, HEARSAY = 0.9, 0.8
SERVES, ASKS, ANOTHER = 26, 1001, 1002


@pytest.mark.parametrize(
    ("users", "confidence"),
    [((ASKS,), HEARSAY), ((ASKS, ANOTHER), CONFIDENT), ((0,), CONFIDENT), ((SERVES,), CONFIDENT)],
)
@pytest.mark.parametrize("output", [b"OOM", b"READONLY", b"LOADING"])
def test_nobody_alone_is_believed_what_a_server_of_somebody_else_answered(
    output: bytes, users: tuple[int, ...], confidence: float
) -> None:
    """A program can write an error into the memory that it has just read an answer into."""
    host = Host()
    talks(host, APP, b"gunicorn", DATABASE_AT, DATABASE, b"redis-server", 5432)
    t = times(0, UNTIL)
    host.add(
        "service_latency",
        t_ns=t,
        pid=DATABASE,
        comm=b"redis-server",
        netns=NETNS,
        sport=5432,
        saddr=DATABASE_AT[:16],
        requests=10,
        interval_ns=S,
        uid=SERVES,
    )
    answers(host, 0, UNTIL, APP, DATABASE_AT, b"redis", uid=ANOTHER)
    for pid, uid in enumerate(users, APP):
        answers(host, 30, 35, pid, DATABASE_AT, b"redis", output, uid=uid)
    (finding,) = latest(run(host, UNTIL))
    assert finding["confidence"] == HEARSAY if confidence == HEARSAY else finding["confidence"] >= confidence
    assert (f"reported only by programs of user {ASKS}" in str(finding["sentence"])) == (confidence == HEARSAY)


@pytest.mark.parametrize(("limit", "reported"), [(20.0, True), (60.0, False)])
def test_a_deployment_that_lowers_a_limit_is_no_restart(limit: float, reported: bool) -> None:
    """The new process takes the old one's place: its limit is compared with the one before."""
    host, again = chain(b""), APP + 1
    ended = {"pid": APP, "comm": b"gunicorn", "kind": "killed", "signal": 15}
    host.add("process_event", at=30.0, sender_pid=9, sender_comm=b"deploy", sender_is="other", **ended)
    old, new = ({"limiter": b"shop", "pid": pid, "comm": b"gunicorn"} for pid in (APP, again))
    host.decisions(0, 30, limit_per_s=60.0, **old)
    host.decisions(30.5, UNTIL, limit_per_s=limit, refused=0.6 * reported, **new)
    talks(host, PROXY, b"nginx", APP_AT, again, b"gunicorn", 8000)
    for who, to in ((CLIENT, PROXY_AT), (PROXY, APP_AT)) if reported else ():
        answers(host, 31, UNTIL, who, to, b"http", b"429", 30)
    found = latest(run(host, UNTIL))
    assert [one["cause"] for one in found] == ["config"] * reported, [one["sentence"] for one in found]
    assert ["its limit was lowered from 60 to 20 per second" in str(one["sentence"]) for one in found] == [
        True
    ] * reported, found
