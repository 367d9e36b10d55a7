"""A full disk when the agent stops, or that has room for a part of what waits: every row is stored once, or told of."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from agent.batch import Batch, make
from agent.store import frames, segments
from agent.store.hot import HotStore
from agent.store.query import Session
from agent.store.spawn import Limits

BOOT = "0f0f0f0f-0000-4000-8000-000000000001"
SMALL = Limits(buffer_bytes=make("tcp_reset", 5).rows.nbytes)


class Disk:
    """Stands before os.write and os.ftruncate. room: how many bytes still fit, None for any number."""

    def __init__(self) -> None:
        self.room: int | None = None
        self._write, self._ftruncate = os.write, os.ftruncate

    def write(self, fd: int, data: Any) -> int:
        size = len(data)
        if self.room is not None:
            if not self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            size = min(size, self.room)
            self.room -= size
        return self._write(fd, data[:size])

    def ftruncate(self, fd: int, length: int) -> None:
        if self.room is not None:
            self.room += os.fstat(fd).st_size - length
        self._ftruncate(fd, length)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(os, "write", disk.write)
    monkeypatch.setattr(os, "ftruncate", disk.ftruncate)
    return disk


def rows(t_ns: int, n: int = 1) -> Batch:
    return make("tcp_reset", n, t_ns=t_ns)


def open_store(path: Path, boot: str = BOOT) -> HotStore:
    return HotStore(path, boot, "host-a", limits=SMALL, seal_command=())


def stored(path: Path) -> list[int]:
    with Session(path, ["tcp_reset"]) as session:
        return [t for (t,) in session.run("SELECT t_ns FROM tcp_reset ORDER BY 1").rows]


def losses(path: Path) -> list[tuple[Any, ...]]:
    with Session(path, ["loss"]) as session:
        return session.run("SELECT boot_id, source, count, from_ns, to_ns FROM loss").rows


def ended(path: Path, seq: int = 1) -> bool:
    return list(frames.read((path / segments.hot_name(seq)).read_bytes()))[-1].kind == frames.Kind.END


@pytest.mark.parametrize("waiting", [3, 50])
def test_a_disk_full_to_the_end_is_a_gap_of_the_next_start(tmp_path: Path, disk: Disk, waiting: int) -> None:
    store = open_store(tmp_path)
    store.append([rows(7)], tick_ns=8)
    for n in range(waiting):
        disk.room = 0
        store.append([rows(100 + n)])
        store._retry_at = 0
    disk.room = 2 * len(frames.Encoder.end())
    store.close()
    assert store.losses() == {"tcp_reset": waiting}
    disk.room = None
    assert not ended(tmp_path)
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    open_store(tmp_path).close()
    ((boot, source, count, start, end),) = losses(tmp_path)
    assert (boot, source, count, start) == (BOOT, "agent", None, 8)
    assert isinstance(end, int)
    assert end >= before
    assert stored(tmp_path) == [7]


def test_so_it_is_in_the_next_boot(tmp_path: Path, disk: Disk) -> None:
    store = open_store(tmp_path)
    store.append([rows(7)], tick_ns=8)
    disk.room = 0
    store.append([rows(100)])
    disk.room = 2 * len(frames.Encoder.end())
    store.close()
    disk.room = None
    open_store(tmp_path, "next-boot").close()
    assert losses(tmp_path) == [(BOOT, "agent", None, 8, None)]


def test_where_the_count_fits_what_waited_is_a_loss_of_its_own(tmp_path: Path, disk: Disk) -> None:
    store = HotStore(tmp_path, BOOT, "host-a", seal_command=())
    store.append([rows(7)])
    disk.room = 0
    store.append([rows(100, 200), rows(103)])
    disk.room = 8000
    assert rows(0, 200).rows.nbytes > disk.room
    store.close()
    assert ended(tmp_path)
    assert stored(tmp_path) == [7]
    assert losses(tmp_path) == [(BOOT, "tcp_reset", 201, 100, 103)]


def test_an_outage_without_rows_ends_cleanly(tmp_path: Path, disk: Disk) -> None:
    store = open_store(tmp_path)
    disk.room = 0
    store.append([], tick_ns=8)
    assert store.state()["state"] == "degraded"
    disk.room = len(frames.Encoder.end())
    store.close()
    assert ended(tmp_path)


def test_rows_are_stored_once_whatever_fits_while_a_disk_gets_room(tmp_path: Path, disk: Disk) -> None:
    store = open_store(tmp_path)
    sent = 0
    disk.room = 0
    for room in [0] * 7 + list(range(0, 6000, 100)):  # One of these has room for the rows, not for what tells of the dropped.
        disk.room = room
        store._retry_at = 0
        store.append([rows(sent)], tick_ns=sent)
        sent += 1
    disk.room = None
    store._retry_at = 0
    store.append([rows(sent)])
    store.close()
    found = stored(tmp_path)
    assert found == sorted(set(found))
    assert len(found) + store.losses()["tcp_reset"] == sent + 1
    assert sum(count for _, _, count, _, _ in losses(tmp_path)) == store.losses()["tcp_reset"]
