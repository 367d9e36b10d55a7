"""Programs that re-anchor at real clock steps (at most 0.3 ms, undone) and acknowledge: the examples, in Python and in
Go.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.clock.notices import NoticeSource
from tests.kernel.clock_rig import Rig
from tests.patience import until

pytestmark = pytest.mark.usefixtures("own_clock")

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
SIZES = (300_000, -300_000, -1_000, 1_000, 7_000, -7_000, 100_000)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    one = Rig(tmp_path)
    yield one
    one.close()


def python(_: Path) -> list[str]:
    return [sys.executable, str(EXAMPLES / "reanchor.py")]


def go(directory: Path) -> list[str]:
    environment = {**os.environ, "GOFLAGS": "", "CGO_ENABLED": "0"}
    subprocess.run(
        ["go", "build", "-o", str(directory / "reanchor"), "."], cwd=EXAMPLES / "reanchor", env=environment, check=True
    )
    return [str(directory / "reanchor")]


@pytest.mark.parametrize("language", [python, go])
def test_an_example_moves_its_window_with_each_step_and_acknowledges(
    rig: Rig, tmp_path: Path, language: object
) -> None:
    source = NoticeSource(rig.watch)
    command = [*language(tmp_path), str(rig.path)]  # type: ignore[operator]

    def counts(key: str, least: int) -> None:
        until(lambda: source.state()[key] >= least, why=source.state, turn=lambda: rig.settle(0.05))

    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        counts("subscribers", 2)  # the rig is the other one
        for _ in range(3):
            program.stdin.write("request\n")
            program.stdin.flush()
            assert program.stdout.readline() == "allowed\n"
        before = {"acknowledged": 0} | source.state()
        rig.notices()
        for i, size in enumerate(SIZES, 1):
            rig.python(f"step('raw_clock_adjtime', {size})")
            counts("acknowledged", before["acknowledged"] + i)
        reported = rig.notices()
        moved = [re.fullmatch(r"re-anchored 3 stamps by (-?\d+) ns\n", program.stdout.readline()) for _ in SIZES]
        assert [int(m[1]) for m in moved if m] == [n["size_ns"] for n in reported]
        state = source.state()
        assert state["last_ack"]["limiter"] == "example"
        assert state["last_ack"]["pid"] == program.pid
        assert state["last_ack"]["took_ns"] > 0
        assert [w["pid"] for w in state["waiting"]] == [os.getpid()]  # the rig reads, and never acknowledges
        assert state["pending"] == before["pending"] + len(SIZES)
        program.stdin.close()
    assert len(reported) == len(SIZES)
    assert all(abs(int(n["size_ns"]) - size) <= 2_000 for n, size in zip(reported, SIZES, strict=True))  # type: ignore[call-overload]


def test_the_window_keeps_its_true_length() -> None:
    """The limiter's own arithmetic, on jumps that no test may make: an hour back and an hour forward."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("reanchor", EXAMPLES / "reanchor.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    hour = 3600 * 10**9
    for size in (hour, -hour):
        window = module.SlidingWindow(5, 60 * 10**9)
        now = time.time_ns()
        window.stamps = [
            now - size - age * 10**9 for age in (50, 40, 30, 20, 10)
        ]  # made before the clock moved by size
        stale = module.SlidingWindow(5, 60 * 10**9)
        stale.stamps = list(window.stamps)
        assert stale.allow() == (
            size > 0
        )  # forward: an empty window admits five too many; backward: refuses for an hour
        moved = [t + size if t + size <= now else t for t in window.stamps]
        window.stamps = moved
        assert not window.allow()
        window.stamps = [t - 10 * 10**9 for t in moved]
        assert window.allow()
