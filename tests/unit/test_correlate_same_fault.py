"""One fault that is felt at many places is one finding with all its victims; two faults at once stay two."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from agent.columns import NULL_I64
from agent.correlate import inferred_waits
from tests.unit.correlate_scenarios import MS, T0, Host, S, call, code, latest, peer, run
from tests.unit.test_correlate_answers import PORT, SHOP_PID, answers, served
from tests.unit.test_correlate_processes import event

CLUSTER, AT = range(600, 612), 30.2  # the processes of a database
DATABASE = peer("10.0.0.2", 5432)
UNTIL = 60
SHOP = {"pid": SHOP_PID, "comm": b"shop", "netns": 1}


def cluster(host: Host, comm: bytes = b"postgres", pids: range = CLUSTER, port: int = 5432) -> Host:
    """Each of its processes serves clients."""
    for second in range(UNTIL):
        for pid in pids:
            host.add(
                "tcp_rtt",
                t_ns=T0 + second * S + pid,
                pid=pid,
                comm=comm,
                role="server",
                netns=1,
                saddr=DATABASE[:16],
                sport=port,
                peer=peer("10.0.0.3", 40000 + pid),
                cgroup_id=4711,
                rtt=(10, 40, 45, 50),
            )
    return host


def client(host: Host, pid: int = SHOP_PID, port: int = 5432, comm: bytes = b"shop") -> None:
    to = peer("10.0.0.2", port)
    for second in range(UNTIL):
        host.add(
            "tcp_rtt",
            t_ns=T0 + second * S + 7,
            pid=pid,
            comm=comm,
            role="client",
            netns=1,
            saddr=peer("10.0.0.3", 1)[:16],
            sport=40000 + pid,
            peer=to,
            rtt=(10, 40, 45, 50),
        )


def stop(host: Host, pids: range = CLUSTER, comm: bytes = b"postgres", at: float = AT, apart_s: float = 0.0005) -> None:
    for n, pid in enumerate(pids):
        event(host, "stopped", at + n * apart_s, pid=pid, comm=comm, signal=19)
        event(host, "continued", at + 5 + n * apart_s, pid=pid, comm=comm, signal=18)


def waits(host: Host, pid: int, port: int, comm: bytes, until: int = 36) -> None:
    """Who answers on a port as usual, and from ``AT`` on nothing any more; nothing tells why."""
    its = {"pid": pid, "tid": pid, "sport": port, "comm": comm}
    answers(host, 0, 30, **its)
    for second in range(31, until):
        begun = T0 + int((AT + 0.02) * S)
        served(
            host,
            second,
            requests=0,
            waiting=8,
            max_ns=T0 + second * S + 990 * MS - begun,
            max_from_ns=begun,
            p50_ns=NULL_I64,
            p90_ns=NULL_I64,
            **its,
        )
    answers(host, until, UNTIL, n=1, **its)


def reported(host: Host) -> list[dict[str, Any]]:
    return latest(run(host, UNTIL))


def test_one_signal_to_a_program_of_many_processes_is_one_finding() -> None:
    host = cluster(Host())
    stop(host)
    (found,) = reported(host)
    assert (found["cause"], found["culprit_pid"]) == ("process_stopped", 600)
    assert "(SIGSTOP from bash, pid 31). Also affected: 11 more processes of postgres" in found["sentence"]
    timeline = [entry["pid"] for entry in found["evidence"] if entry["what"] == "process_stopped"]
    assert sorted(timeline) == list(CLUSTER)


def test_two_programs_that_stop_at_once_are_two_findings() -> None:
    host = cluster(cluster(Host()), b"redis-server", range(900, 901), 6379)
    stop(host)
    stop(host, range(900, 901), b"redis-server")
    assert sorted(f["culprit_comm"] for f in reported(host)) == ["postgres", "redis-server"]


def test_processes_of_one_name_that_stop_one_after_the_other_are_as_many_faults() -> None:
    host = cluster(Host(), pids=range(600, 603))
    stop(host, range(600, 603), apart_s=0.4)
    assert len(reported(host)) == 3


@pytest.mark.parametrize("first", [600, 605])
def test_whose_end_takes_the_others_along_is_to_blame(first: int) -> None:
    """They end by themselves, since it is gone, and which of these rows is seen first does not matter."""
    host = cluster(Host())
    event(host, "killed", AT, pid=first, comm=b"postgres", signal=9)
    for n, pid in enumerate(pid for pid in CLUSTER if pid != first):
        event(
            host,
            "exited",
            AT + 0.002 + n / 10_000,
            pid=pid,
            comm=b"postgres",
            exit_code=1,
            signal=NULL_I64,
            sender_pid=NULL_I64,
            sender_comm=b"",
        )
    (found,) = reported(host)
    assert (found["cause"], found["cause_detail"], found["culprit_pid"]) == ("process_killed", "SIGKILL", first)
    assert "(SIGKILL from bash, pid 31)" in found["sentence"]


def test_a_process_that_crashes_and_others_that_its_master_ends() -> None:
    """As PostgreSQL does it: whoever shares memory with a backend that was killed is ended, too."""
    host = cluster(Host())
    event(host, "killed", AT, pid=604, comm=b"postgres", signal=9)
    for n, pid in enumerate(range(605, 610)):
        event(
            host,
            "killed",
            AT + 0.3 + n / 1000,
            pid=pid,
            comm=b"postgres",
            signal=3,
            sender_pid=600,
            sender_comm=b"postgres",
        )
    (found,) = reported(host)
    assert (found["culprit_pid"], found["cause_detail"]) == (604, "SIGKILL")


@pytest.mark.parametrize("parent", [31, 77])
def test_another_program_of_that_name_that_ended_just_before_is_not_to_blame(parent: int) -> None:
    """As one of a host's many "python": its parent is another one, unless it is a sibling."""
    host = cluster(Host(), b"python", range(600, 602))
    its = {"comm": b"python", "sender_pid": NULL_I64, "sender_comm": b"", "signal": NULL_I64}
    event(host, "exited", AT - 0.05, pid=600, parent_pid=parent, exit_code=3, **its)
    event(host, "killed", AT, pid=601, comm=b"python", parent_pid=31, signal=9, sender_pid=31, sender_comm=b"python")
    by_pid = {int(str(one["culprit_pid"])): str(one["sentence"]) for one in reported(host)}
    assert set(by_pid) == ({600} if parent == 31 else {600, 601})
    assert ("python pid 601" in by_pid[600]) == (parent == 31)


def test_who_ends_in_order_takes_nobody_along() -> None:
    host = cluster(Host())
    event(
        host,
        "exited",
        AT,
        pid=601,
        comm=b"postgres",
        exit_code=0,
        signal=NULL_I64,
        sender_pid=NULL_I64,
        sender_comm=b"",
    )
    event(
        host,
        "exited",
        AT + 0.1,
        pid=604,
        comm=b"postgres",
        exit_code=3,
        signal=NULL_I64,
        sender_pid=NULL_I64,
        sender_comm=b"",
    )
    (found,) = reported(host)
    assert (found["culprit_pid"], "more of its program" in found["sentence"]) == (604, False)


def test_clients_of_who_stands_still_and_clients_of_these_are_its_victims() -> None:
    """Nothing but who talks with whom tells why they are late."""
    host = cluster(Host())
    stop(host)
    client(host)
    client(host, 1800, PORT, b"front")
    cluster(host, b"shop", range(SHOP_PID, SHOP_PID + 1), PORT)
    waits(host, SHOP_PID, PORT, b"shop")
    waits(host, 1800, 8081, b"front")
    (found,) = reported(host)
    assert found["cause"] == "process_stopped"
    assert "front pid 1800 on port 8081" in found["sentence"].lower()
    assert "shop pid 1700 on port 8080" in found["sentence"].lower()


@pytest.mark.parametrize("peers", [32, 1000])
def test_a_process_with_peers_that_are_not_compared_counts_once_a_second(
    monkeypatch: pytest.MonkeyPatch, peers: int
) -> None:
    monkeypatch.setattr(inferred_waits, "_PEERS", peers)
    host, losses = cluster(Host()), [0]
    stop(host)
    for port in range(5432, 5432 + 261):
        client(host, port=port)
    waits(host, SHOP_PID, PORT, b"shop")
    run(host, 45, each=lambda correlator: losses.append(correlator.losses()["subjects"]))
    assert {after - before for before, after in pairwise(losses)} == {0, 1}


def test_who_is_late_and_talks_with_nobody_that_stands_still_is_another_fault() -> None:
    host = cluster(Host())
    stop(host)
    waits(host, SHOP_PID, PORT, b"shop")
    assert sorted(f["cause"] for f in reported(host)) == ["process_stopped", "unknown"]


def test_who_was_late_before_it_is_another_fault() -> None:
    host = cluster(Host())
    stop(host, at=AT + 4)
    client(host)
    waits(host, SHOP_PID, PORT, b"shop", until=33)
    assert sorted(f["cause"] for f in reported(host)) == ["process_stopped", "unknown"]


def refused(host: Host, a: float, b: float) -> None:
    n = int((b - a) * 20)
    host.add(
        "tcp_connect",
        n,
        t_ns=[T0 + int((a + i / 20) * S) for i in range(n)],
        **SHOP,
        peer=DATABASE,
        result="failed",
        errno=111,
        duration_ns=40_000,
    )


def connects(host: Host, a: float, b: float) -> None:
    n = int((b - a) * 20)
    host.add(
        "tcp_connect",
        n,
        t_ns=[T0 + int((a + i / 20) * S) for i in range(n)],
        **SHOP,
        peer=DATABASE,
        result="ok",
        errno=0,
        duration_ns=90_000,
    )


def test_connects_that_a_server_refuses_that_was_killed_are_the_same_fault() -> None:
    host = cluster(Host(), pids=range(600, 601))
    client(host)
    connects(host, 0, AT)
    event(host, "killed", AT, pid=600, comm=b"postgres", signal=9)
    refused(host, AT + 0.01, AT + 4)
    connects(host, AT + 4, UNTIL)
    (found,) = reported(host)
    assert (found["cause"], found["culprit_pid"]) == ("process_killed", 600)
    assert "10.0.0.2:5432" in found["sentence"]


def test_connects_that_another_server_refuses_are_another_fault() -> None:
    host = cluster(cluster(Host(), pids=range(600, 601)), b"redis-server", range(900, 901), 6379)
    connects(host, 0, AT)
    event(host, "killed", AT, pid=900, comm=b"redis-server", signal=9)
    refused(host, AT + 0.01, AT + 4)
    connects(host, AT + 4, UNTIL)
    assert sorted(f["cause"] for f in reported(host)) == ["broker_down", "process_killed"]


def test_who_was_taken_for_the_victim_of_one_fault_moves_when_it_is_seen_to_be_that_of_another() -> None:
    """It talks with both that stand still; the end of its wait tells for whom it waited."""
    host = cluster(cluster(Host()), b"redis-server", range(900, 901), 6379)
    stop(host, range(900, 901), b"redis-server", at=AT - 0.1)
    stop(host)
    client(host)
    client(host, port=6379)
    waits(host, SHOP_PID, PORT, b"shop")
    begun, took = T0 + int((AT + 0.02) * S), int(4.89 * S)
    call(
        host,
        t_ns=begun + took,
        duration_ns=took,
        pid=SHOP_PID,
        tid=SHOP_PID,
        comm=b"shop",
        kind=code("slow_syscall", "kind", "waiting"),
        syscall=b"recvfrom",
        fd_type=b"socket",
        peer=peer("10.0.0.2", 6379),
    )
    served(
        host,
        36,
        requests=5,
        max_ns=took,
        max_from_ns=begun,
        p50_ns=took,
        p90_ns=took,
        pid=SHOP_PID,
        tid=SHOP_PID,
        sport=PORT,
        comm=b"shop",
    )
    found = {f["culprit_comm"]: f["sentence"].lower() for f in reported(host)}
    assert ["shop pid 1700" in found[comm] for comm in ("redis-server", "postgres")] == [True, False]
    assert len(found) == 2


def test_words_that_report_it_are_of_who_stood_still() -> None:
    host = cluster(Host(), pids=range(600, 601))
    stop(host, range(600, 601))
    client(host)
    waits(host, SHOP_PID, PORT, b"shop")
    (found,) = reported(host)
    assert found["subject"] == "shop pid 1700 on port 8080"
    assert "because postgres pid 600 was stopped for 5 s (SIGSTOP from bash, pid 31)" in found["sentence"]
