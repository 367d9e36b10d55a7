"""A source of rows that is refreshed has the rows that one opened now has, and reads only what was added."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from agent.ask.question import GroupValue, Question
from agent.batch import make
from agent.common.clocks import boot_ns
from agent.common.host import boot_id
from agent.store.hot import HotStore
from agent.store.query import Session
from agent.store.spawn import Limits
from tests.sealing import seal_all

S = 1_000_000_000
TABLES = ("tcp_reset", "finding")
ROWS = Question("tcp_reset", ("t_ns", "wall_ns", "pid", "host"))


def resets(t_ns: int, n: int = 3) -> list[object]:
    clock = make("clock_offset", 1, t_ns=t_ns, real_mono_ns=time.time_ns() - boot_ns(), boot_mono_ns=0, err_ns=100)
    return [make("tcp_reset", n, t_ns=[t_ns + i for i in range(n)], pid=7), clock]


def test_across_rotation_and_sealing(tmp_path: Path) -> None:
    store = HotStore(tmp_path, boot_id(), "web1", limits=Limits(rotate_bytes=60_000))
    now = boot_ns()
    store.append(resets(now - 60 * S))
    with Session(tmp_path, TABLES, "10m") as kept:
        for i in range(120):
            store.append(resets(now - 50 * S + i * S // 4))
            if i == 60:
                seal_all(store)
            if i % 3:
                continue
            new = kept.refresh()
            assert "tcp_reset" in new and "loss" not in new
            with Session(tmp_path, TABLES, "10m") as fresh:
                assert kept.rows(ROWS) == fresh.rows(ROWS)
        seal_all(store)
        kept.refresh()
        assert kept.refresh() == set()
        store.close()


def test_a_store_that_was_removed_and_made_anew(tmp_path: Path) -> None:
    path, now = tmp_path / "store", boot_ns()
    store = HotStore(path, boot_id(), "web1", seal_command=())
    store.append(resets(now - 60 * S, 500))
    with Session(path, TABLES, "10m") as kept:
        assert len(kept.rows(ROWS)) == 500
        store.close()
        shutil.rmtree(path)
        store = HotStore(path, boot_id(), "web1", seal_command=())
        store.append(resets(now, 2))
        assert "tcp_reset" in kept.refresh()
        assert len(kept.rows(ROWS)) == 2
    store.close()


def test_the_window_moves_on_and_old_rows_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = HotStore(tmp_path, boot_id(), "web1", seal_command=())
    start = boot_ns()
    store.append(resets(start))
    with Session(tmp_path, TABLES, "60s") as kept:
        count = Question("tcp_reset", values=(GroupValue("n", "count"),))
        assert kept.rows(count) == [{"n": 3}]
        real = time.clock_gettime_ns
        monkeypatch.setattr("time.clock_gettime_ns", lambda clock: real(clock) + 120 * S)
        store.append(resets(start + 100 * S, 5))
        assert kept.refresh() == {"tcp_reset"}
        assert kept.rows(count) == [{"n": 5}]
        assert sum(len(part) for part in kept._taken.hot["tcp_reset"]) == 5
    store.close()


def test_only_what_was_added_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = HotStore(tmp_path, boot_id(), "web1", seal_command=())
    now = boot_ns()
    for i in range(200):
        store.append(resets(now - S + i, 100))
    size = sum(file.stat().st_size for file in tmp_path.glob("hot-*"))
    with Session(tmp_path, TABLES, "10m") as kept:
        read, real = [0], os.pread

        def counted(fd: int, n: int, at: int) -> bytes:
            data = real(fd, n, at)
            read[0] += len(data)
            return data

        monkeypatch.setattr("os.pread", counted)
        kept.refresh()
        assert read[0] == 0
        store.append(resets(now, 100))
        assert kept.refresh() == {"tcp_reset"}
        assert 0 < read[0] < size / 50
        assert len(kept.rows(ROWS)) == 20_100
    store.close()
