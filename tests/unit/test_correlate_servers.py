"""Who serves an address: told apart by network namespace, forgotten with age, and never guessed."""

from __future__ import annotations

import numpy as np
import pytest

from agent.batch import make
from agent.columns import NULL_I64
from agent.correlate.local import Servers, is_loopback
from agent.correlate.rows import compact
from agent.correlate.thresholds import CorrelatorConfig
from tests.unit.correlate_scenarios import MS, REDIS, START, T0, UNTIL, US, Host, S, code, latest, peer, run

A, B = 4026531840, 4026532999
LOOPBACK = peer("127.0.0.1", 6379)
CLIENTS = {A: 4001, B: 4002}
SERVERS = {A: 901, B: 902}


def rows(*known: tuple[int, bytes, int, int], t_ns: int = T0) -> np.ndarray:
    """(netns, peer that is served, pid, seconds later)."""
    made = make("tcp_rtt", len(known), comm=b"redis-server")
    for row, (netns, served, pid, later) in zip(made.rows, known, strict=True):
        row["netns"], row["pid"], row["t_ns"] = netns, pid, t_ns + later * S
        row["saddr"], row["sport"] = np.frombuffer(served[:16], "V16")[0], int.from_bytes(served[16:], "little")
    return compact("tcp_rtt", made.rows)


def pid_of(servers: Servers, served: bytes, netns: int | None, own: bool = False) -> int | None:
    found = servers.find(served, netns, own)
    return found[1] if found else None


def test_loopback_is_served_from_within() -> None:
    servers = Servers(10, 600 * S)
    servers.learn(rows((A, LOOPBACK, 901, 0), (B, LOOPBACK, 902, 0)))
    assert [pid_of(servers, LOOPBACK, n) for n in (A, B, 7, None)] == [901, 902, None, None]
    assert pid_of(servers, peer("127.0.0.1", 6380), A) is None
    servers.learn(rows((B, peer("0.0.0.0", 80), 903, 0)))
    assert [pid_of(servers, peer("127.0.0.2", 80), n) for n in (A, B)] == [None, 903]
    assert is_loopback(bytes(15) + b"\1") and is_loopback(LOOPBACK) and not is_loopback(peer("10.0.0.1", 1))


def test_another_address_is_served_by_who_has_it_wherever() -> None:
    web = peer("10.0.0.2", 80)
    servers = Servers(10, 600 * S)
    servers.learn(rows((B, web, 902, 0), (A, peer("0.0.0.0", 80), 901, 0)))
    assert [pid_of(servers, web, n) for n in (A, B, None)] == [902] * 3
    servers.learn(rows((7, web, 903, 0)))  # two networks that do not know one another
    assert [pid_of(servers, web, n) for n in (A, B, 7, None)] == [None, 902, 903, None]
    own = peer("10.9.9.9", 80)
    assert [pid_of(servers, own, A, own=mine) for mine in (False, True)] == [None, 901]


def test_who_is_not_seen_for_long_is_forgotten_and_who_is_too_many_is_counted() -> None:
    servers = Servers(100, 600 * S)
    servers.learn(rows(*((A, peer("127.0.0.1", port), port, 0) for port in range(1, 101))))
    servers.learn(rows((A, peer("127.0.0.1", 1), 1, 500)))
    servers.learn(rows((A, peer("127.0.0.1", 200), 200, 601)))
    assert (len(servers), servers.dropped) == (2, 0)
    assert [pid_of(servers, peer("127.0.0.1", port), A) for port in (1, 2, 200)] == [1, None, 200]
    for port in range(1000, 11_000):
        servers.learn(rows((A, peer("127.0.0.1", port), port, 700)))
    assert (len(servers), servers.dropped) == (100, 9_902)
    assert pid_of(servers, peer("127.0.0.1", 10_999), A) == 10_999
    assert len(servers._netns) == 100


def test_a_port_that_another_process_has_now_is_its_own() -> None:
    servers = Servers(10, 600 * S)
    servers.learn(rows((A, LOOPBACK, 901, 0), (A, LOOPBACK, 905, 1)))
    assert pid_of(servers, LOOPBACK, A) == 905


def containers(stalled: tuple[int, ...], slow_rtt: int | None = None) -> Host:
    """Two containers, each with its Redis at 127.0.0.1:6379 and a program that asks it; some of them stall for 1.4 s."""
    host = Host()
    for netns, pid in CLIENTS.items():
        t = T0 + np.arange(0, UNTIL) * S
        us = np.where((netns == slow_rtt) & (t >= T0 + 30 * S) & (t <= T0 + 32 * S), 1_300_000, 45)
        to = np.frombuffer(LOOPBACK, "V18")
        host.decisions(0, 30, pid=pid)
        host.add(
            "tcp_rtt",
            len(t),
            t_ns=t,
            pid=pid,
            proc_start_ns=START,
            netns=netns,
            role=code("tcp_rtt", "role", "client"),
            peer=to,
            samples=10,
            rtt_sum_us=us * 10,
            rtt_min_us=us,
            rtt_max_us=us,
            srtt_us=us,
        )
        served = np.frombuffer(LOOPBACK[:16], "V16")
        host.add(
            "tcp_rtt",
            len(t),
            t_ns=t,
            pid=SERVERS[netns],
            proc_start_ns=START,
            netns=netns,
            comm=b"redis-server",
            saddr=served,
            sport=6379,
            role=code("tcp_rtt", "role", "server"),
            peer=np.frombuffer(peer("127.0.0.1", 40_000), "V18"),
            samples=10,
            rtt_sum_us=450,
            rtt_max_us=50,
            rtt_min_us=40,
            srtt_us=45,
        )
        if netns in stalled:
            end = T0 + int(31.4 * S)
            host.add(
                "limiter_decision",
                1,
                t_ns=end,
                pid=pid,
                tid=pid,
                proc_start_ns=START,
                comm=b"app",
                limiter_id=b"api",
                cost=1.0,
                result=0,
                duration_ns=1400 * MS,
            )
            host.add(
                "slow_syscall",
                1,
                t_ns=end - 20 * US,
                pid=pid,
                tid=pid,
                proc_start_ns=START,
                kind=code("slow_syscall", "kind", "waiting"),
                peer=to,
                syscall=b"recvfrom",
                fd_type=b"socket",
                duration_ns=1399 * MS,
                blocked_ns=1399 * MS,
                run_queue_ns=0,
            )
        host.decisions(31.4, UNTIL, pid=pid)
    return host


@pytest.mark.parametrize("netns", [A, B])
def test_a_stall_names_the_server_of_its_own_container(netns: int) -> None:
    (found,) = latest(run(containers((netns,)), UNTIL))
    assert found["cause"] == "broker_slow"
    assert f"redis-server (pid {SERVERS[netns]}) at 127.0.0.1:6379" in str(found["sentence"])


def test_two_servers_of_one_address_are_two_findings() -> None:
    found = latest(run(containers((A, B)), UNTIL))
    assert [f["cause"] for f in found] == ["broker_slow"] * 2
    assert {pid for pid in SERVERS.values() if any(f"pid {pid})" in str(f["sentence"]) for f in found)} == {901, 902}


def test_the_rtt_of_another_container_is_no_evidence() -> None:
    (found,) = latest(run(containers((A,), slow_rtt=B), UNTIL))
    assert found["cause"] == "broker_slow"
    (found,) = latest(run(containers((A,), slow_rtt=A), UNTIL))
    assert found["cause"] == "network_rtt"


def test_segments_that_another_container_sent_again_are_none_of_this_one() -> None:
    for netns, cause in ((A, "network_loss"), (B, "broker_slow")):
        host = containers((A,))
        host.add(
            "tcp_retransmit",
            3,
            t_ns=T0 + 30 * S + np.array([300, 600, 1200]) * MS,
            pid=CLIENTS[netns],
            proc_start_ns=START,
            netns=netns,
            peer=np.frombuffer(LOOPBACK, "V18"),
            kind=0,
            count=1,
        )
        (found,) = latest(run(host, UNTIL))
        assert found["cause"] == cause


def test_too_many_servers_are_told() -> None:
    from agent.correlate.correlator import Correlator

    correlator = Correlator(CorrelatorConfig(servers=3))
    host = containers(())
    for table, made in host.made:
        if table == "tcp_rtt":
            made = made.copy()
            made["sport"] = np.where(made["sport"] > 0, np.arange(len(made)) + 1, NULL_I64)
            correlator.feed(type(host.made[0])(table, made))
    correlator.advance(T0 + UNTIL * S)
    assert correlator.losses()["servers"] == 2 * UNTIL - 3


def test_who_served_an_address_before_is_remembered_for_a_while() -> None:
    servers = Servers(limit=8, age_ns=600 * S)
    host = Host(1)
    for n, pid in enumerate((900, 901, 900, 902, 903, 904, 905)):
        host.server(n, n + 1)
        host.made[-1].rows["pid"] = pid
        servers.learn(host.made[-1].rows)
    assert [pid for _, pid in servers.of_late(REDIS, None, True)] == [905, 904, 903, 902, 900]
    assert servers.find(REDIS, None, True) == ("redis-server", 905)
    assert servers.of_late(REDIS[:16] + b"\x01\x00", None, True) == []


def test_who_served_an_address_long_ago_is_its_server_no_more() -> None:
    """His number may be another's."""
    servers = Servers(limit=8, age_ns=600 * S)
    for at, pid in ((0, 900), (1, 901), (170, 901), (200, 901)):
        host = Host(1)
        host.server(at, at + 1)
        host.made[-1].rows["pid"] = pid
        servers.learn(host.made[-1].rows)
        late = [pid for _, pid in servers.of_late(REDIS, None, True)]
        assert late == ([pid] if at in (0, 200) else [901, 900])


def test_a_redis_that_is_asked_by_two_addresses_is_one() -> None:
    other, pid = peer("10.0.0.1", 6399), 5151

    def asked(host: Host, a: float, b: float) -> None:
        for part in (host.decisions, host.rtt, host.server, host.accept, host.web):
            part(a, b)
        host.decisions(a, b, limiter=b"two", pid=pid)
        host.rtt(a, b, to=other, pid=pid)
        t = T0 + (np.arange(a, b) * S).astype(np.int64)
        host.add("tcp_rtt", len(t), t_ns=t, pid=900, proc_start_ns=START, comm=b"redis-server", role=code("tcp_rtt", "role", "server"), sport=6399,
                 saddr=np.frombuffer(other[:16], "V16"), peer=np.frombuffer(peer("10.0.0.1", 41000), "V18"), samples=10, rtt_sum_us=450, rtt_max_us=50, rtt_min_us=40, srtt_us=45)  # fmt: skip

    host, end = Host(), T0 + int(31.4 * S)
    asked(host, 0, 30)
    host.stalled_decision(31.4, 1.4)
    host.add("limiter_decision", 1, t_ns=end, pid=pid, tid=pid, proc_start_ns=START, comm=b"python3", limiter_id=b"two", library=b"own", cost=1.0, result=0, duration_ns=int(1.4 * S))  # fmt: skip
    host.add("slow_syscall", 1, t_ns=end - 20 * US, pid=pid, tid=pid, proc_start_ns=START, comm=b"python3", kind=code("slow_syscall", "kind", "waiting"),
             peer=np.frombuffer(other, "V18"), syscall=b"recvfrom", fd_type=b"socket", duration_ns=int(1.4 * S) - 50 * US, blocked_ns=int(1.4 * S) - 60 * US, run_queue_ns=10 * US, sock_id=78)  # fmt: skip
    asked(host, 31.4, UNTIL)
    (one,) = latest(run(host, UNTIL))
    assert one["cause"] == "broker_slow"
    assert "limiter two (python3 pid 5151)" in str(one["sentence"])
