"""The ring reader on a real ring: nothing lost or doubled while it wraps, and a full ring is counted as loss."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Callable, Iterator

import numpy as np

from agent.batch import Batch
from agent.columns import NULL_I64
from agent.common.faults import IN_A_ROW
from tests.kernel.conftest import Attached
from tests.patience import until


def spawn(n: int) -> set[int]:
    """Runs /bin/true n times; the pids."""
    pids = [os.posix_spawn("/bin/true", ["true"], {}) for _ in range(n)]
    for pid in pids:
        os.waitpid(pid, 0)
    return set(pids)


def test_every_record_once_while_the_ring_wraps(attach: Callable[..., Attached]) -> None:
    attached, seen = attach("exec", options={"EXEC_PAGES": 1}), list[np.ndarray]()
    attached.source.subscribe("exec_events", seen.append)
    pids: list[int] = []
    for _ in range(13):  # 221 records in a ring that holds 73
        pids += spawn(17)
        attached.pump()
    records = np.concatenate(seen)
    mine = records[np.isin(records["pid"], pids)]
    assert 221 - attached.left_out() <= len(mine) <= 221
    assert len(set(mine["pid"])) == len(mine)
    assert set(mine["pid"]) <= set(pids)
    assert np.all(np.diff(mine["t_ns"]) > -1_000_000_000)
    assert attached.lost() == 0


def test_a_full_ring_is_counted(attach: Callable[..., Attached]) -> None:
    attached, seen = attach("exec", options={"EXEC_PAGES": 1}), list[np.ndarray]()
    attached.source.subscribe("exec_events", seen.append)
    spawn(101)
    lost = attached.lost()
    records = np.concatenate(seen)
    assert lost > 0
    assert len(records) + lost + attached.left_out() >= 101
    assert len(records) <= 4096 // 56


def test_a_decoder_that_fails_costs_its_own_records_only(attach: Callable[..., Attached]) -> None:
    attached, seen = attach("exec", "tcp"), list[np.ndarray]()
    source = attached.source
    at, (ring, reader) = next((i, pair) for i, pair in enumerate(source._rings) if pair[0].map == "exec_events")

    def broken(records: np.ndarray) -> Iterator[Batch]:
        raise KeyError("no such column")

    source._rings[at] = (dataclasses.replace(ring, decode=broken), reader)
    source.subscribe("exec_events", seen.append)
    for _ in range(IN_A_ROW):
        spawn(1)
        attached.pump()
    assert source.faults.out("exec_events")
    assert "exec_events: KeyError" in attached.loaded.families["exec"].reason
    lost = attached.rows("loss")
    assert set(lost["source"].tolist()) == {b"exec_events"} and (lost["count"] == NULL_I64).all()
    before = len(lost)
    spawn(23)
    attached.wait("loss", lambda rows: rows[before:], lambda rows: rows["count"].sum() >= 23)
    assert attached.rows("loss")[before:]["count"].sum() >= 23  # other programs may start meanwhile
    assert not seen
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        port = server.getsockname()[1]
        found = attached.wait("tcp_connect", lambda rows: rows[rows["dport"] == port], lambda rows: len(rows) > 0)
    assert len(found) >= 1


def test_an_aggregate_and_a_subscriber_that_fail_stand_alone(attach: Callable[..., Attached]) -> None:
    attached, seen = attach("exec", "syscalls"), list[np.ndarray]()
    source = attached.source
    (one, maps, sums), calls = source._aggregates[0], list[int]()

    def broken(*_: object) -> Iterator[Batch]:
        calls.append(1)
        raise ValueError("cannot be merged")

    source._aggregates[0] = (dataclasses.replace(one, decode=broken), maps, sums)
    source.subscribe("exec_events", broken)
    subscriber = f"exec_events for {broken.__qualname__}"
    source.subscribe("exec_events", seen.append)

    def turn() -> None:
        spawn(1)
        attached.pump()

    until(lambda: source.faults.out(one.maps[0]) and source.faults.out(subscriber), turn=turn)
    attached.pump()
    assert len(np.concatenate(seen)) >= IN_A_ROW
    assert attached.loaded.families["exec"].state == "attached"
    assert "syscalls_a: ValueError" in attached.loaded.families["syscalls"].reason
