"""The adapters for Java, with Bucket4j, Resilience4j and Guava: each answer is reported as it was, and nobody is held
up, whatever the agent does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.adapters import ADAPTERS, Program, Reported, apart_from_a_flood, columns, hashed, held_up_by_nobody

SOURCES = Path(__file__).parent / "javaadapter"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the classes and the libraries are."""
    path = tmp_path_factory.mktemp("java")
    for needed in ("mvn", "javac"):
        if shutil.which(needed) is None:
            pytest.skip(f"no {needed}: Java's libraries come by Maven")
    shutil.copytree(SOURCES, path, dirs_exist_ok=True)
    fetch = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={path}"]
    got = subprocess.run(fetch, cwd=path, capture_output=True, text=True)
    if got.returncode:
        pytest.skip(f"the limiters cannot be had: {got.stdout[-300:]}")
    sources = [*path.glob("*.java"), *ADAPTERS.glob("*.java")]
    subprocess.run(
        ["javac", "-Xlint:all,-processing,-classfile", "-Werror", "-d", path, "-cp", f"{path}/*", *sources], check=True
    )
    return path


@pytest.fixture
def reported(tmp_path: Path) -> Iterator[Reported]:
    it = Reported(tmp_path)
    yield it
    it.close()


@pytest.fixture
def program(built: Path, tmp_path: Path) -> Iterator[Program]:
    it = Program(
        [
            "java",
            "-Xshare:auto",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{built}:{built}/*",
            "Limiters",
            str(tmp_path / "intake.stream.sock"),
        ]
    )
    yield it
    it.close()


def test_each_answer_of_real_limiters_is_reported_as_it_was(program: Program, reported: Reported) -> None:
    for count, limiter in enumerate(("bucket4j", "resilience4j"), 1):
        assert program.ask(limiter, 11) == (5, 0)
        rows = reported.until(11 * count)[-11:]
        assert reported.results()[-11:] == ["allowed"] * 5 + ["refused"] * 6
        assert rows["remaining"].tolist() == [4, 3, 2, 1, 0] + [0] * 6
        assert columns(rows, "limiter_id", "pid", "burst", "limit_per_s", "window_ns", "cost") == [
            (limiter.encode(), program.pid, 5, 5 / 3600, 3600 * 10**9, 1)
        ]
    assert columns(reported.rows[:11], "key", "library") == [(hashed("customer 17"), b"io.github.bucket4j")]
    assert columns(reported.rows[11:], "key", "library") == [(b"", b"resilience4j")]
    assert program.ask("guava", 3) == (1, 0)
    assert program.ask("pace", 3) == (1, 0)
    rows = reported.until(22 + 6)[22:]
    assert reported.results()[22:] == ["allowed", "refused", "refused", "allowed", "delayed", "delayed"]
    assert columns(rows, "limiter_id", "limit_per_s") == [(b"guava", 0.001), (b"pace", 20)]
    assert (rows["wait_ns"][-2:] > 20_000_000).all()
    assert (rows["wait_ns"][-2:] <= rows["duration_ns"][-2:]).all()


def test_threads_report_each_decision_once_whatever_is_in_it(program: Program, reported: Reported) -> None:
    assert program.ask("crowd", 101) == (0, 0)
    assert program.ask("odd", 2) == (2, 0)
    assert program.ask("unknown", 1) == (1, 0)
    assert program.ask("interrupted", 3) == (3, 0)
    rows = reported.until(101 + 6)[101:]
    assert columns(rows[:2], "limiter_id", "key", "cost") == [('ü "\\\n'.encode(), hashed("x" * 500), 1.5)]
    assert columns(rows[3:], "limiter_id") == [(b"interrupted",)]
    assert reported.source.losses() == {"malformed": 0, "dropped": 0}
    assert reported.source.state()["connections"] == 1


def test_nobody_is_held_up_and_what_is_not_reported_is_counted(program: Program, tmp_path: Path) -> None:
    held_up_by_nobody(program, "bucket4j", tmp_path, 3001)


@pytest.mark.skipif(os.geteuid() != 0, reason="the flood is another user's")
def test_anothers_flood_keeps_none_of_it_out(program: Program, reported: Reported, tmp_path: Path) -> None:
    apart_from_a_flood(program, "bucket4j", reported, tmp_path / "intake.stream.sock", "SOCK_STREAM")
