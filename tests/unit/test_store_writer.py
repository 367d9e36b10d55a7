"""The store's thread: everything in order, and bounded, counted and reported while what it does takes long. A file
system that really is frozen: tests/system.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agent.batch import Batch, make
from agent.clock.history import History
from agent.common.host import boot_id as this_boot
from agent.posix.directories import require_answer
from agent.store import frames, segments, writer
from agent.store.hot import HotStore
from agent.store.query import Session
from agent.store.writer import Writer
from tests.patience import until

S = 10**9
EPOCH_NS = 1_700_000_000 * S


def rows(t_ns: int, n: int = 1) -> Batch:
    return make("tcp_reset", n, t_ns=t_ns)


@pytest.fixture
def store(tmp_path: Path) -> Writer:
    return Writer(HotStore(tmp_path / "store", this_boot(), "host", seal_command=()))


@pytest.fixture
def held(store: Writer, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set to let the thread, which waits, go on."""
    monkeypatch.setattr(writer, "STALLED_S", 0.1)
    monkeypatch.setattr(writer, "CLOSE_S", 0.3)
    begun, go_on = threading.Event(), threading.Event()
    store.later(lambda: (begun.set(), go_on.wait())[0])
    assert begun.wait(5)
    yield go_on
    go_on.set()


def reported(path: Path) -> tuple[int, list[tuple[str, int, int, int]]]:
    with Session(path / "store", ["tcp_reset", "loss"]) as session:
        lost = session.run("SELECT source, count, from_ns, to_ns FROM loss").rows
        return session.run("SELECT count(*) FROM tcp_reset").rows[0][0], lost


def test_rows_and_watermarks_keep_their_order(store: Writer, tmp_path: Path) -> None:
    for n in range(500):
        store.append([rows(n)], tick_ns=n)
        store.append([rows(n, 2)] * (n % 3 == 0))
    store.close()
    found = [
        (f.t_ns,) if f.kind == frames.FrameKind.TICK else (int(f.rows["t_ns"][0]), len(f.rows))
        for f in frames.read((tmp_path / "store" / segments.hot_name(1)).read_bytes())
        if f.kind != frames.FrameKind.END
    ]
    assert found == [one for n in range(500) for one in [(n, 1), (n,), *[(n, 2)] * (n % 3 == 0)]]


def test_files_have_what_a_finding_reports_in_utc(tmp_path: Path) -> None:
    """By what is known when it is written: nothing yet of the first one."""
    history, path = History(), tmp_path / "store"
    store = Writer(HotStore(path, this_boot(), "host", seal_command=()), history.wall)
    first, second = (
        make(
            "finding",
            1,
            t_ns=8 * S,
            finding_id=name,
            sentence_parts=b'["it was so at ",7250000000,", for ",[1420000000,"ns"],"."]',
            sentence=b"-",
        )
        for name in (b"a", b"b")
    )
    store.append([first])
    store.later((written := threading.Event()).set)
    assert written.wait(5)
    offsets = (
        (6 * S, EPOCH_NS, 0),
        (7 * S, EPOCH_NS - 30 * S, 1),
        (9 * S, EPOCH_NS - 30 * S, 0),
    )  # a step back before it
    history.append(
        np.concatenate(
            [
                make("clock_offset", 1, t_ns=t_ns, real_mono_ns=offset, boot_mono_ns=0, err_ns=50, cut=cut).rows
                for t_ns, offset, cut in offsets
            ]
        )
    )
    store.append([second])
    store.close()
    assert bytes(second.rows["sentence"][0]) == b"-"  # others have it, too
    with Session(path, ["finding"]) as session:
        reported = session.run("SELECT sentence FROM finding ORDER BY finding_id").rows
    assert reported == [
        ("it was so at boot+7.250, for 1.42 s.",),
        ("it was so at 2023-11-14T22:12:57.250Z, for 1.42 s.",),
    ]


def test_while_it_is_held_up_rows_wait_are_dropped_counted_and_reported(
    store: Writer, held: threading.Event, tmp_path: Path
) -> None:
    base, sent = rows(0, 4096), 0
    while store.losses().get("tcp_reset", 0) < 100_000:
        base.rows["t_ns"] = sent
        begun = time.monotonic()
        store.append([Batch("tcp_reset", base.rows[:2048])], tick_ns=sent)  # a part of something larger, which changes
        assert time.monotonic() - begun < 0.5
        sent += 2048
        assert sent < 2_000_000
    time.sleep(0.1)
    lost, state = store.losses()["tcp_reset"], store.state()
    assert state["state"] == "degraded" and "the file system does not answer" in state["reason"] and state["remedy"]
    assert (state["dropped_rows"], state["waiting_rows"]) == (lost, sent - lost)
    assert state["waiting_rows"] * base.rows.itemsize < writer.MOST_BYTES + base.rows.nbytes
    assert "stalled: the file system does not answer; try: " in store.problem()
    held.set()
    store.close()
    assert not store.stuck
    assert reported(tmp_path) == (sent - lost, [("tcp_reset", lost, 0, lost - 2048)])
    assert store.losses() == {"tcp_reset": lost}


def test_an_end_that_is_held_up_is_reported_and_not_waited_for(
    store: Writer, held: threading.Event, capfd: pytest.CaptureFixture[str]
) -> None:
    store.append([rows(5, 7)])
    begun = time.monotonic()
    store.close()
    assert store.stuck and time.monotonic() - begun < 2
    assert store.losses() == {"tcp_reset": 7}
    output = capfd.readouterr().err
    assert (
        "7 rows are not stored" in output
        and "this process ends when the file system answers" in output
        and "fsfreeze" in output
    )


def test_what_was_given_up_is_reported_where_the_file_system_answers_in_time(
    store: Writer, held: threading.Event, tmp_path: Path
) -> None:
    store.append([rows(5, 7)])
    store.close()
    held.set()
    store._thread.join(5)
    assert reported(tmp_path) == (0, [("tcp_reset", 7, 5, 5)])


def test_a_directory_that_cannot_be_checked_hides_no_other_trouble(
    store: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = segments.listing
    monkeypatch.setattr(segments, "listing", lambda fd: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    store.append([rows(5)])
    store._seen_s = float("-inf")
    store.append([rows(6)])
    until(lambda: "cannot look at the store: Input/output error" in store.problem())
    monkeypatch.setattr(segments, "listing", real)
    store._seen_s = float("-inf")
    store.append([rows(7)])
    until(lambda: store.problem() == "")
    store.close()
    assert reported(tmp_path) == (3, [])


def test_a_fault_of_what_it_does_does_not_end_it(store: Writer, tmp_path: Path) -> None:
    store.later(lambda: {}["nothing"])
    store.append([rows(5)])
    store.append(iter([rows(6)]), tick_ns=7)
    store.close()
    assert reported(tmp_path) == (2, [])
    assert "KeyError" in store.state()["reason"]


def test_a_file_system_that_answers_is_not_waited_for(tmp_path: Path) -> None:
    begun = time.monotonic()
    require_answer(str(tmp_path / "not" / "there" / "yet"))
    require_answer("/proc/self/nothing")
    assert time.monotonic() - begun < 2
