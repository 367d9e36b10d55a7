"""A full disk when the agent stops, or that has room for a part of what waits: every row is stored once, or
reported.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agent.batch import Batch, make
from agent.cli.findings import command as findings
from agent.common.host import boot_id as this_boot
from agent.store import frames, reader, segments
from agent.store.backlog import size
from agent.store.hot import HotStore
from agent.store.query import Session
from agent.store.spawn import Limits

BOOT = "0f0f0f0f-0000-4000-8000-000000000001"
SMALL = Limits(buffer_bytes=5 * size(make("tcp_reset", 1)))


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
        return session.run("SELECT boot_id, source, count, from_ns, to_ns FROM loss ORDER BY count NULLS LAST").rows


def ended(path: Path, seq: int = 1) -> bool:
    return list(frames.read((path / segments.hot_name(seq)).read_bytes()))[-1].kind == frames.FrameKind.END


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
    known, (boot, source, count, start, end) = losses(tmp_path)
    assert known == (BOOT, "tcp_reset", waiting, 100, 99 + waiting)
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
    assert losses(tmp_path) == [(BOOT, "tcp_reset", 1, 100, 100), (BOOT, "agent", None, 8, None)]


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
    for room in [0] * 7 + list(
        range(0, 6000, 100)
    ):  # One of these has room for the rows, not for what tells of the dropped.
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


def reported(path: Path) -> tuple[list[tuple[Any, ...]], list[str]]:
    """Losses, and the notes of a query."""
    with Session(path, ["loss"]) as session:
        return session.run("SELECT source, count, from_ns, to_ns FROM loss").rows, session.notes


def test_a_query_shows_what_a_full_disk_costs_while_it_is_full_and_once_when_it_has_room(
    tmp_path: Path, disk: Disk
) -> None:
    store = open_store(tmp_path)
    store.append([rows(7)], tick_ns=8)
    disk.room = 0
    for n in range(12):
        store.append([rows(100 + n)])
    store._reported_ns = 0
    store.append([])
    found, notes = reported(tmp_path)
    assert found == [("tcp_reset", 7, 100, 106)]
    assert "5 rows wait in its memory, 7 are lost so far" in notes[0]
    assert "No space left on device" in notes[0]
    disk.room, store._retry_at = None, 0
    store.append([])
    assert reported(tmp_path) == (found, [])
    store.close()
    assert stored(tmp_path) == [7, *range(107, 112)]
    assert losses(tmp_path) == [(BOOT, "tcp_reset", 7, 100, 106)]


@pytest.mark.parametrize("boot", [BOOT, "next-boot"])
def test_what_an_agent_that_was_killed_meanwhile_could_not_write_the_next_writes(
    tmp_path: Path, disk: Disk, boot: str
) -> None:
    store = open_store(tmp_path)
    store.append([rows(7)], tick_ns=8)
    disk.room = 0
    for n in range(12):
        store.append([rows(100 + n)])
    store._reported_ns = 0
    store.append([])
    os.close(store._lock_fd)  # as its end does
    found, _ = reported(tmp_path)
    assert found == [("tcp_reset", 7, 100, 106)]
    disk.room = None
    for _ in range(2):
        open_store(tmp_path, boot).close()
        assert (BOOT, "tcp_reset", 7, 100, 106) in losses(tmp_path)
        assert len([row for row in losses(tmp_path) if row[1] == "tcp_reset"]) == 1


@pytest.mark.parametrize(
    "text", [b"{", b"[]", b'{"boot_id": 1}', b'{"dropped": {"a": 3}}', b"\xff\xfe", b"x" * 100_000]
)
def test_a_damaged_file_of_an_outage_is_nothing(tmp_path: Path, text: bytes) -> None:
    open_store(tmp_path).close()
    (tmp_path / "outage.json").write_bytes(text)
    assert reported(tmp_path)[0] == []
    open_store(tmp_path).close()
    assert losses(tmp_path) == []


def test_an_agent_that_lives_and_writes_nothing_is_a_gap_until_it_writes(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk refuses even what would tell of it, as one that the kernel has made read-only."""
    monkeypatch.setattr(reader, "WRITES_NS", 200_000_000)
    store = open_store(tmp_path, this_boot())
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    store.append([rows(before)], tick_ns=before)
    assert reported(tmp_path) == ([], [])
    disk.room = 0
    monkeypatch.setattr(store._outage_file, "_fd", -1)
    store.append([rows(before + 1)])
    time.sleep(0.3)
    ((source, count, start, end),), notes = reported(tmp_path)
    assert (source, count, start) == ("agent", None, before)
    assert end >= before + 200_000_000
    assert f"the agent (pid {os.getpid()}) is running, but has written nothing" in notes[0]
    assert "no findings, but rows are missing" in CliRunner().invoke(findings, ["--store", str(tmp_path)]).stderr
    disk.room, store._retry_at = None, 0
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    store.append([rows(now)], tick_ns=now)
    assert reported(tmp_path) == ([], [])
    store.close()
