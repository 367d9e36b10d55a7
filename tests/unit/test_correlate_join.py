"""children(): compared with the definition, spelled out row by row."""

from __future__ import annotations

import numpy as np
import pytest

from agent.batch import make
from agent.correlate.join import children
from agent.tables import TABLES
from tests.unit.correlate_scenarios import REDIS, START, peer

NULL = -(2**63)
DELAYED, CANCELLED = (TABLES["limiter_decision"].code("result", name) for name in ("delayed", "cancelled"))


def one(table: str, **columns: object) -> np.ndarray:
    return make(table, 1, **({"t_ns": 1_000, "pid": 7, "tid": 8, "proc_start_ns": START} | columns)).rows


def decision(**columns: object) -> np.ndarray:
    return one("limiter_decision", **({"t_ns": 1_100, "duration_ns": 200} | columns))


@pytest.mark.parametrize(
    ("d", "e", "joined"),
    [
        ({}, {}, True),
        ({}, {"t_ns": 1_100}, True),
        ({}, {"t_ns": 900}, True),
        ({}, {"t_ns": 1_101}, False),
        ({}, {"t_ns": 899}, False),
        ({}, {"tid": 9}, False),
        ({"tid": NULL}, {"tid": 9}, True),
        ({"tid": NULL}, {"pid": 6}, False),
        ({}, {"proc_start_ns": START + 20_000_000}, False),
        ({"proc_start_ns": START // 10_000_000 * 10_000_000}, {}, True),
        ({"goroutine": 5}, {"goroutine": 5, "tid": 9}, True),
        ({"goroutine": 5}, {"goroutine": 6}, False),
        ({"goroutine": 5}, {}, True),
        ({}, {"goroutine": 5}, True),
        ({"goroutine": 5}, {"tid": 9}, False),
        ({"duration_ns": NULL}, {}, False),
        # A Go program's Wait that sleeps: its thread does something else meanwhile.
        ({"goroutine": 5, "result": DELAYED, "wait_ns": 150}, {"t_ns": 960}, False),
        ({"goroutine": 5, "result": DELAYED, "wait_ns": 150}, {"t_ns": 940}, True),
        ({"goroutine": 5, "result": CANCELLED, "wait_ns": 900}, {"t_ns": 960}, False),
        ({"result": DELAYED, "wait_ns": 150}, {"t_ns": 960}, True),
    ],
)
def test_a_call_belongs_to_a_decision(d: dict[str, int], e: dict[str, int], joined: bool) -> None:
    found = children(decision(**d), {"slow_syscall": one("slow_syscall", **e)})
    assert found == ([(0, "slow_syscall", 0)] if joined else [])


def test_handshakes_too() -> None:
    assert children(decision(), {"tls_handshake": one("tls_handshake")}) == [(0, "tls_handshake", 0)]


def test_the_rtt_of_the_socket_used_is_the_nearest_that_covers_the_decision() -> None:
    rtt = np.concatenate(
        [
            one("tcp_rtt", t_ns=t, sock_id=s, peer=np.frombuffer(REDIS, "V18"))
            for t, s in ((500, 77), (1_500, 77), (2_500, 77), (1_101, 78))
        ]
    )
    used = one("slow_syscall", sock_id=77, peer=np.frombuffer(REDIS, "V18"))
    assert children(decision(), {"slow_syscall": used, "tcp_rtt": rtt}) == [(0, "slow_syscall", 0), (0, "tcp_rtt", 1)]
    assert children(decision(), {"slow_syscall": used, "tcp_rtt": rtt[:1]})[1] == (0, "tcp_rtt", 0)


def test_without_the_socket_the_rtt_is_found_by_process_and_peer() -> None:
    other = peer("10.0.0.1", 1)
    rtt = np.concatenate(
        [
            one("tcp_rtt", t_ns=1_500, pid=p, peer=np.frombuffer(a, "V18"))
            for p, a in ((6, REDIS), (7, other), (7, REDIS))
        ]
    )
    used = one("slow_syscall", peer=np.frombuffer(REDIS, "V18"))
    assert (0, "tcp_rtt", 2) in children(decision(), {"slow_syscall": used, "tcp_rtt": rtt})
    assert len(children(decision(), {"slow_syscall": used, "tcp_rtt": rtt[:2]})) == 1
    far = one("tcp_rtt", t_ns=61_000_000_000 + 1_100, peer=np.frombuffer(REDIS, "V18"))
    assert len(children(decision(), {"slow_syscall": used, "tcp_rtt": far})) == 1


@pytest.mark.parametrize("seed", range(20))
def test_equals_the_definition_on_random_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def rows(table: str, n: int) -> np.ndarray:
        return make(
            table,
            n,
            t_ns=rng.integers(0, 300, n),
            pid=rng.integers(1, 3, n),
            proc_start_ns=START,
            tid=rng.choice([1, 2, 3, NULL], n),
            duration_ns=rng.choice([0, 5, 40, NULL], n),
            goroutine=rng.choice([1, 2, NULL, NULL], n),
        ).rows

    d, e = rows("limiter_decision", 61), rows("slow_syscall", 97)

    def belongs(a: np.void, b: np.void) -> bool:
        if (
            a["pid"] != b["pid"]
            or a["duration_ns"] == NULL
            or not a["t_ns"] - a["duration_ns"] <= b["t_ns"] <= a["t_ns"]
        ):
            return False
        if a["goroutine"] != NULL and b["goroutine"] != NULL:
            return bool(a["goroutine"] == b["goroutine"])
        if b["tid"] == b["goroutine"] == NULL:
            return True
        if a["tid"] == NULL:
            return bool(a["goroutine"] == NULL)
        return bool(a["tid"] == b["tid"])

    want = [(i, "slow_syscall", j) for i in range(len(d)) for j in range(len(e)) if belongs(d[i], e[j])]
    assert want and children(d, {"slow_syscall": e}) == want


def test_nothing_to_join() -> None:
    empty = {t: make(t, 0).rows for t in ("slow_syscall", "tls_handshake", "tcp_rtt")}
    assert (
        children(decision(), empty)
        == children(decision(), {})
        == children(decision()[:0], {"slow_syscall": one("slow_syscall")})
        == []
    )
