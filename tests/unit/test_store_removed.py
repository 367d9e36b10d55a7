"""Queries say which rows retention removed, where what is asked for reaches back to them."""

from __future__ import annotations

import re
import shutil
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from agent.ask.window import Bound
from agent.batch import make
from agent.columns import NULL_I64
from agent.common.host import boot_id as this_boot
from agent.store import removed, segments
from agent.store.frames import Encoder, Head
from agent.store.query import Session
from agent.store.retention import Retention
from agent.store.seal import seal_all

SECOND = 10**9
WALL = 1_700_000_000 * SECOND


def segment(path: Path, seq: int, *, finding: bool = False) -> None:
    """One hour of this boot, from hour ``seq`` on; its wall time is CLOCK_BOOTTIME + WALL."""
    created = seq * 3600 * SECOND
    encoder = Encoder()
    batches = [
        make("tcp_reset", 1, t_ns=created + SECOND),
        make("clock_offset", 1, t_ns=created, real_mono_ns=WALL, boot_mono_ns=0, err_ns=1),
    ]
    pieces, _ = encoder.batches(
        [*batches, *([make("finding", 1, t_ns=created + SECOND, finding_id=b"f")] if finding else [])]
    )
    head = Encoder.head(Head(this_boot(), "host-a", "", created, WALL))
    (path / segments.hot_name(seq)).write_bytes(b"".join([head, *pieces, encoder.end()]))


def reported(path: Path, since: str | None = None, *tables: str) -> list[str]:
    with Session(path, tables or ["tcp_reset", "loss"], since) as session:
        return [text for text in session.notes if "retention" in text]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four hours, sealed but for the last."""
    monkeypatch.chdir(tmp_path)
    for seq in range(1, 5):
        segment(tmp_path, seq, finding=seq == 1)
    assert seal_all(4, Retention(max_bytes=1 << 30, max_age_s=1e9)) == []
    return tmp_path


def cut(path: Path, left: int) -> None:
    """Retention by size, down to this many sealed segments."""
    sizes = [sum(file.stat().st_size for file in folder.iterdir()) for folder in sorted(path.glob("sealed-*"))]
    hot = sum(file.stat().st_size for file in path.glob("hot-*"))
    seal_all(4, Retention(max_bytes=hot + sum(sizes[len(sizes) - left :]), max_age_s=1e9))


def test_nothing_is_reported_while_all_is_there(store: Path) -> None:
    assert reported(store) == []


@pytest.mark.parametrize(("left", "oldest"), [(2, 2), (1, 3), (0, 4)])
def test_what_is_left_begins_where_the_note_reports(store: Path, left: int, oldest: int) -> None:
    cut(store, left)
    (text,) = reported(store)
    at = re.search(r"rows before (\S+) were removed", text)
    assert at is not None
    assert datetime.fromisoformat(at[1]).timestamp() == WALL // SECOND + oldest * 3600


def test_only_a_window_that_reaches_back_is_reported(store: Path) -> None:
    cut(store, 1)
    start = 3 * 3600
    for since, expected in (
        (f"boot+{start}", 0),
        (f"boot+{start - 1}", 1),
        (f"@{WALL // SECOND + start}", 0),
        (f"@{WALL // SECOND + start - 1}", 1),
    ):
        assert len(reported(store, since)) == expected, since


def test_findings_are_kept_longer(store: Path) -> None:
    cut(store, 1)
    assert reported(store, None, "finding") == []
    assert reported(store, None, "finding", "loss", "probe_status") == []  # as the verb asks
    assert reported(store, None, "evidence") == reported(store, None, "evidence", "loss") == []
    assert len(reported(store, None, "loss")) == 1
    assert "all but findings and their evidence" in reported(store)[0]
    assert (store / segments.sealed_name(1) / "finding.parquet").exists()


def test_a_damaged_head_is_no_removed_segment(store: Path) -> None:
    (store / segments.sealed_name(1) / segments.HEAD).write_bytes(b"{")
    assert reported(store) == []
    shutil.rmtree(store / segments.sealed_name(1))
    assert len(reported(store)) == 1


def test_where_wall_time_is_not_known_it_is_reported() -> None:
    oldest = Head("boot-a", "host-a", "", 5 * SECOND, 0)

    def unknown(_: str, t_ns: np.ndarray) -> np.ndarray:
        return np.full(len(t_ns), NULL_I64)

    assert "rows before boot+5.000 were" in str(removed.note(oldest, Bound("boot-b", 0, WALL), unknown))
    assert removed.note(oldest, Bound("boot-b", 0, None), unknown) is None
    assert removed.note(None, None, unknown) is None
