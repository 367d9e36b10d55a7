"""A service that waits for all its connections at once (epoll), so that no wait names a peer: who kept it waiting is
known by who serves, and by the network.
"""

from __future__ import annotations

import struct

import numpy as np
import pytest

from agent.columns import NULL_I64
from agent.common.address import UNIX
from agent.correlate.correlator import Correlator
from tests.unit.correlate_scenarios import MS, START, T0, UNTIL, Host, S, latest, peer, run
from tests.unit.test_correlate_answers import PORT, SHOP_PID, answers, served

CACHE_PID, DB_PID, WEB_PID = 1801, 1802, 1803
CACHE, DB, FAR = peer("127.0.0.1", 6379), peer("127.0.0.1", 5432), peer("10.9.0.2", 6379)
BEGUN = T0 + 30 * S
SHOP = {"pid": SHOP_PID, "netns": 1}
REDIS_SERVER = {"pid": CACHE_PID, "tid": CACHE_PID, "comm": b"redis-server"}


def talks(host: Host, pid: int, to: bytes, us: int = 50, a: int = 0, b: int = UNTIL) -> None:
    """A process asks a peer over one old connection."""
    t = T0 + np.arange(a, b) * S + 500 * MS
    host.add(
        "tcp_rtt",
        t_ns=t,
        pid=pid,
        comm=b"asker",
        netns=1,
        role="client",
        peer=to,
        rtt=(10, us, us, us + 5),
        sock_id=5,
        interval_ns=S,
    )


def listens(host: Host, pid: int, port: int, comm: bytes) -> None:
    t = T0 + np.arange(UNTIL) * S
    host.add("socket_queue", t_ns=t, pid=pid, comm=comm, netns=1, sport=port, saddr=np.zeros(1, "V16"), kind="accept")


def slow(host: Host, pid: int, port: int, comm: bytes, slow_ms: int = 3000, usual_ms: float = 8) -> None:
    """One that answers as usual, but nothing from 30.0 on, and then all that waited."""
    own = {"pid": pid, "tid": pid, "comm": comm, "sport": port}
    listens(host, pid, port, comm)
    answers(host, 0, 30, ms=usual_ms, sum_ns=40 * int(usual_ms * MS), n=port, **own)
    for second in range(30, 30 + slow_ms // 1000):
        served(
            host,
            second,
            requests=0,
            waiting=6,
            max_ns=(second - 29) * 990 * MS,
            max_from_ns=BEGUN,
            sum_ns=0,
            p50_ns=0,
            p90_ns=0,
            **own,
        )
    last = 30 + slow_ms // 1000
    served(
        host,
        last,
        requests=100,
        waiting=0,
        max_ns=slow_ms * MS,
        max_from_ns=BEGUN,
        sum_ns=100 * slow_ms // 2 * MS,
        p50_ns=slow_ms // 2 * MS,
        p90_ns=slow_ms * MS,
        **own,
    )
    answers(host, last + 1, UNTIL, ms=usual_ms, sum_ns=40 * int(usual_ms * MS), n=port + 1, **own)


def well(host: Host, pid: int, port: int, comm: bytes) -> None:
    listens(host, pid, port, comm)
    answers(host, 0, UNTIL, n=port, pid=pid, tid=pid, comm=comm, sport=port, sum_ns=320 * MS)


def shop(cache_slow: bool = True) -> Host:
    """It asks a cache and a database."""
    host = Host()
    slow(host, SHOP_PID, PORT, b"shop")
    well(host, DB_PID, 5432, b"postgres")
    (slow if cache_slow else well)(host, CACHE_PID, 6379, b"redis-server")
    for to in (CACHE, DB):
        talks(host, SHOP_PID, to)
    return host


def reported(host: Host) -> list[dict[str, object]]:
    return latest(run(host, UNTIL))


def of_shop(host: Host) -> dict[str, object]:
    (one,) = [one for one in reported(host) if "port 8080" in str(one["sentence"])]
    return one


def test_the_one_of_its_peers_that_answered_late_is_meant() -> None:
    one = of_shop(shop())
    assert one["cause"] == "broker_slow"
    assert "redis-server pid 1801 at 127.0.0.1:6379 did not answer for 3 s" in str(one["sentence"])


@pytest.mark.parametrize(("each_ms", "cause"), [(800, "broker_slow"), (300, "unknown")])
def test_requests_that_queue_for_one_connection_wait_for_late_answers_in_a_row(each_ms: int, cause: str) -> None:
    """No answer of the cache takes nearly as long as one of the shop."""
    host = Host()
    slow(host, SHOP_PID, PORT, b"shop")
    listens(host, CACHE_PID, 6379, b"redis-server")
    its = {**REDIS_SERVER, "sport": 6379}
    answers(host, 0, 30, n=6379, sum_ns=40 * MS, **its)
    for second in (30, 31, 32):
        begun = T0 + second * S + (900 - each_ms) * MS
        served(host, second, requests=1, max_ns=each_ms * MS, max_from_ns=begun, sum_ns=each_ms * MS, **its)
    answers(host, 33, UNTIL, n=6380, sum_ns=40 * MS, **its)
    talks(host, SHOP_PID, CACHE)
    one = of_shop(host)
    assert one["cause"] == cause
    assert ("did not answer for 800 ms" in str(one["sentence"])) == (cause == "broker_slow")


def test_peers_that_are_not_considered_are_counted() -> None:
    host, losses = shop(), [0]

    def see(correlator: Correlator) -> None:
        losses.append(correlator.losses()["subjects"])

    run(host, UNTIL, each=see)
    assert losses[-1] == 0
    for n in range(40):
        talks(host, SHOP_PID, peer("127.0.0.1", 7000 + n), b=40)
    run(host, UNTIL, each=see)
    assert 0 < losses[-1] < 15  # seconds in which peers of the late process were left out


def test_without_a_late_peer_no_cause_is_known() -> None:
    assert of_shop(shop(cache_slow=False))["cause"] == "unknown"


def test_a_peer_that_was_stopped_is_one_finding_with_all_that_waited_for_it() -> None:
    """Also those that asked who asked it: web, shop, cache."""
    host = shop()
    slow(host, WEB_PID, 80, b"nginx")
    talks(host, WEB_PID, peer("127.0.0.1", PORT))
    for at, kind in ((30.0, "stopped"), (33.0, "continued")):
        host.add("process_event", at=at, **REDIS_SERVER, kind=kind, signal=19, sender_pid=77, sender_comm=b"kill")
    (one,) = reported(host)
    assert (one["cause"], one["culprit_pid"]) == ("process_stopped", CACHE_PID)
    for who in ("shop pid 1700 on port 8080", "nginx pid 1803 on port 80", "redis-server pid 1801"):
        assert who in str(one["sentence"]).lower()


def test_who_asked_who_was_late_is_reported_of_the_last_one() -> None:
    host = shop()
    slow(host, WEB_PID, 80, b"nginx")
    talks(host, WEB_PID, peer("127.0.0.1", PORT))
    (one,) = [one for one in reported(host) if "port 80 " in str(one["sentence"])]
    assert one["cause"] == "broker_slow" and "redis-server pid 1801 at 127.0.0.1:6379" in str(one["sentence"])


def test_commands_that_always_block_for_long_are_not_who_was_late() -> None:
    """A queue's server keeps its consumers for seconds, and answers all others at once."""
    host = shop(cache_slow=False)
    host.made = [b for b in host.made if b.table != "service_latency" or b.rows["sport"][0] != 6379]
    answers(
        host,
        0,
        UNTIL,
        pid=CACHE_PID,
        tid=CACHE_PID,
        comm=b"redis-server",
        sport=6379,
        sum_ns=4 * S,
        max_ns=2900 * MS,
        n=3,
    )
    assert of_shop(host)["cause"] == "unknown"


def test_a_slow_network_to_one_of_its_peers() -> None:
    host = shop(cache_slow=False)
    talks(host, SHOP_PID, FAR, us=300, b=30)
    talks(host, SHOP_PID, FAR, us=1_200_000, a=30, b=33)
    talks(host, SHOP_PID, FAR, us=300, a=33)
    one = of_shop(host)
    assert one["cause"] == "network_rtt" and "10.9.0.2:6379" in str(one["sentence"])


def test_segments_to_one_of_its_peers_were_lost() -> None:
    host = shop(cache_slow=False)
    talks(host, SHOP_PID, FAR, us=300)
    host.add(
        "tcp_retransmit", 4, t_ns=BEGUN + np.array([200, 600, 1400, 2800]) * MS, **SHOP, peer=FAR, kind="data", count=1
    )
    one = of_shop(host)
    assert one["cause"] == "network_loss" and "10.9.0.2:6379" in str(one["sentence"])


def test_who_waits_for_a_late_server_does_not_lack_a_processor() -> None:
    """It had to wait for one, too, when all that had queued was to be done at once."""
    host = shop()
    host.add(
        "cpu_wait",
        t_ns=T0 + 32 * S + 990 * MS,
        interval_ns=S,
        pid=SHOP_PID,
        comm=b"shop",
        by_pid=55,
        by_comm=b"burner",
        count=300,
        wait_ns=2900 * MS,
        max_ns=20 * MS,
    )
    assert of_shop(host)["cause"] == "broker_slow"


def test_nothing_is_lost_on_loopback() -> None:
    host = shop(cache_slow=False)
    host.add(
        "tcp_retransmit", 4, t_ns=BEGUN + np.array([200, 600, 1400, 2800]) * MS, **SHOP, peer=DB, kind="data", count=1
    )
    assert of_shop(host)["cause"] == "unknown"


def test_a_late_server_on_loopback_is_late_and_not_far_away() -> None:
    host = shop()
    host.add("tcp_retransmit", 8, t_ns=BEGUN + np.arange(8) * 300 * MS, **SHOP, peer=CACHE, kind="data", count=1)
    assert of_shop(host)["cause"] == "broker_slow"


def test_a_frozen_server_has_its_name() -> None:
    host = shop()
    t = T0 + np.arange(30) * S
    host.add(
        "tcp_rtt",
        t_ns=t,
        pid=CACHE_PID,
        comm=b"redis-server",
        netns=1,
        role="server",
        sport=6379,
        cgroup_id=77,
        peer=peer("127.0.0.1", 40000),
        rtt=(5, 20, 20, 20),
    )
    for at, kind in ((30.0, "frozen"), (33.0, "thawed")):
        host.add("process_event", at=at, kind=kind, cgroup_id=77, sender_pid=9, sender_comm=b"docker")
    one = of_shop(host)
    assert (
        one["cause"] == "process_stopped"
        and "redis-server pid 1801 was stopped for 3 s (cgroup frozen by docker, pid 9)" in str(one["sentence"]).lower()
    )


def test_of_several_that_serve_a_port_the_late_one_is_meant() -> None:
    """Workers that were forked, of which another one was the last that was seen to serve."""
    host = shop()
    listens(host, CACHE_PID + 10, 6379, b"redis-server")
    one = of_shop(host)
    assert "redis-server pid 1801 at 127.0.0.1:6379 did not answer for 3 s" in str(one["sentence"])


def test_a_peer_that_is_reached_by_a_unix_socket() -> None:
    """An epoll front, a server behind a Unix socket that is stopped: the front is the victim, and the socket is called
    by its path.
    """
    app, app_pid = UNIX + b"fastcgi!" + struct.pack("<H", 40001), 1901
    host = Host()
    own = {
        "pid": app_pid,
        "tid": app_pid,
        "comm": b"php-fpm",
        "sport": 40001,
        "netns": NULL_I64,
        "saddr": np.frombuffer(app[:16], "V16"),
    }
    slow(host, WEB_PID, 80, b"nginx")
    answers(host, 0, 30, ms=8, sum_ns=320 * MS, n=5, **own)
    for second in (30, 31, 32):
        served(
            host,
            second,
            requests=0,
            waiting=2,
            max_ns=(second - 29) * 990 * MS,
            max_from_ns=BEGUN,
            sum_ns=0,
            p50_ns=0,
            p90_ns=0,
            **own,
        )
    answers(host, 33, UNTIL, ms=8, sum_ns=320 * MS, n=6, **own)
    t = T0 + np.arange(UNTIL) * S + 990 * MS
    host.add(
        "unix_peer",
        t_ns=t,
        pid=WEB_PID,
        comm=b"nginx",
        peer=app,
        path=b"/run/php/fpm\x1b.sock",
        interval_ns=S,
        server_pid=app_pid,
        server_start_ns=START,
        server_comm=b"php-fpm",
        requests=40,
    )
    for at, kind in ((30.0, "stopped"), (33.0, "continued")):
        host.add(
            "process_event",
            at=at,
            pid=app_pid,
            tid=app_pid,
            comm=b"php-fpm",
            kind=kind,
            signal=19,
            sender_pid=77,
            sender_comm=b"kill",
        )
    (one,) = reported(host)
    assert (one["symptom"], one["cause"], one["culprit_pid"]) == ("service_latency", "process_stopped", app_pid)
    assert "nginx pid 1803 on port 80" in str(one["sentence"])
    assert "php-fpm pid 1901 on unix:/run/php/fpm\\x1b.sock" in str(one["sentence"])


@pytest.mark.parametrize("slowest", [1902, 1903])
def test_a_slow_server_behind_a_unix_socket_is_named_with_its_path(slowest: int) -> None:
    """One finding, also where another of its children than the one that was seen last is the slowest."""
    app, app_pid = UNIX + b"uwsgi..." + struct.pack("<H", 40003), 1902
    host = Host()
    own = {"pid": app_pid, "comm": b"uwsgi", "netns": NULL_I64, "saddr": np.frombuffer(app[:16], "V16")}
    slow(host, WEB_PID, 80, b"nginx")
    slow(host, app_pid, 40003, b"uwsgi")
    for batch in host.made:
        if batch.table == "service_latency" and batch.rows["pid"][0] == app_pid:
            batch.rows["netns"], batch.rows["saddr"] = own["netns"], own["saddr"]
    t = T0 + np.arange(UNTIL) * S + 990 * MS
    host.add(
        "unix_peer",
        t_ns=t,
        pid=WEB_PID,
        comm=b"nginx",
        peer=app,
        path=b"/run/app.sock",
        interval_ns=S,
        server_pid=app_pid,
        server_start_ns=START,
        server_comm=b"uwsgi",
        requests=40,
    )
    for batch in host.made:
        if batch.table == "service_latency" and batch.rows["pid"][0] == app_pid:
            batch.rows["pid"] = slowest
    (one,) = reported(host)
    assert one["cause"] == "broker_slow"
    assert f"because uwsgi pid {slowest} at unix:/run/app.sock did not answer for 3 s; the reason is not known." in str(
        one["sentence"]
    )
    assert "tcp_" not in str([one["evidence"], one["ruled_out"]])  # no network lies between
