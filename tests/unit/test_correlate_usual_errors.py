"""Servers that answer with errors, on hosts where something fails all the time as well: what is usual is not to blame,
and hides nobody.
"""

from __future__ import annotations

import errno

import numpy as np
import pytest

from agent.batch import make
from agent.common.sentence import plain
from agent.correlate import external_ends
from agent.correlate.episode import Episode
from agent.correlate.finding import Finding
from agent.correlate.rows import OfSecond
from agent.correlate.services import ServiceWatch
from agent.correlate.thresholds import CorrelatorConfig
from agent.correlate.words import pieces
from tests.unit.correlate_scenarios import PEER, REDIS, START, T0, UNTIL, Host, S, code, latest, peer, run
from tests.unit.test_correlate_answered import (
    APP,
    APP_AT,
    CLIENT,
    DATABASE,
    DATABASE_AT,
    NETNS,
    PROXY,
    PROXY_AT,
    answers,
    chain,
    refused,
    talks,
    times,
)

CACHE, CACHE_AT, FAR_AT = 740, REDIS, peer("10.0.0.5", 80)
NGINX = {"pid": PROXY, "comm": b"nginx", "netns": NETNS}
GUNICORN = {"pid": APP, "tid": APP, "comm": b"gunicorn"}


def failing(host: Host) -> dict[str, object]:
    (finding,) = [f for f in latest(run(host, UNTIL)) if f["symptom"] == "service_errors"]
    return finding


def given_up(host: Host, a: float, b: float) -> None:
    """By a proxy, each second."""
    t = times(a, b)
    host.add("tcp_close", t_ns=t, **NGINX, peer=APP_AT, role="client", waited_ns=700_000_000, bytes_in=0)


def test_many_usual_errors_of_one_server_do_not_hide_another() -> None:
    host = chain(b"500", b"500", b"53300")
    answers(host, 0, UNTIL, APP, CACHE_AT, b"redis", b"ERR", n=90)
    answers(host, 0, UNTIL, APP, CACHE_AT, b"redis", n=10)
    found = failing(host)
    assert (found["cause"], found["culprit_object"]) == ("resource_limit", "127.0.0.1:5432")


def test_who_is_refused_all_the_time_is_not_why() -> None:
    """A collector of traces that is not there, asked for each second."""
    host, t = chain(b"503"), times(0, UNTIL)
    host.add(
        "tcp_connect",
        t_ns=t,
        **NGINX,
        peer=peer("127.0.0.1", 4317),
        result="failed",
        errno=errno.ECONNREFUSED,
        duration_ns=90_000,
    )
    found = failing(host)
    assert (found["cause"], found["culprit_pid"]) == ("server_error", PROXY)
    assert "fail no more than usual" in str(found["sentence"])


def test_who_is_given_up_all_the_time_is_not_why() -> None:
    host = chain(b"503")
    given_up(host, 0, UNTIL)
    found = failing(host)
    assert (found["cause"], found["culprit_pid"]) == ("server_error", PROXY)


@pytest.mark.parametrize("usual", [True, False])
def test_who_asks_for_names_that_there_are_not_all_the_time_does_not_fail_by_it(usual: bool) -> None:
    """As where a list of domains is tried out, or a list of bad hosts asked."""
    host, t = chain(b"503"), times(0 if usual else 30, 35)
    host.add(
        "dns_lookup",
        t_ns=t,
        pid=PROXY,
        tid=PROXY,
        comm=b"nginx",
        peer=peer("10.0.0.53", 53),
        name=b"app.shop.svc.cluster.local",
        duration_ns=900_000,
        tries=1,
        result="nxdomain",
    )
    assert failing(host)["cause"] == ("server_error" if usual else "dns")


@pytest.mark.parametrize("usual", [True, False])
def test_who_is_waited_for_all_the_time_is_not_why(usual: bool) -> None:
    """Workers wait for jobs, in a call that blocks for a second."""
    host = chain(b"504")
    talks(host, APP, b"gunicorn", CACHE_AT, CACHE, b"redis-server", 6399)
    given_up(host, 30, 35)
    t = times(0 if usual else 30, 35)
    host.add("slow_syscall", t_ns=t, **GUNICORN, kind="waiting", peer=PEER, syscall=b"recvfrom", duration_ns=S)
    found = failing(host)
    assert (found["cause"], found["culprit_pid"]) == ("broker_slow", APP if usual else CACHE)
    output = "did not answer 5 requests" if usual else "kept 5 calls of gunicorn pid 720 at 127.0.0.1:8000 waiting"
    assert output in str(found["sentence"])


def test_what_a_server_reports_of_itself_is_no_more_than_was_seen() -> None:
    host = Host()
    answers(host, 0, 30, CLIENT, FAR_AT, b"http")
    answers(host, 30, 35, CLIENT, FAR_AT, b"http", b"503")
    answers(host, 35, UNTIL, CLIENT, FAR_AT, b"http")
    assert "(HTTP 503); the servers that it calls are not visible from here" in str(failing(host)["sentence"])
    assert "fail no more than usual" not in str(failing(refused())["causes"])


def test_a_client_without_a_port_is_not_refused() -> None:
    found = failing(refused(errno.EADDRNOTAVAIL))
    assert (found["cause"], found["cause_detail"]) == ("resource_limit", "ports")
    assert "no local port was left for 5 connections to 127.0.0.1:8000" in str(found["sentence"])


@pytest.mark.parametrize("others", [True, False])
def test_one_of_several_that_ends_in_order_is_not_why(others: bool) -> None:
    """A database with a process for each client, one of which leaves."""
    host, left = chain(b"500", b"500", b"53300"), 731
    t = times(0, 31) + S // 10
    host.add(
        "tcp_rtt",
        t_ns=t,
        pid=left,
        comm=b"postgres",
        role="server",
        netns=NETNS,
        sport=5432,
        saddr=DATABASE_AT[:16],
        peer=peer("127.0.0.1", 40001),
        rtt=(10, 30, 40, 50),
    )
    host.add(
        "process_event",
        t_ns=T0 + 31 * S + S // 2,
        pid=left if others else DATABASE,
        comm=b"postgres",
        kind="exited",
        exit_code=0 if others else 1,
    )
    found = failing(host)
    assert (found["cause"] == "resource_limit") is others


def test_the_share_that_is_reported_is_of_the_error_that_is_reported() -> None:
    host = chain(b"")
    answers(host, 30, 32, CLIENT, PROXY_AT, b"http", b"502", n=15)
    answers(host, 32, 35, CLIENT, PROXY_AT, b"http", b"503", n=180)
    assert "Up to 90 % of the answers of the server at 127.0.0.1:8080 were errors (HTTP 503)" in str(
        failing(host)["sentence"]
    )


@pytest.mark.parametrize(
    ("protocol", "output"), [(b"postgresql", b"23505"), (b"postgresql", b"40001"), (b"mysql", b"1062")]
)
def test_what_programs_provoke_on_purpose_is_no_fault(protocol: bytes, output: bytes) -> None:
    """A job begins that inserts each row, and looks whether it was there already."""
    host = Host()
    talks(host, APP, b"gunicorn", DATABASE_AT, DATABASE, b"postgres", 5432)
    answers(host, 0, UNTIL, APP, DATABASE_AT, protocol, n=40)
    answers(host, 30, UNTIL, APP, DATABASE_AT, protocol, output, n=40)
    assert latest(run(host, UNTIL)) == []


def test_who_talks_with_many_servers_of_his_own_takes_no_limiter_s_place() -> None:
    watch = ServiceWatch(CorrelatorConfig(subjects=4))
    mine = make("service_answer", 50, t_ns=T0, netns=NETNS, protocol=b"http", count=1).rows
    mine["peer"] = [np.frombuffer(peer("127.0.0.1", 9000 + n), "V18")[0] for n in range(50)]
    watch.step(T0 // S, OfSecond({"service_answer": mine}))
    assert watch.series.dropped == 46
    decided = make("limiter_decision", 1, t_ns=T0, limiter_id=b"api", pid=7, proc_start_ns=START, result=0).rows
    assert len(watch.fill(T0 // S, OfSecond({"limiter_decision": decided}))) == 1


@pytest.mark.parametrize("home", [NETNS, 1])
def test_what_is_polled_on_this_host_s_loopback_is_not_a_container_s(home: int) -> None:
    host = Host()
    talks(host, APP, b"gunicorn", CACHE_AT, CACHE, b"redis-server", 6399)
    t = times(0, UNTIL)
    host.add("socket_queue", t_ns=t, pid=1, comm=b"sshd", kind="accept", netns=home, sport=22, limit=99, queue=0)
    answers(host, 0, 30, APP, CACHE_AT, b"redis")
    answers(host, 30, 35, APP, CACHE_AT, b"redis", b"ERR")
    answers(host, 35, UNTIL, APP, CACHE_AT, b"redis")
    host.queue(0, 30)
    host.queue(30, 35, lag=-(2**63), age=np.nan, errors=b"OOM 9", memory_bytes=99, memory_limit_bytes=99)
    host.queue(35, UNTIL)
    causes = {f["cause"] for f in latest(run(host, UNTIL))}
    assert causes == ({"resource_limit"} if home == NETNS else {"resource_limit", "server_error"})


def test_an_end_of_one_whose_start_is_not_known_is_no_brief_one() -> None:
    rows = make(
        "process_event",
        1,
        t_ns=T0,
        pid=7,
        kind=code("process_event", "kind", "killed"),
        sender_is=code("process_event", "sender_is", "parent"),
        signal=9,
    ).rows
    with np.errstate(over="raise"):
        assert not external_ends.brief(rows[0])


def test_processes_that_ended_together_are_counted_though_one_was_late_too() -> None:
    def one(symptom: str, pid: int, subject: str = "") -> Episode:
        return Episode(symptom, (pid, 1), 0, subject or f"worker pid {pid}", "", pid=pid, comm="worker")

    limiter, late = one("service_errors", 9, "limiter api (worker pid 9)"), one("blocked_time", 1)
    limiter.metric = "share"
    its = [limiter, late, *(one("process_gone", n) for n in (1, 2, 3))]
    output = plain(pieces(Finding(0, 0, 0, episodes=its, verdicts={id(e): [] for e in its}).sentence()))
    assert output.endswith("Also affected: 3 more processes of worker.")
