"""Stores that something happened to: what is intact answers, what is not is shown as a gap and said, nothing counts
twice.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agent.batch import make
from agent.common.host import boot_id as this_boot
from agent.store import segments
from agent.store.hot import HotStore
from agent.store.query import Session
from agent.store.spawn import Limits
from agent.tables import TABLES
from tests.sealing import seal_all
from tests.unit.test_query import ask, verb, write

SEGMENTS, ROWS = 3, 500


def made(path: Path) -> None:
    """Three sealed segments of 500 rows, one after the other in time."""
    numbers = np.random.default_rng(3)
    for i in range(SEGMENTS):
        times = np.arange(i * ROWS, (i + 1) * ROWS) * 10**6 + 10**9
        write(
            path,
            make("tcp_close", ROWS, t_ns=times, duration_ns=numbers.integers(0, 2**60, ROWS), pid=i),
            make("clock_offset", 2, t_ns=[times[0], times[-1]], real_mono_ns=10**18, boot_mono_ns=0, err_ns=7),
            seal=i == SEGMENTS - 1,
        )


def of(path: Path, table: str, which: int = 2) -> Path:
    return path / segments.sealed_name(which) / f"{table}.parquet"


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size * 2 // 3)


def garbage(file: Path) -> None:
    file.write_bytes(random.Random(1).randbytes(file.stat().st_size))


def hole(file: Path) -> None:
    """Zeroes over the data, between a good start and a good footer."""
    size = file.stat().st_size
    with file.open("r+b") as out:
        out.seek(200)
        out.write(bytes(size // 2))


def remove(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize("damage", [truncate, garbage, hole, remove])
def test_a_damaged_sealed_file_is_a_gap_and_the_others_answer(tmp_path: Path, damage: object) -> None:
    made(tmp_path)
    assert callable(damage)
    damage(of(tmp_path, "tcp_close"))
    document = ask(tmp_path, "query", "tcp_close", "--columns", "pid,t_ns")
    assert [r["pid"] for r in document["rows"]] == [0] * ROWS + [2] * ROWS
    (gap,) = document["gaps"]
    assert (gap["stage"], gap["count"]) == ("store", ROWS)
    assert (gap["from_ns"], gap["to_ns"]) == (10**9 + ROWS * 10**6, 10**9 + (2 * ROWS - 1) * 10**6)
    output = verb(tmp_path, "query", "tcp_close", "--group-by", "pid")
    assert output.returncode == 0
    assert "sealed-00000002/tcp_close.parquet is damaged" in output.stderr
    assert f"{ROWS} records lost in store" in output.stderr
    assert "Traceback" not in output.stderr
    sql = verb(tmp_path, "sql", "SELECT count(*) AS n, count(DISTINCT pid) AS pids FROM tcp_close", "-o", "json")
    assert json.loads(sql.stdout)["rows"] == [{"n": 2 * ROWS, "pids": 2}]
    assert "is damaged" in sql.stderr
    assert not ask(tmp_path, "query", "tcp_close", "--since", "boot+2.3")["gaps"]


def test_a_wrong_question_over_a_damaged_store_is_still_a_wrong_question(tmp_path: Path) -> None:
    made(tmp_path)
    garbage(of(tmp_path, "tcp_close"))
    for where in ("pid = 'x'", "nonsense = 1"):
        done = verb(tmp_path, "query", "tcp_close", "--where", where)
        assert done.returncode == 2, done.stderr
        assert "bad SQL" in done.stderr or "no column" in done.stderr


@pytest.mark.parametrize("damage", [truncate, hole])
def test_a_damaged_offset_history_costs_no_rows(tmp_path: Path, damage: object) -> None:
    made(tmp_path)
    assert callable(damage)
    damage(of(tmp_path, "clock_offset"))
    done = verb(tmp_path, "query", "tcp_close", "--columns", "pid,wall_ns", "-o", "json")
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == SEGMENTS * ROWS
    assert all(r["wall_ns"] is not None for r in rows if r["pid"] != 1)
    assert "clock_offset.parquet is damaged" in done.stderr


@pytest.mark.parametrize("content", [b"[]", b'{"tables": 3}', b"\xff\xfe", None])
def test_a_damaged_head_costs_no_rows(tmp_path: Path, content: bytes | None) -> None:
    made(tmp_path)
    head = tmp_path / segments.sealed_name(2) / segments.HEAD
    head.unlink() if content is None else head.write_bytes(content)
    done = verb(tmp_path, "query", "tcp_close", "--columns", "pid", "-o", "json")
    assert len(json.loads(done.stdout)["rows"]) == SEGMENTS * ROWS
    assert "head.json is damaged" in done.stderr


def test_a_boot_of_which_only_a_damaged_head_reports_answers(tmp_path: Path) -> None:
    """Its rows know their boot, the store does not."""
    write(
        tmp_path,
        make("tcp_close", 3, t_ns=[5, 6, 7]),
        make("loss", 1, t_ns=6, stage=0, source=b"x", count=1, to_ns=6),
        boot="boot-a",
        seal=True,
    )
    (tmp_path / segments.sealed_name(1) / segments.HEAD).write_bytes(b"")
    document = ask(tmp_path, "query", "tcp_close", "--limit", "2")
    assert [r["t_ns"] for r in document["rows"]] == [6, 7]
    assert [g["source"] for g in document["gaps"]] == ["x"]


def test_a_damaged_hot_segment_is_a_gap(tmp_path: Path) -> None:
    write(tmp_path, *(make("tcp_close", 3, t_ns=[n, n, n]) for n in (5, 6, 7)))
    write(tmp_path, make("tcp_close", 2, t_ns=[8, 9]))
    file = tmp_path / segments.hot_name(1)
    content = bytearray(file.read_bytes())
    content[-100] ^= 0xFF  # in the last rows, before the END
    file.write_bytes(content)
    document = ask(tmp_path, "query", "tcp_close")
    assert [r["t_ns"] for r in document["rows"]] == [5, 5, 5, 6, 6, 6, 8, 9]
    assert [(g["stage"], g["count"], g["source"]) for g in document["gaps"]] == [("store", None, "hot-00000001.tsl")]


def test_sealed_by_another_version(tmp_path: Path) -> None:
    """A column that today lacks, one that it has and the other had not, and a table that nobody knows."""
    import pyarrow.parquet as pq

    made(tmp_path)
    table = pq.read_table(of(tmp_path, "tcp_close"))
    pq.write_table(
        table.drop_columns(["retransmits"]).append_column("colour", [["red"] * ROWS]), of(tmp_path, "tcp_close")
    )
    shutil.copy(of(tmp_path, "tcp_close"), of(tmp_path, "tcp_weather"))
    head = tmp_path / segments.sealed_name(2) / segments.HEAD
    document = json.loads(head.read_text())
    document["tables"]["tcp_weather"] = document["tables"]["tcp_close"]
    head.write_text(json.dumps({**document, "mood": "good"}))
    done = ask(tmp_path, "query", "tcp_close")
    assert len(done["rows"]) == SEGMENTS * ROWS
    assert "colour" not in done["rows"][0]
    assert not done["gaps"]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def filled(path: Path, megabytes: int) -> int:
    """A closed hot segment of so many megabytes that do not compress; returns its rows."""
    store = HotStore(path, this_boot(), "host-a", seal_command=())
    rows = TABLES["tcp_close"].empty(megabytes * (1 << 20) // TABLES["tcp_close"].dtype.itemsize)
    numbers = np.random.default_rng(5)
    rows["t_ns"] = np.arange(len(rows))
    for name in ("duration_ns", "bytes_in", "bytes_out", "proc_start_ns", "sock_id", "netns", "cgroup_id"):
        rows[name] = numbers.integers(0, 2**62, len(rows))
    for part in np.array_split(rows, 8):
        store.append([make("tcp_close", len(part), **{name: part[name] for name in part.dtype.names or ()})])
    store.close()
    return len(rows)


def count(path: Path) -> tuple[int, int]:
    with Session(path, ["tcp_close"]) as session:
        return tuple(session.run("SELECT count(*), count(DISTINCT t_ns) FROM tcp_close").rows[0])  # type: ignore[return-value]


def test_no_room_to_seal_loses_nothing_and_leaves_no_half_sealed_files(small: Path) -> None:
    rows = filled(small, 3)
    room = small / "filler"
    room.write_bytes(bytes(int(2.6 * (1 << 20))))
    store = HotStore(small, this_boot(), "host-a", limits=Limits())
    try:
        seal_all(store)
        state = store.state()
        assert state["state"] == "degraded"
        assert "No space left" in str(state["reason"])
        assert "free space" in str(state["remedy"])
        assert not [name for name in os.listdir(small) if name.startswith("seal-")]
        assert count(small) == (rows, rows)
        room.unlink()
        assert store._sealer is not None
        store._sealer._child.restarts.forget()
        seal_all(store)
        assert store.state()["state"] == "ok"
        assert segments.hot_name(1) not in os.listdir(small)
    finally:
        store.close()
    assert count(small) == (rows, rows)


def test_a_sealer_killed_at_any_moment_loses_and_doubles_nothing(tmp_path: Path) -> None:
    rows = filled(tmp_path, 4)
    argv = [sys.executable, "-m", "agent.store.seal", "--below", "2", "--max-bytes", str(1 << 30), "--max-age-s", "1e9"]
    killed = 0
    for step in range(4, 40, 2):
        with subprocess.Popen(
            argv, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        ) as sealer:
            at_work = tmp_path / segments.sealing_name(1)
            while sealer.poll() is None and not at_work.exists():
                time.sleep(0.001)
            time.sleep(step * 0.007)
            sealer.send_signal(signal.SIGKILL)
        killed += sealer.returncode == -signal.SIGKILL
        assert count(tmp_path) == (rows, rows)
        if sealer.returncode == 0:
            break
    assert killed
    subprocess.run(argv, cwd=tmp_path, check=True)
    assert sorted(name for name in os.listdir(tmp_path) if name[:4] in ("hot-", "seal")) == [
        "seal.lock",
        segments.sealed_name(1),
    ]
    assert count(tmp_path) == (rows, rows)
