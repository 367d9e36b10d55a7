"""Windows that stay shut: the writer's bytes do not move, and who does not read is named; what flows, however slowly,
is none.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.correlate_scenarios import T0, Host, S, latest, peer, run
from tests.unit.test_correlate_processes import event

NETNS, UNTIL = 1, 60
WRITER_PID, READER_PID = 2100, 2101
WRITER, READER = peer("10.0.0.1", 41000), peer("10.0.0.2", 9100)


def queues(
    host: Host,
    at: np.ndarray,
    unsent: object,
    unread: object = None,
    serves: bool = False,
    acked: object = 7,
    shut_ns: object = None,
) -> None:
    """Polls: the writer's end, and the reader's where that is on this host. serves: the writer is who was connected
    to.
    """
    ends = [(WRITER_PID, b"writer", WRITER, READER, "server" if serves else "client", unsent, 0)]
    if unread is not None:
        ends.append((READER_PID, b"reader", READER, WRITER, "client" if serves else "server", 0, unread))
    for pid, comm, here, there, role, send, recv in ends:
        host.add(
            "socket_queue",
            at=at,
            pid=pid,
            comm=comm,
            sock_id=pid,
            netns=NETNS,
            kind="connection",
            role=role,
            saddr=here[:16],
            sport=int.from_bytes(here[16:], "little"),
            peer=there,
            send_q_bytes=send,
            recv_q_bytes=recv,
            acked_bytes=acked,
            shut_ns=((at - at[0]) * S).astype(np.int64) if shut_ns is None else shut_ns,
        )


SHUT = np.arange(30, 40) + 0.3


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("serves", [True, False])
def test_a_reader_that_does_not_read_is_named(here: bool, serves: bool) -> None:
    """What a server wrote to a client elsewhere is that client's own affair."""
    host = Host()
    queues(host, SHUT, 300_000, 200_000 if here else None, serves)
    host.accept(0, UNTIL)
    found = latest(run(host, UNTIL))
    if serves and not here:
        assert found == []
        return
    (one,) = found
    assert (one["symptom"], one["cause"]) == ("window_shut", "peer_stopped")
    assert one["culprit_pid"] == (READER_PID if here else -(2**63))
    assert "writer pid 2100" in str(one["sentence"])
    assert "300000 bytes" in str(one["sentence"]).replace(",", "").replace(" ", " ")


def test_it_is_reported_within_two_seconds_and_a_poll() -> None:
    host = Host()
    queues(host, SHUT, 300_000, 200_000)
    host.accept(0, UNTIL)
    first = run(host, UNTIL, tables=("finding",), every_ms=100)[0].rows[0]
    assert first["t_ns"] < T0 + 33 * S + S // 10  # by the watermark that ends the second


def test_who_stopped_the_reader_is_the_reason() -> None:
    host = Host()
    queues(host, SHUT, 300_000, 200_000)
    host.accept(0, UNTIL)
    event(host, "stopped", 30.0, pid=READER_PID, comm=b"reader", signal=19)
    event(host, "continued", 39.9, pid=READER_PID, comm=b"reader", signal=18)
    (found,) = latest(run(host, UNTIL))
    assert (found["cause"], found["culprit_pid"]) == ("process_stopped", READER_PID)


def test_what_is_lost_on_the_way_is_no_shut_window() -> None:
    """Nothing is acknowledged, and the kernel waits for that."""
    host = Host()
    queues(host, SHUT, 300_000, shut_ns=5)
    host.accept(0, UNTIL)
    assert latest(run(host, UNTIL)) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_full_buffer_that_moves_is_none(seed: int) -> None:
    """A download to a slow client, whose window is shut all the time, but for a moment each second."""
    host, rng = Host(seed), np.random.default_rng(seed)
    at = np.arange(5, UNTIL) + 0.3
    queues(host, at, 2_500_000, acked=np.cumsum(rng.integers(150, 400, len(at)) * 1448))
    host.accept(0, UNTIL)
    assert latest(run(host, UNTIL)) == []


def test_what_was_so_before_is_no_news() -> None:
    host = Host()
    queues(host, np.arange(1, 40) + 0.3, 300_000, 200_000)
    host.accept(0, UNTIL)
    assert latest(run(host, UNTIL)) == []
