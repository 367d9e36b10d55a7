"""The adapter for Go, copied into a program with real limiters: each answer is reported as it was, and nobody is held
up, whatever the agent does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from math import isnan
from pathlib import Path

import pytest

from tests.unit.adapters import ADAPTERS, Program, Reported, apart_from_a_flood, columns, hashed, held_up_by_nobody

SOURCES = Path(__file__).parent / "goadapter"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("go")
    shutil.copytree(SOURCES, path, dirs_exist_ok=True)
    (path / "tickscope").mkdir()
    shutil.copy(ADAPTERS / "tickscope.go", path / "tickscope")
    environment = {**os.environ, "GOFLAGS": "-buildvcs=false", "CGO_ENABLED": "0"}
    run = {"cwd": path, "env": environment, "capture_output": True, "text": True}
    if (got := subprocess.run(["go", "mod", "download"], **run)).returncode:  # type: ignore[call-overload]
        pytest.skip(f"the limiters cannot be had: {got.stderr[-200:]}")
    subprocess.run(["go", "vet", "./..."], check=True, **run)  # type: ignore[call-overload]
    subprocess.run(["go", "build", "-o", "program", "."], check=True, **run)  # type: ignore[call-overload]
    return path / "program"


@pytest.fixture
def reported(tmp_path: Path) -> Iterator[Reported]:
    it = Reported(tmp_path)
    yield it
    it.close()


@pytest.fixture
def program(built: Path, tmp_path: Path) -> Iterator[Program]:
    it = Program([str(built), str(tmp_path / "intake.seq.sock")])
    yield it
    it.close()


def test_each_answer_of_real_limiters_is_reported_as_it_was(program: Program, reported: Reported) -> None:
    for count, limiter in enumerate(("rate", "store", "juju"), 1):
        assert program.ask(limiter, 11) == (5, 0)
        rows = reported.until(11 * count)[-11:]
        assert reported.results()[-11:] == ["allowed"] * 5 + ["refused"] * 6
        assert [int(left) for left in rows["remaining"]] == [4, 3, 2, 1, 0] + [0] * 6
        assert columns(rows, "limiter_id", "burst", "pid") == [(limiter.encode(), 5, program.pid)]
    rows = reported.rows
    assert columns(rows[11:22], "key", "library") == [(hashed("customer 17"), b"github.com/sethvargo/go-limiter")]
    assert columns(rows[:11], "key", "library") == [(hashed("192.0.2.1"), b"")]  # httptest's client
    assert rows["limit_per_s"][0] == 1 / 3600
    assert isnan(rows["limit_per_s"][11])
    assert (rows["duration_ns"] > 0).all()


def test_goroutines_report_each_decision_once_and_what_cannot_be_reported_is_counted(
    program: Program, reported: Reported
) -> None:
    assert program.ask("crowd", 101) == (0, 0)
    reported.until(101)
    assert set(reported.results()) == {"delayed"}
    assert program.ask("bad", 3) == (0, 3)
    assert program.ask("rate", 1) == (1, 0)
    reported.until(102)
    assert reported.source.losses() == {"malformed": 0, "dropped": 3}


def test_nobody_is_held_up_and_what_is_not_reported_is_counted(program: Program, tmp_path: Path) -> None:
    held_up_by_nobody(program, "rate", tmp_path, 3001)


@pytest.mark.skipif(os.geteuid() != 0, reason="the flood is another user's")
def test_anothers_flood_keeps_none_of_it_out(program: Program, reported: Reported, tmp_path: Path) -> None:
    apart_from_a_flood(program, "store", reported, tmp_path / "intake.seq.sock", "SOCK_SEQPACKET")
