"""The index of a closed hot segment: queries find the same rows with it as without, and read only what they need."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from agent.batch import Batch, make
from agent.common.host import boot_id as this_boot
from agent.store import frames, index, segments
from agent.store.hot import HotStore
from agent.store.query import Session
from tests.unit.test_store import before_end

S = 10**9
TABLES = ("tcp_reset", "tcp_connect", "limiter_decision")


def write(path: Path, seconds: int = 60) -> None:
    """A row a second of each table but limiter_decision, which has some at the start; segments of ten seconds. Killed
    at the end.
    """
    store = HotStore(path, this_boot(), "host", seal_command=())
    for at in range(0, seconds, 10):
        if at:
            store._rotate()
        times = np.arange(at, at + 10) * S
        batches = [
            make("tcp_reset", 10, t_ns=times),
            make("tcp_connect", 10, t_ns=times),
            make("clock_offset", 1, t_ns=at * S, real_mono_ns=0, err_ns=1),
        ]
        if at == 0:
            batches.append(make("limiter_decision", 7, t_ns=5))
        for batch in batches:
            store.append([batch], tick_ns=int(times[-1]))
    os.close(store._fd)
    os.close(store._lock_fd)


def answers(path: Path) -> list[object]:
    found: list[object] = []
    for table in TABLES:
        for since, until in (
            (None, None),
            ("boot+15", None),
            ("boot+15", "boot+42"),
            (None, "boot+9"),
            ("boot+500", None),
        ):
            with Session(path, [table, "loss"], since, until) as session:
                where = " AND ".join(session.window.rows()) or "true"
                found.append(session.run(f"SELECT t_ns FROM {table} WHERE {where} ORDER BY 1").rows)
                found.append([note for note in session.notes if "newest row" in note and "seconds" not in note])
    return found


def strip(path: Path) -> int:
    """Takes the index out of every segment; how many had one."""
    n = 0
    for file in sorted(path.glob("hot-*.tsl")):
        with open(file, "rb") as opened:
            if index.read(opened.fileno()) is None:
                continue
        data = file.read_bytes()
        file.write_bytes(data[: before_end(data)] + frames.Encoder.end())
        n += 1
    return n


def test_the_same_rows_with_an_index_as_without(tmp_path: Path) -> None:
    write(tmp_path)
    with_index = answers(tmp_path)
    assert strip(tmp_path) == 5  # the last was not closed
    assert answers(tmp_path) == with_index


def test_segments_outside_the_window_are_not_read(tmp_path: Path) -> None:
    """Those that a query has no rows in may be damaged inside: it does not notice."""
    write(tmp_path)
    for seq in (1, 2, 3):
        file = tmp_path / segments.hot_name(seq)
        with open(file, "rb") as opened:
            spans = index.read(opened.fileno())
        assert spans is not None
        data = bytearray(file.read_bytes())
        for offset in spans["tcp_reset"].places[::2]:
            data[offset + 40] ^= 0xFF
        file.write_bytes(data)
    with Session(tmp_path, ["tcp_reset"], "boot+30") as session:
        assert session.run("SELECT count(*) FROM tcp_reset").rows == [(30,)]
        assert not [note for note in session.notes if "damaged" in note]
    with Session(tmp_path, ["limiter_decision"]) as session:
        assert session.run("SELECT count(*) FROM limiter_decision").rows == [(7,)]
        assert not [note for note in session.notes if "damaged" in note]
    with Session(tmp_path, ["tcp_reset"]) as session:
        assert session.run("SELECT count(*) FROM tcp_reset").rows < [(60,)]
        assert [note for note in session.notes if "damaged" in note]


def test_an_index_reports_rows_times_and_places(tmp_path: Path) -> None:
    write(tmp_path, 20)
    with open(tmp_path / segments.hot_name(1), "rb") as file:
        spans = index.read(file.fileno())
        assert spans is not None
        assert {t: s[:3] for t, s in spans.items()} == {
            "tcp_reset": (10, 0, 9 * S),
            "tcp_connect": (10, 0, 9 * S),
            "clock_offset": (1, 0, 0),
            "limiter_decision": (7, 5, 5),
        }
        data = file.read()
    for table, span in spans.items():
        offset, length = span.places
        start = min(s.places[0] for s in spans.values())
        decoder = frames.FrameDecoder()
        (frame,) = list(decoder.feed(data[:start] + data[offset : offset + length]))
        assert frame.table == table


@pytest.mark.parametrize("cut", [1, 4, 8, 20, 60])
def test_a_torn_or_damaged_index_is_none(tmp_path: Path, cut: int) -> None:
    write(tmp_path, 20)
    expected = answers(tmp_path)
    file = tmp_path / segments.hot_name(1)
    whole = file.read_bytes()
    damaged = bytearray(whole)
    damaged[-cut] ^= 0x55
    for data in (bytes(damaged), whole[:-cut]):
        file.write_bytes(data)
        with open(file, "rb") as opened:
            assert index.read(opened.fileno()) is None
        if data != bytes(damaged):
            assert answers(tmp_path) == expected


def test_a_disk_without_room_for_an_index_has_a_plain_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = HotStore(tmp_path, this_boot(), "host", seal_command=())
    store.append([Batch("tcp_reset", make("tcp_reset", 3, t_ns=1).rows)])
    write, room = os.write, [len(frames.Encoder.end())]

    def full(fd: int, data: bytes) -> int:
        if room[0] < len(data):
            raise OSError(28, "No space left on device")
        return write(fd, data)

    monkeypatch.setattr(os, "write", full)
    store.close()
    monkeypatch.undo()
    assert list(frames.read((tmp_path / segments.hot_name(1)).read_bytes()))[-1].kind == frames.FrameKind.END
    with open(tmp_path / segments.hot_name(1), "rb") as file:
        assert index.read(file.fileno()) is None


def test_a_window_within_a_large_segment_that_is_still_written(tmp_path: Path) -> None:
    store = HotStore(tmp_path, this_boot(), "host", seal_command=())
    for second in range(60):
        store.append([make("limiter_decision", 100, t_ns=second * S + np.arange(100))])
    for since in range(0, 60, 7):
        with Session(tmp_path, ["limiter_decision"], f"boot+{since}", f"boot+{since + 3}") as session:
            where = " AND ".join(session.window.rows())
            assert session.run(f"SELECT count(*) FROM limiter_decision WHERE {where}").rows == [
                (min(300, (60 - since) * 100),)
            ]
    store.close()
