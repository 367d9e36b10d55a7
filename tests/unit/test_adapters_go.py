"""The adapter for Go, copied into a program with real limiters: each answer is told as it was, and nobody is held up, whatever the agent does."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from math import isnan
from pathlib import Path

import pytest

from tests.unit.adapters import ADAPTERS, Told, columns, hashed
from tests.unit.test_intake_connections import flood

SOURCES = Path(__file__).parent / "goadapter"
#: As tickscope.go says it: between two attempts to find an agent.
PAUSE_S = 0.1
Ask = Callable[[str, int], tuple[int, int]]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
def told(tmp_path: Path) -> Iterator[Told]:
    it = Told(tmp_path)
    yield it
    it.close()


@pytest.fixture
def ask(program: Path, tmp_path: Path) -> Iterator[Ask]:
    """Asks the limiter of that name so often; (how often it allowed it, decisions that are still to be told)."""
    command = [str(program), str(tmp_path / "intake.seq.sock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as running:
        assert running.stdin is not None
        assert running.stdout is not None

        def asked(limiter: str, count: int) -> tuple[int, int]:
            running.stdin.write(f"{limiter} {count}\n")  # type: ignore[union-attr]
            allowed, dropped = running.stdout.readline().split()  # type: ignore[union-attr]
            return int(allowed), int(dropped)

        asked.pid = running.pid  # type: ignore[attr-defined]
        yield asked
        running.stdin.close()
        assert running.wait(20) == 0


def test_each_answer_of_real_limiters_is_told_as_it_was(ask: Ask, told: Told) -> None:
    for count, limiter in enumerate(("rate", "store", "juju"), 1):
        assert ask(limiter, 11) == (5, 0)
        rows = told.until(11 * count)[-11:]
        assert told.results()[-11:] == ["allowed"] * 5 + ["refused"] * 6
        assert [int(left) for left in rows["remaining"]] == [4, 3, 2, 1, 0] + [0] * 6
        assert columns(rows, "limiter_id", "burst", "pid") == [(limiter.encode(), 5, ask.pid)]  # type: ignore[attr-defined]
    rows = told.rows
    assert columns(rows[11:22], "key", "library") == [(hashed("customer 17"), b"github.com/sethvargo/go-limiter")]
    assert columns(rows[:11], "key", "library") == [(hashed("192.0.2.1"), b"")]  # httptest's client
    assert rows["limit_per_s"][0] == 1 / 3600
    assert isnan(rows["limit_per_s"][11])
    assert (rows["duration_ns"] > 0).all()


def test_goroutines_tell_each_decision_once_and_what_cannot_be_told_is_counted(ask: Ask, told: Told) -> None:
    assert ask("crowd", 101) == (0, 0)
    told.until(101)
    assert set(told.results()) == {"delayed"}
    assert ask("bad", 3) == (0, 3)
    assert ask("rate", 1) == (1, 0)
    told.until(102)
    assert told.source.losses() == {"malformed": 0, "dropped": 3}


def test_nobody_is_held_up_and_what_is_not_told_is_counted(ask: Ask, tmp_path: Path) -> None:
    assert ask("rate", 11) == (5, 11)  # no agent
    told = Told(tmp_path)
    time.sleep(2 * PAUSE_S)
    _, dropped = ask("rate", 3001)  # an agent that is stopped, or behind
    assert dropped > 0
    told.read()
    assert ask("rate", 1) == (0, 0)
    told.read()
    assert len(told.rows) + told.dropped() == 11 + 3001 + 1
    told.close()
    assert ask("rate", 5) == (0, 5)
    again = Told(tmp_path)
    time.sleep(2 * PAUSE_S)
    assert ask("rate", 2) == (0, 0)
    assert (len(again.until(2)), again.dropped()) == (2, 5)
    again.close()  # another takes its place before it is missed: nothing is lost
    third = Told(tmp_path)
    assert ask("rate", 1) == (0, 0)
    assert (len(third.until(1)), third.dropped()) == (1, 0)
    third.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="the flood is another user's")
def test_anothers_flood_keeps_none_of_it_out(ask: Ask, told: Told, tmp_path: Path) -> None:
    for part in (tmp_path, *tmp_path.parents[:-2]):
        part.chmod(0o755)  # the user nobody connects, too
    with flood(tmp_path / "intake.seq.sock", 3) as sent:
        assert ask("store", 13) == (5, 0)
        rows = told.until(sent + 13)
    assert sent > 13
    assert int((rows["limiter_id"] == b"store").sum()) == 13
