"""What a run of the laboratory made is written down, and undone once, by whoever comes after it."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.lab.stage import ledger
from agent.lab.stage.ledger import Ledger, left_behind, sweep, undo


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ledger, "BASE", tmp_path)
    monkeypatch.setattr(ledger, "ENDED_S", 0.2)
    return tmp_path


@pytest.fixture
def run(base: Path) -> Iterator[Ledger]:
    directory = Path(tempfile.mkdtemp(prefix=ledger.PREFIX, dir=base))
    found = Ledger(directory)
    found.add("directory", directory)
    yield found
    found.close()


def test_a_run_at_work_is_left_alone(run: Ledger) -> None:
    assert list(left_behind()) == []
    assert sweep() == []
    assert run.directory.exists()


def test_what_a_dead_run_left_is_removed(run: Ledger) -> None:
    (run.directory / "shared").mkdir()
    (run.directory / "shared" / "file").write_text("x")
    run.close()
    assert list(left_behind()) == [run.directory]
    assert sweep() == []
    assert not run.directory.exists()
    assert undo(run.directory) == [], "twice is as good as once"


def test_what_cannot_be_undone_is_reported_and_the_rest_is_undone(run: Ledger, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    run.add("directory", precious)
    run.close()
    (reported,) = undo(run.directory)
    assert "precious is no directory of the laboratory" in reported
    assert precious.exists()
    assert not run.directory.exists()


def test_an_entry_that_was_cut_off_was_never_made(run: Ledger) -> None:
    with (run.directory / ledger.NAME).open("a") as file:
        file.write('{"what": "cgroup", "pa')
    run.close()
    assert undo(run.directory) == []


def test_directories_of_others_are_not_touched(base: Path) -> None:
    young, old = base / f"{ledger.PREFIX}young", base / f"{ledger.PREFIX}old"
    for path in (young, old):
        path.mkdir()
    os.utime(old, (time.time() - 3600,) * 2)
    other = base / "else"
    other.mkdir()
    (base / f"{ledger.PREFIX}link").symlink_to(other)
    assert sweep() == []
    assert not old.exists(), "no ledger, and too old to be just being made"
    assert young.exists()
    assert other.exists()


def _hold(directory: str, over: str) -> None:
    held = Ledger(Path(directory))
    time.sleep(0.5)
    Path(over).touch()
    held.close()


def test_undoing_waits_for_who_is_at_it(run: Ledger, tmp_path: Path) -> None:
    run.close()
    over = tmp_path / "over"
    other = multiprocessing.get_context("spawn").Process(target=_hold, args=(str(run.directory), str(over)))
    other.start()
    while list(left_behind()):
        time.sleep(0.02)
    assert undo(run.directory) == []
    assert over.exists()
    other.join()
    assert not run.directory.exists()
