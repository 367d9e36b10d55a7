"""The adapter for Node, with express-rate-limit and rate-limiter-flexible: each answer is reported as it was, and
nobody is held up, whatever the agent does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.servers.test_limiter_models import TRIALS, same, times
from tests.unit.adapters import ADAPTERS, Program, Reported, apart_from_a_flood, columns, hashed, held_up_by_nobody

SOURCES = Path(__file__).parent / "nodeadapter"
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no node")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("node")
    shutil.copytree(SOURCES, path, dirs_exist_ok=True)
    if shutil.which("npm") is None:
        pytest.skip("no npm: Node's limiters come by it")
    got = subprocess.run(
        ["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=path, capture_output=True, text=True
    )
    if got.returncode:
        pytest.skip(f"the limiters cannot be had: {(got.stdout + got.stderr)[-300:]}")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[[Path], Program]]:
    """Starts the program that lies in this directory."""
    started: list[Program] = []

    def run(here: Path) -> Program:
        command = [
            str(NODE),
            str(here / "limiters.js"),
            str(ADAPTERS / "tickscope.js"),
            str(tmp_path / "intake.stream.sock"),
        ]
        started.append(Program(command))
        return started[-1]

    yield run
    for one in started:
        one.close()


def test_each_answer_of_real_limiters_is_reported_as_it_was(
    run: Callable[[Path], Program], libraries: Path, tmp_path: Path
) -> None:
    reported = Reported(tmp_path)
    program = run(libraries)
    for count, name in enumerate(("api", "old", "login"), 1):
        assert program.ask(name, 11) == (5, 0)
        rows = reported.until(11 * count)[-11:]
        assert reported.results()[-11:] == ["allowed"] * 5 + ["refused"] * 6
        left, burst, cost = ([8, 6, 4, 2, 0], 10, 2) if name == "login" else ([4, 3, 2, 1, 0], 5, 1)
        assert rows["remaining"].tolist() == left + [0] * 6
        assert columns(rows, "limiter_id", "pid", "burst", "window_ns", "cost") == [
            (name.encode(), program.pid, burst, 60 * 10**9, cost)
        ]
        assert (rows["duration_ns"] > 0).all()
        assert (np.abs(rows["program_wall_ns"] - time.time_ns()) < 600 * 10**9).all()
    key = hashed("customer 17")
    assert columns(reported.rows, "limiter_id", "library", "key") == [
        (b"api", b"express-rate-limit", key),
        (b"old", b"express-rate-limit", b""),
        (b"login", b"rate-limiter-flexible", key),
    ]
    reported.close()


def test_express_rate_limit_decides_as_its_model_does(libraries: Path) -> None:
    for seed, (limit, rate, _) in enumerate(TRIALS):
        ms = times(seed, rate) // 1_000_000
        given = json.dumps({"times": ms.tolist(), "window": limit.window_ns // 1_000_000, "limit": limit.count})
        done = subprocess.run(
            [str(NODE), "store.js"], cwd=libraries, input=given, capture_output=True, text=True, check=True
        )
        real = np.array([one == "1" for one in done.stdout.strip()])
        same("fixed window, from its first request", limit, ms * 1_000_000, np.ones(len(ms)), real.tolist())


def test_nobody_is_held_up(run: Callable[[Path], Program], tmp_path: Path) -> None:
    held_up_by_nobody(run(SOURCES), "own", tmp_path, 20_000)


def test_it_has_a_queue_of_its_own(run: Callable[[Path], Program], tmp_path: Path) -> None:
    reported = Reported(tmp_path)
    apart_from_a_flood(run(SOURCES), "own", reported, tmp_path / "intake.stream.sock", "SOCK_STREAM")
    reported.close()


def test_a_program_ends_though_its_socket_is_open(tmp_path: Path) -> None:
    reported = Reported(tmp_path)
    code = (
        "const t = require(process.argv[1]); t.path = process.argv[2]; t.report('once', 'allowed'); setTimeout(() =>"
        " t.report('odd', 'refused', {cost: 1n}), 50); setTimeout(() => {}, 100)"
    )
    where = [str(ADAPTERS / "tickscope.js"), str(tmp_path / "intake.stream.sock")]
    done = subprocess.run(
        [str(NODE), "-e", code, *where],
        timeout=60,
        check=True,
        capture_output=True,
        env={**os.environ, "NODE_OPTIONS": ""},
    )
    assert done.stderr == b""
    assert reported.until(1)["limiter_id"].tolist() == [b"once"], "a cost that is no JSON"
    reported.close()


def test_who_is_skipped_behind_another_limiter_reports_nothing(tmp_path: Path) -> None:
    reported = Reported(tmp_path)
    code = """const t = require(process.argv[1]); t.path = process.argv[2];
    const first = t.watch(async (request, _, next) => {
        request.rateLimit = { limit: 5, remaining: 4 }; next(); }, 'first');
    const skips = t.watch(async (request, _, next) => next(), 'skips');
    const request = {};
    skips(request, {}, () => first(request, {}, () => skips(request, {}, () => t.report('last', 'allowed'))));
    setTimeout(() => {}, 100);"""
    where = [str(ADAPTERS / "tickscope.js"), str(tmp_path / "intake.stream.sock")]
    subprocess.run([str(NODE), "-e", code, *where], timeout=60, check=True, env={**os.environ, "NODE_OPTIONS": ""})
    assert reported.until(2)["limiter_id"].tolist() == [b"first", b"last"]
    reported.close()
