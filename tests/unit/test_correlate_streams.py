"""Connections that carry something all the time: who of the two stopped, and what is no stall of either."""

from __future__ import annotations

import numpy as np
import pytest

from agent.correlate.inbox import compact
from agent.correlate.rows import OfSecond
from agent.correlate.streams import StreamWatch
from agent.correlate.thresholds import CorrelatorConfig
from tests.unit.correlate_scenarios import MS, START, T0, Host, S, code, latest, peer, run

READER, WRITER = 800, 801
SERVER, CLIENT = peer("10.0.0.2", 9000), peer("10.0.0.1", 41000)
UNTIL = 60


def waits(host: Host, pid: int, at: np.ndarray, to: bytes, ms: object, count: int = 20) -> None:
    """The sums of its waits on a peer: one row a second, with the longest."""
    host.add(
        "syscall_latency",
        len(at),
        at=at,
        pid=pid,
        proc_start_ns=START,
        comm=b"reader" if pid == READER else b"writer",
        basis=code("syscall_latency", "basis", "blocked"),
        kind=code("syscall_latency", "kind", "waiting"),
        peer=np.frombuffer(to, "V18"),
        interval_ns=S,
        count=count,
        max_ns=(np.asarray(ms, np.float64) * MS).astype(np.int64),
    )


def ends(host: Host, at: np.ndarray, us: object = 200) -> None:
    """Both ends' round trips: whose they are is known by them."""
    for pid, comm, role, here, there in (
        (READER, b"reader", "server", SERVER, CLIENT),
        (WRITER, b"writer", "client", CLIENT, SERVER),
    ):
        host.add(
            "tcp_rtt",
            len(at),
            at=at,
            pid=pid,
            proc_start_ns=START,
            comm=comm,
            netns=4026531840,
            role=code("tcp_rtt", "role", role),
            saddr=np.frombuffer(here[:16], "V16"),
            sport=int.from_bytes(here[16:], "little"),
            peer=np.frombuffer(there, "V18"),
            samples=20,
            rtt_sum_us=np.asarray(us) * 20,
            rtt_min_us=us,
            rtt_max_us=us,
            srtt_us=us,
        )


def stream(until: float = UNTIL, seed: int = 3) -> Host:
    """20 messages a second; who reads waits for each."""
    host = Host(seed)
    seconds = np.arange(0, until) + 0.9
    ends(host, seconds)
    waits(host, READER, seconds[(seconds < 30) | (seconds > 32)], CLIENT, 50)
    return host


def not_sending(ms: float = 1500) -> Host:
    host = stream()
    waits(host, READER, np.array([31.9]), CLIENT, ms)
    return host


def not_reading(ms: float = 1200) -> Host:
    host = stream()
    waits(host, WRITER, np.array([31.9]), SERVER, ms, 1)
    return host


@pytest.mark.parametrize(
    ("host", "symptom", "pid"),
    [(not_sending, "sender_stalled", WRITER), (not_reading, "receiver_stalled", READER)],
)
def test_the_end_that_neither_works_nor_waits_is_named(host: object, symptom: str, pid: int) -> None:
    (found,) = latest(run(host(), UNTIL))  # type: ignore[operator]
    assert (found["symptom"], found["cause"], found["culprit_pid"]) == (symptom, "peer_stopped", pid)
    assert found["culprit_object"] == "10.0.0.2:9000"
    assert f"{'reader' if pid == READER else 'writer'} pid {pid}" in str(found["sentence"])


def test_when_both_wait_nobody_stopped() -> None:
    host = not_sending()
    waits(host, WRITER, np.array([31.9]), SERVER, 1200, 1)
    assert latest(run(host, UNTIL)) == []


def test_what_was_lost_on_the_way_was_sent() -> None:
    host = not_sending()
    host.add(
        "tcp_retransmit",
        3,
        t_ns=T0 + 30 * S + np.array([600, 900, 1500]) * MS,
        pid=WRITER,
        proc_start_ns=START,
        peer=np.frombuffer(SERVER, "V18"),
        kind=0,
        count=1,
    )
    (found,) = latest(run(host, UNTIL))
    assert (found["symptom"], found["cause"]) == ("sender_stalled", "network_loss")


def test_round_trips_that_were_slow_meanwhile_are_the_networks() -> None:
    host = not_sending().without("tcp_rtt")
    seconds = np.arange(0, UNTIL) + 0.9
    ends(host, seconds, np.where((seconds > 30) & (seconds < 32.5), 700_000, 200))
    (found,) = latest(run(host, UNTIL))
    assert (found["symptom"], found["cause"]) == ("sender_stalled", "network_rtt")


@pytest.mark.parametrize("host", [not_sending(300), not_reading(180)])
def test_short_ones_are_none(host: Host) -> None:
    assert latest(run(host, UNTIL)) == []


def test_a_stream_that_ends_and_one_that_pauses_every_now_and_then_are_none() -> None:
    host = stream()
    waits(host, READER, np.array([31.9]), CLIENT, 1500, 1)  # the end of the connection woke it
    assert latest(run(host, UNTIL)) == []
    host = not_sending()
    waits(host, READER, np.arange(1, 30, 4) + 0.95, CLIENT, 1100)
    assert latest(run(host, UNTIL)) == []


@pytest.mark.parametrize(("many", "dropped"), [("server", 6), ("client", 6), ("pool", 0)])
def test_processes_without_room_are_counted(many: str, dropped: int) -> None:
    """pool: connections of one client."""
    host = Host()
    for role, here, there in (("server", SERVER, CLIENT), ("client", CLIENT, SERVER)):
        count = 1030 if role == many or (role, many) == ("client", "pool") else 1
        pids = np.arange(1, count + 1) if role == many else np.ones(count, np.int64)
        host.add(
            "tcp_rtt",
            len(pids),
            t_ns=T0 + S // 2,
            pid=pids,
            proc_start_ns=START,
            role=code("tcp_rtt", "role", role),
            saddr=np.frombuffer(here[:16], "V16"),
            sport=int.from_bytes(here[16:], "little") + (np.arange(count) if many == "pool" else 0),
            peer=np.frombuffer(there, "V18"),
        )
    waits(host, READER, np.array([0.5]), CLIENT, 50)
    rows: dict[str, list[np.ndarray]] = {}
    for table, its in host.made:
        rows.setdefault(table, []).append(compact(table, its))
    watch = StreamWatch(CorrelatorConfig())
    watch.step(T0 // S, OfSecond({table: np.concatenate(its) for table, its in rows.items()}))
    assert watch.dropped == dropped


def test_who_asks_and_waits_for_answers_is_no_stream() -> None:
    """A client that gets its answers, until one takes 1.2 s: that server does not wait for it meanwhile, as it
    works.
    """
    host = not_reading()
    waits(host, WRITER, np.arange(0, 30) + 0.95, SERVER, 190)
    assert latest(run(host, UNTIL)) == []


@pytest.mark.parametrize("seed", range(5))
def test_streams_of_varying_load_are_not_reported(seed: int) -> None:
    """Messages by chance, their rate another one every 20 s: gaps of all lengths, for ten minutes."""
    rng = np.random.default_rng(seed)
    host = Host(seed)
    seconds = np.arange(0, 600) + 0.9
    ends(host, seconds)
    per_s = np.repeat(rng.uniform(0.5, 60, 30), 20)
    longest = np.array([rng.exponential(1 / rate, max(1, int(rate))).max() for rate in per_s])
    waits(host, READER, seconds, CLIENT, longest * 1e3, 3)
    blocked = rng.exponential(60, 600)
    waits(host, WRITER, seconds[blocked > 100], SERVER, blocked[blocked > 100], 2)
    assert latest(run(host, 600, every_ms=1000)) == []
