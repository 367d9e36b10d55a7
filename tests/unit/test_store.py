"""The hot store and the sealer: crashes, full disks, a second writer, and readers while both work."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from agent.batch import Batch, make
from agent.columns import NULL_I64, i64
from agent.common.host import boot_id as this_boot
from agent.common.table import T_NS, Table
from agent.errors import AgentError
from agent.store import UNREADABLE, frames, segments
from agent.store.frames import FrameDecoder, FrameKind
from agent.store.hot import HotStore
from agent.store.query import Session
from agent.store.spawn import Limits
from agent.tables import TABLES
from tests.patience import until
from tests.sealing import seal_all

ROOT = Path(__file__).resolve().parents[2]
BOOT = "0f0f0f0f-0000-4000-8000-000000000001"


def open_store(path: Path | int, boot: str = BOOT, limits: Limits | None = None, seal: bool = False) -> HotStore:
    return HotStore(path, boot, "host-a", limits=limits, seal_command=None if seal else ())


def read(path: Path, seq: int) -> list[frames.Frame]:
    return list(frames.read((path / segments.hot_name(seq)).read_bytes()))


def ask(path: Path, sql: str, *tables: str) -> list[tuple[Any, ...]]:
    with Session(path, tables) as session:
        return session.run(sql).rows


def losses(path: Path) -> list[tuple[Any, ...]]:
    return ask(path, "SELECT boot_id, stage, source, count, from_ns, to_ns FROM loss", "loss")


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "tiny"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_appended_rows_and_ticks_are_there_at_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append([make("loss", 3, t_ns=7), make("tcp_reset", 0)], tick_ns=9)
    assert [(f.kind, f.table) for f in read(tmp_path, 1)] == [(FrameKind.ROWS, "loss"), (FrameKind.TICK, "")]
    store.close()
    assert read(tmp_path, 1)[-1].kind == FrameKind.END


def test_a_second_writer_is_reported_who_holds_the_store(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(AgentError, match=f"pid {os.getpid()}") as caught:
        open_store(tmp_path)
    assert caught.value.exit_code == 4
    store.close()
    open_store(tmp_path).close()


def test_a_clean_stop_leaves_no_loss(tmp_path: Path) -> None:
    for _ in range(3):
        store = open_store(tmp_path)
        store.append([make("tcp_reset", 1, t_ns=5)])
        store.close()
    assert losses(tmp_path) == []
    assert ask(tmp_path, "SELECT count(*) FROM tcp_reset", "tcp_reset") == [(3,)]


WRITER = """
import sys
from agent.batch import make
from agent.store.hot import HotStore
store = HotStore(sys.argv[1], sys.argv[2], "host-a", seal_command=())
n = 0
while True:
    store.append([make("tcp_reset", 13, t_ns=n, pid=n)], tick_ns=n)
    n += 1
    print(n, flush=True)
"""


def test_a_killed_writer_loses_at_most_what_it_had_not_appended(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", WRITER, str(tmp_path), BOOT]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as writer:
        assert writer.stdout is not None
        for _ in range(307):
            writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
        acknowledged = 307 + len(writer.stdout.read().splitlines())
    ((rows, whole, last),) = ask(
        tmp_path, "SELECT count(*), count(DISTINCT pid), max(t_ns) FROM tcp_reset", "tcp_reset"
    )
    assert rows == 13 * whole
    assert whole in (acknowledged, acknowledged + 1)
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    open_store(tmp_path).close()
    ((boot, stage, source, count, start, end),) = losses(tmp_path)
    assert (boot, stage, source, count, start) == (BOOT, "store", "agent", None, last)
    assert isinstance(end, int)
    assert before <= end <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def test_who_got_the_number_of_a_killed_writer_is_not_taken_for_it(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", WRITER, str(tmp_path), BOOT]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as killed:
        assert killed.stdout is not None
        killed.stdout.readline()
        killed.kill()
    lock, dir_fd = tmp_path / segments.LOCK, segments.open_dir(tmp_path)
    lock.write_text(lock.read_text().replace(str(killed.pid), str(os.getpid()), 1))
    assert segments.writer(dir_fd) is None
    store = open_store(tmp_path)
    assert segments.writer(dir_fd) == os.getpid()
    store.close()
    os.close(dir_fd)


def before_end(data: bytes) -> int:
    """Where a segment's END begins."""
    decoder, before = frames.FrameDecoder(), 0
    for frame in decoder.feed(data):
        if frame.kind == frames.FrameKind.END:
            break
        before = decoder.offset
    return before


@pytest.mark.parametrize("torn", [1, 9, 40])
def test_a_torn_segment_of_an_earlier_boot_is_a_loss_of_that_boot(tmp_path: Path, torn: int) -> None:
    store = open_store(tmp_path, "earlier-boot")
    store.append([make("tcp_reset", 1, t_ns=101)], tick_ns=103)
    store.append([make("tcp_reset", 1, t_ns=107)])
    store.close()
    name = tmp_path / segments.hot_name(1)
    os.truncate(name, before_end(name.read_bytes()) - torn)
    open_store(tmp_path).close()
    assert losses(tmp_path) == [("earlier-boot", "store", "agent", None, 103, None)]


def test_a_segment_torn_inside_its_head_does_not_stop_the_store(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    os.truncate(tmp_path / segments.hot_name(1), 11)
    store = open_store(tmp_path)
    store.append([make("tcp_reset", 2, t_ns=5)])
    store.close()
    assert ask(tmp_path, "SELECT count(*) FROM tcp_reset", "tcp_reset") == [(2,)]
    assert [row[:5] for row in losses(tmp_path)] == [(BOOT, "store", "agent", None, None)]


def test_a_full_disk_degrades_counts_and_recovers(tiny: Path) -> None:
    filler = tiny / "filler"
    store = open_store(tiny / "store", limits=Limits(buffer_bytes=40_000))
    store.append([make("tcp_reset", 11, t_ns=1)])
    filler.write_bytes(b"x" * 150_000)
    sent = 11
    for n in range(2, 200):
        store.append([make("tcp_reset", 7, t_ns=n)], tick_ns=n)
        sent += 7
        store._retry_at = 0  # Try again at once instead of in a second.
    state = store.state()
    assert state["state"] == "degraded"
    assert "No space left" in str(state["reason"])
    assert "free space" in str(state["remedy"])
    dropped = store.losses()["tcp_reset"]
    assert dropped > 0
    filler.unlink()
    store.append([make("tcp_reset", 1, t_ns=300)])
    assert store.state()["state"] == "ok"
    store.close()
    ((kept,),) = ask(tiny / "store", "SELECT count(*) FROM tcp_reset", "tcp_reset")
    ((_, stage, source, count, start, end),) = losses(tiny / "store")
    assert kept + dropped == sent + 1
    assert (stage, source, count) == ("store", "tcp_reset", dropped)
    stored = {t for (t,) in ask(tiny / "store", "SELECT DISTINCT t_ns FROM tcp_reset", "tcp_reset")}
    assert isinstance(start, int)
    assert isinstance(end, int)
    assert not stored & set(range(start, end + 1))
    decoder = FrameDecoder()
    list(decoder.feed((tiny / "store" / segments.hot_name(1)).read_bytes()))
    assert decoder.ended  # No torn frame was left in the middle.


def test_what_waits_in_memory_is_a_copy(tiny: Path) -> None:
    store = open_store(tiny / "store")
    with pytest.raises(OSError, match="No space"):
        (tiny / "filler").write_bytes(b"x" * 300_000)
    batch = make("finding", 1, t_ns=3, sentence=b"as it was")
    store.append([batch])
    batch.rows["sentence"] = b"overwritten"
    (tiny / "filler").unlink()
    store.close()
    assert ask(tiny / "store", "SELECT sentence FROM finding", "finding") == [("as it was",)]


def test_it_works_through_a_descriptor_where_the_path_cannot_be_walked(tmp_path: Path) -> None:
    place = tmp_path / "closed" / "store"
    place.mkdir(parents=True)
    os.chown(place, 65534, 65534)
    os.chmod(place.parent, 0o700)
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            store = open_store(fd, limits=Limits(rotate_bytes=1))
            for n in range(3):
                store.append([make("tcp_reset", 5, t_ns=n)])
            status = 0 if store.state()["state"] == "ok" else 2
            store.close()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(fd)
    assert ask(place, "SELECT count(*) FROM tcp_reset", "tcp_reset") == [(15,)]


def seal_now(
    path: Path, below: int = 10**7, max_bytes: int = 1 << 30, max_age_s: float = 1e9, *more: str
) -> subprocess.CompletedProcess[str]:
    argv = [
        sys.executable,
        "-m",
        "agent.store.seal",
        "--below",
        str(below),
        "--max-bytes",
        str(max_bytes),
        "--max-age-s",
        str(max_age_s),
        *more,
    ]
    return subprocess.run(
        argv, cwd=path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False, capture_output=True, text=True
    )


def test_segments_of_a_crashed_agent_are_sealed_by_the_next(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append([make("tcp_reset", 17, t_ns=5)])
    store.close()
    os.mkdir(tmp_path / "seal-00000001.tmp")
    (tmp_path / "seal-00000001.tmp" / "loss.parquet").write_bytes(b"half")
    store = open_store(tmp_path, seal=True)
    seal_all(store)
    assert store.state()["state"] == "ok"
    store.close()
    assert {p.name for p in tmp_path.iterdir()} == {
        "sealed-00000001",
        "hot-00000002.tsl",
        "lock",
        "seal.lock",
        "age.json",
        "outage.json",
    }
    assert ask(tmp_path, "SELECT count(*) FROM tcp_reset", "tcp_reset") == [(17,)]


@pytest.mark.parametrize(
    ("step_ns", "bounds"),
    [(0, (1_000, 1_100)), (-50, (1_000, 1_060)), (70, (1_000, 1_170))],
    ids=["none", "back", "forward"],
)
def test_a_sealed_segment_and_its_files_report_whose_they_are_and_their_wall_times(
    tmp_path: Path, step_ns: int, bounds: tuple[int, int]
) -> None:
    """Wall time is CLOCK_BOOTTIME here, until a step after 60 s."""
    s = 10**9
    store = open_store(tmp_path)
    at = np.array([1_000, 1_060]) * s
    clock = make("clock_offset", 2, t_ns=at, boot_mono_ns=0, err_ns=0, cut=[0, 1], real_mono_ns=[0, step_ns * s])
    store.append([clock, make("tcp_reset", 2, t_ns=[1_000 * s, 1_100 * s])])
    store.close()
    assert seal_now(tmp_path).returncode == 0
    folder = tmp_path / segments.sealed_name(1)
    head = json.loads((folder / segments.HEAD).read_text())
    assert (head["host"], head["boot_id"]) == ("host-a", BOOT)
    assert [round(head[name] / s) for name in ("wall_from_ns", "wall_to_ns")] == [*bounds]
    reported = pq.read_metadata(folder / "tcp_reset.parquet").metadata
    assert (reported[b"tickscope.host"], reported[b"tickscope.boot_id"]) == (b"host-a", BOOT.encode())
    assert [round(int(reported[f"tickscope.{name}".encode()]) / s) for name in ("wall_from_ns", "wall_to_ns")] == [
        *bounds
    ]


def test_a_hot_segment_reports_the_wall_time_of_its_creation(tmp_path: Path) -> None:
    before = time.time_ns()
    open_store(tmp_path).close()
    decoder = FrameDecoder()
    list(decoder.feed((tmp_path / segments.hot_name(1)).read_bytes()))
    head = decoder.head
    assert head is not None
    assert before <= head.wall_from_ns <= time.time_ns() and head.wall_to_ns == NULL_I64


def test_a_sealer_killed_between_publishing_and_removing_duplicates_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append([make("tcp_reset", 17, t_ns=5)])
    store.close()
    hot = (tmp_path / segments.hot_name(1)).read_bytes()
    assert seal_now(tmp_path).returncode == 0
    (tmp_path / segments.hot_name(1)).write_bytes(hot)
    assert ask(tmp_path, "SELECT count(*) FROM tcp_reset", "tcp_reset") == [(17,)]
    assert seal_now(tmp_path).returncode == 0
    assert not (tmp_path / segments.hot_name(1)).exists()


def test_a_damaged_segment_is_sealed_as_far_as_it_goes_with_a_loss_row(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append([make("tcp_reset", 3, t_ns=5)])
    store.append([make("tcp_reset", 4, t_ns=6)])
    store.close()
    path = tmp_path / segments.hot_name(1)
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    assert seal_now(tmp_path).returncode == 0
    assert ask(tmp_path, "SELECT count(*) FROM tcp_reset", "tcp_reset") == [(3,)]
    assert [row[1:5] for row in losses(tmp_path)] == [("store", "segment", None, 5)]


def test_an_unreadable_segment_is_named_and_the_others_are_sealed(tmp_path: Path) -> None:
    (tmp_path / segments.hot_name(1)).write_bytes(b"something else")
    store = open_store(tmp_path)
    store.append([make("tcp_reset", 3, t_ns=5)])
    store.close()
    done = seal_now(tmp_path)
    assert done.returncode == UNREADABLE
    assert segments.hot_name(1) in done.stderr
    assert (tmp_path / segments.sealed_name(2)).is_dir()


WIDGETS = Table("widgets", "what a probe of somebody's counts", (T_NS, i64("made", "widgets")))


def hold_widgets(path: Path) -> None:
    """A closed segment of rows of a table that agent/tables/ has not, and others'."""
    encoder = frames.Encoder({"widgets": WIDGETS, "tcp_reset": TABLES["tcp_reset"]})
    pieces, _ = encoder.batches([make("tcp_reset", 3, t_ns=5), Batch("widgets", WIDGETS.empty(7))])
    head = frames.Head(BOOT, "host-a", "1", 1, 0)
    (path / segments.hot_name(1)).write_bytes(b"".join([encoder.head(head), *pieces, encoder.end()]))


def test_a_segment_with_rows_of_an_unknown_table_is_kept_and_the_others_are_sealed(tmp_path: Path) -> None:
    hold_widgets(tmp_path)
    before = (tmp_path / segments.hot_name(1)).read_bytes()
    store = open_store(tmp_path)
    store.append([make("tcp_reset", 2, t_ns=6)])
    store.close()
    for _ in range(2):
        done = seal_now(tmp_path)
        assert done.returncode == UNREADABLE
        assert done.stderr == f"{segments.hot_name(1)}: kept as it is, since this version has no table widgets\n"
    assert (tmp_path / segments.hot_name(1)).read_bytes() == before
    assert (tmp_path / segments.sealed_name(2)).is_dir()
    assert ask(tmp_path, "SELECT count(*) FROM tcp_reset", "tcp_reset") == [(5,)]


def test_retention_removes_the_oldest_by_size_and_by_age(tmp_path: Path) -> None:
    for n in range(5):
        store = open_store(tmp_path)
        store.append([make("tcp_reset", 3, t_ns=n)])
        store.close()
    seal_now(tmp_path)
    one = sum(file.stat().st_size for file in (tmp_path / segments.sealed_name(1)).iterdir())
    seal_now(tmp_path, max_bytes=3 * one + one // 2)
    assert ask(tmp_path, "SELECT t_ns FROM tcp_reset GROUP BY 1 ORDER BY 1", "tcp_reset") == [(2,), (3,), (4,)]
    head = tmp_path / segments.sealed_name(3) / segments.HEAD
    head.write_text(json.dumps({**json.loads(head.read_text()), "lived_ns": -7200 * 10**9}))
    seal_now(tmp_path, max_age_s=3600)
    assert ask(tmp_path, "SELECT t_ns FROM tcp_reset GROUP BY 1 ORDER BY 1", "tcp_reset") == [(3,), (4,)]


@pytest.mark.parametrize(
    "content", [None, b"", b"{", b"\xff", b"[]", b"{}", b'{"tables": 3}', b'{"tables": {}, "lived_ns": "x"}']
)
def test_a_damaged_head_does_not_stop_sealing_and_retention(tmp_path: Path, content: bytes | None) -> None:
    for n in range(4):
        store = open_store(tmp_path)
        store.append([make("tcp_reset", 3, t_ns=n)])
        store.close()
    seal_now(tmp_path, below=4)
    one = sum(file.stat().st_size for file in (tmp_path / segments.sealed_name(3)).iterdir())
    head = tmp_path / segments.sealed_name(2) / segments.HEAD
    head.unlink() if content is None else head.write_bytes(content)
    done = seal_now(tmp_path, max_bytes=2 * one + one // 2)
    assert done.returncode == 0, done.stderr
    assert ask(tmp_path, "SELECT t_ns FROM tcp_reset GROUP BY 1 ORDER BY 1", "tcp_reset") == [(2,), (3,)]


def with_findings(path: Path, n: int) -> None:
    """n sealed segments, of which each second holds a finding."""
    for i in range(n):
        store = open_store(path)
        offset = make("clock_offset", 1, t_ns=i, real_mono_ns=1000, boot_mono_ns=0, err_ns=1)
        store.append(
            [
                make("tcp_reset", 3, t_ns=i),
                *([make("finding", 1, t_ns=i, finding_id=b"f%d" % i), offset] if i % 2 else []),
            ]
        )
        store.close()
    assert seal_now(path).returncode == 0


def test_findings_and_their_wall_times_outlive_the_bulk(tmp_path: Path) -> None:
    with_findings(tmp_path, 5)
    for _ in range(2):
        assert seal_now(tmp_path, max_bytes=0).returncode == 0
        assert ask(tmp_path, "SELECT count(*) FROM tcp_reset", "tcp_reset") == [(0,)]
        found = ask(tmp_path, "SELECT t_ns, finding_id, wall_ns, wall_state FROM finding ORDER BY 1", "finding")
        assert found == [(1, "f1", 1001, "exact"), (3, "f3", 1003, "exact")]
    assert [sorted(p.name for p in d.iterdir()) for d in sorted(tmp_path.glob("sealed-*"))] == [
        ["clock_offset.parquet", "finding.parquet", "head.json"]
    ] * 2


def test_findings_have_limits_of_their_own(tmp_path: Path) -> None:
    with_findings(tmp_path, 8)
    seal_now(tmp_path, max_bytes=0)
    one = sum(file.stat().st_size for file in (tmp_path / segments.sealed_name(8)).iterdir())
    for more, left in (
        (("--findings-max-bytes", str(3 * one + one // 2)), [3, 5, 7]),
        (("--findings-max-bytes", str(one + one // 2)), [7]),
        (("--findings-max-age-s", "0"), []),
    ):
        assert seal_now(tmp_path, 10**7, 0, 1e9, *more).returncode == 0
        assert ask(tmp_path, "SELECT t_ns FROM finding ORDER BY 1", "finding") == [(n,) for n in left]


def test_a_sealer_killed_while_it_thins_a_segment_leaves_nothing_behind(tmp_path: Path) -> None:
    with_findings(tmp_path, 2)
    folder = tmp_path / segments.sealed_name(2)
    bulk = (folder / "tcp_reset.parquet").read_bytes()
    seal_now(tmp_path, max_bytes=0)
    (folder / "tcp_reset.parquet").write_bytes(bulk)
    (folder / "head.json.tmp").write_bytes(b"{")
    assert ask(tmp_path, "SELECT count(*) FROM tcp_reset", "tcp_reset") == [(0,)]
    seal_now(tmp_path)
    assert {p.name for p in folder.iterdir()} == {"clock_offset.parquet", "finding.parquet", "head.json"}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit('no pyarrow')", "no pyarrow"),
        ("raise SystemExit(1_000_000 * 'warning\\n' + 'no pyarrow')", "no pyarrow"),
        ("import os; os.kill(os.getpid(), 9)", "the sealer ended with SIGKILL"),
        (None, "a process cannot be started: No such file or directory"),
    ],
    ids=["no pyarrow", "long output", "killed", "no command"],
)
def test_a_sealer_that_cannot_run_degrades_the_state_and_readers_see_everything(
    tmp_path: Path, code: str | None, reason: str
) -> None:
    command = (sys.executable, "-c", code) if code else ("/no/such/file",)
    store = HotStore(tmp_path, BOOT, "host-a", limits=Limits(rotate_bytes=1), seal_command=command)
    for n in range(3):
        store.append([make("tcp_reset", 3, t_ns=n)])
    seal_all(store)
    state = store.state()
    assert (state["state"], state["reason"]) == ("degraded", f"cannot seal: {reason}")
    assert "every 30 s" in str(state["remedy"])
    store.close()
    assert ask(tmp_path, "SELECT count(*) FROM tcp_reset", "tcp_reset") == [(9,)]


def test_a_sealer_that_is_at_work_when_the_store_is_closed_ends_by_itself(tmp_path: Path) -> None:
    done = tmp_path / "done"
    command = (sys.executable, "-c", f"import time; time.sleep(1); open({str(done)!r}, 'w')")
    store = HotStore(tmp_path / "store", BOOT, "host-a", limits=Limits(rotate_bytes=1), seal_command=command)
    store.append([make("tcp_reset", 3, t_ns=1)])
    store.append([make("tcp_reset", 3, t_ns=2)])
    store.close()
    assert not done.exists()
    until(done.exists)


STREAM = """
import sys, time
from agent.batch import make
from agent.store.hot import HotStore
from agent.store.spawn import Limits
from tests.sealing import seal_all
store = HotStore(sys.argv[1], sys.argv[2], "host-a", limits=Limits(rotate_bytes=60_000))
for n in range(int(sys.argv[3])):
    store.append([make("tcp_reset", 7, t_ns=n, pid=n)], tick_ns=n)
    time.sleep(0.002)
seal_all(store)
store.close()
"""


def test_readers_beside_a_writer_and_a_sealer_never_lose_or_double_a_row(tmp_path: Path) -> None:
    appends = 1709
    tmp_path = tmp_path / "store"
    argv = [sys.executable, "-c", STREAM, str(tmp_path), this_boot(), str(appends)]
    sql = "SELECT count(*), count(DISTINCT pid), coalesce(max(pid), -1), count(DISTINCT wall_state) FROM tcp_reset"
    seen = []
    with subprocess.Popen(argv, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}) as writer:
        while not any(tmp_path.glob("hot-*")):
            time.sleep(0.01)
        while writer.poll() is None:
            ((rows, distinct, last, _),) = ask(tmp_path, sql, "tcp_reset")
            assert rows == 7 * distinct
            assert distinct == last + 1  # Nothing missing before the newest.
            seen.append(rows)
    assert writer.returncode == 0
    assert seen == sorted(seen)
    assert ask(tmp_path, "SELECT count(*), count(DISTINCT pid) FROM tcp_reset", "tcp_reset") == [(7 * appends, appends)]
    assert len(list(tmp_path.glob("sealed-*"))) > 3
    assert losses(tmp_path) == []


def test_a_segment_that_was_removed_under_the_writer_is_followed_by_another(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append([make("tcp_reset", 3, t_ns=7)])
    for file in tmp_path.glob("hot-*"):
        file.unlink()
    store.append([make("tcp_reset", 5, t_ns=7)])
    assert store.state()["state"] == "ok"
    assert ask(tmp_path, "SELECT count(*) FROM tcp_reset", "tcp_reset") == [(5,)]
    store.close()


def test_a_store_that_was_removed_under_the_writer_is_reported_to_be_gone(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    store.append([make("tcp_reset", 3, t_ns=7)])
    shutil.rmtree(tmp_path / "store")
    store.append([make("tcp_reset", 5, t_ns=7)])
    state = store.state()
    assert (state["state"], state["waiting_rows"]) == ("degraded", 5)
    assert "removed" in str(state["remedy"])
    store.close()
