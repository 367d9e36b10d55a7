"""Every Go limiter library that is declared as seen, by a program that uses them all and says itself what was
decided.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.columns import NULL_I64
from agent.limiters.decision import hashed
from tests.kernel.go_fixture import Limits, go_binary
from tests.kernel.limiter_rig import Watch, names
from tests.patience import until

LIBRARIES = {
    "uber": "go.uber.org/ratelimit",
    "juju": "github.com/juju/ratelimit",
    "tollbooth": "golang.org/x/time/rate",
    "throttled": "github.com/throttled/throttled",
    "ulule": "github.com/ulule/limiter",
    "golimiter": "github.com/sethvargo/go-limiter",
    "redis": "github.com/go-redis/redis_rate",
    "sentinel": "github.com/alibaba/sentinel-golang",
}
PERIOD_NS = 10_000_000  # of uber's limiter


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not shutil.which("redis-server"):
        pytest.skip("needs Redis: apt install redis-server")
    socket = tmp_path_factory.mktemp("redis") / "socket"
    server = subprocess.Popen(
        ["redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(socket.parent)],
        stdout=subprocess.DEVNULL,
    )
    until(socket.exists, 10)
    yield str(socket)
    server.terminate()
    server.wait()


@pytest.fixture
def own(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a build for one test alone: a new inode."""
    return lambda kind: Path(shutil.copy(go_binary(kind, "libraries"), tmp_path / f"libraries-{kind}"))


def uber_slept(truth: list[dict[str, Any]], slewed_ns: int = 0) -> None:
    """Without slack, each that slept was let go one period after the one before it: to the nanosecond, or by the
    monotonic clock.
    """
    before = None
    for reported in sorted(truth, key=lambda reported: reported["until_ns"]):
        slept = before is not None and abs(reported["until_ns"] - before - PERIOD_NS) <= slewed_ns
        reported["result"] = "delayed" if slept else "allowed"
        before = reported["until_ns"]


def passed(name: str, reported: str) -> str:
    """A call that only waits does not say whether it had to."""
    return {"allowed": "passed", "delayed": "passed"}.get(name, name) if reported == "passed" else name


def known(rows: np.ndarray, library: str, version: str) -> None:
    assert set(rows["library"]) == {LIBRARIES[library].encode()}, library
    width = rows["library_version"].dtype.itemsize  # less than a pseudo-version has
    assert set(rows["library_version"]) == {version.encode()[:width]}, library
    assert set(rows["sample_rate"]) == {1.0}


def by_the_log(mode: str, rows: np.ndarray, truth: list[dict[str, Any]]) -> None:
    """Each decision of one goroutine, in order: within the program's clock readings around it, and the same in all that
    the program was told.
    """
    assert len(rows) == len(truth), (mode, len(rows), len(truth))
    if mode == "uber":
        uber_slept(truth, 20_000 if rows["step_immune"].all() else 0)
    for row, name, reported in zip(rows, names(rows), truth, strict=True):
        assert reported["start_ns"] <= row["t_ns"] - row["duration_ns"] <= row["t_ns"] <= reported["end_ns"], (
            mode,
            reported,
        )
        assert passed(name, reported["result"]) == reported["result"], (mode, row, reported)
        assert row["cost"] == reported["cost"]
        assert row["key"] == key_of(reported)
        if reported["limiter"]:
            assert f"{row['member']:#x}" == reported["limiter"].partition("@")[2]
        assert row["limiter_id"].startswith(b"libraries:"), row["limiter_id"]
        assert b"@main." in row["limiter_id"] or b"@tollbooth/" in row["limiter_id"], row["limiter_id"]
        assert (row["wait_ns"] == NULL_I64) == (name in ("refused", "error")), (mode, row)
        if mode in ("throttled", "ulule", "golimiter", "redis") and name != "error":
            assert row["remaining"] == reported["remaining"], (mode, row, reported)
        if name == "delayed" and reported["result"] == "passed":
            assert row["duration_ns"] >= row["wait_ns"]
        elif mode == "juju" and name != "refused":
            assert row["wait_ns"] == reported["wait_ns"]
        elif mode == "uber":
            assert row["program_wall_ns"] + row["wait_ns"] == reported["until_ns"]
            assert row["duration_ns"] >= row["wait_ns"]


def key_of(reported: dict[str, Any]) -> bytes:
    key = reported["key"].encode()
    return b"" if not key else hashed(key if len(key) < 64 else key[:63] + b" %d" % len(key))


#: (limit_per_s, burst, window_ns) by limiter.
HOUR_NS = 3_600_000_000_000
LIMITS = {
    "uber": {(100.0, 1.0, NULL_I64)},
    "juju": {(1 / 3600, 7.0, NULL_I64), (100.0, 3.0, NULL_I64)},
    "tollbooth": {(0.001, 11.0, NULL_I64)},
    "throttled": {(2 / 3600, 7.0, NULL_I64)},
    "ulule": {(5 / 3600, 5.0, HOUR_NS)},
    "golimiter": {(5 / 3600, 5.0, HOUR_NS)},
    "redis": {(5 / 3600, 5.0, HOUR_NS)},
}
COUNTS = {
    "uber": 53,
    "juju": 103,
    "tollbooth": 101,
    "throttled": 211,
    "ulule": 223,
    "golimiter": 227,
    "redis": 229,
    "sentinel": 233,
}


@pytest.mark.parametrize("kind", ["plain", "stripped", "pie", "piestripped", "older", "oldest", "noopt", "race", "cgo"])
def test_each_decision_as_the_program_was_reported(
    watch: Callable[..., Watch], own: Callable[[str], Path], redis: str, kind: str
) -> None:
    """Processes that were there before the agent; ``older``, ``oldest``: versions with other types, fields, arguments
    or import paths.
    """
    path, unsure = own(kind), kind in ("noopt", "race")  # a copy of x/time/rate is known by its first instructions
    modes = [mode for mode in COUNTS if not (unsure and mode == "tollbooth")]
    programs = {mode: Limits.start(path, mode, COUNTS[mode], REDIS_SOCKET=redis) for mode in modes}
    subprocess.run(["redis-cli", "-s", redis, "flushall"], check=True, stdout=subprocess.DEVNULL)
    w = watch()
    w.until(lambda: w.attached_to(path, *(LIBRARIES[mode] for mode in modes)))
    if unsure:
        one = w.of(path, LIBRARIES["tollbooth"])
        assert (one.state, "build it optimised" in one.remedy) == ("unavailable", True)
    for mode, program in programs.items():
        one = w.of(path, LIBRARIES[mode])
        assert (one.state, one.reason) == ("attached", "")
        truth = program.go()
        rows = w.rows(program.pid, COUNTS[mode])
        by_the_log(mode, rows, truth)
        known(rows, mode, one.library_version)
        limits = {(round(float(r["limit_per_s"]), 12), float(r["burst"]), int(r["window_ns"])) for r in rows}
        if mode in LIMITS:
            assert limits == {(round(rate, 12), burst, window) for rate, burst, window in LIMITS[mode]}, mode
        immune = {
            "juju": {1},
            "tollbooth": {1},
            "uber": {int(kind.startswith("old"))},
            "golimiter": {int(kind == "older")},
        }
        assert set(rows["step_immune"]) == immune.get(mode, {0}), mode
        program.end()
    assert w.attached.lost() == 0
    assert w.limiters.orphans == 0


def test_fifty_goroutines_from_the_first_instruction(
    watch: Callable[..., Watch], own: Callable[[str], Path], redis: str
) -> None:
    """Processes that begin after the agent; what a decision was is known by who asked when, or by its key."""
    path = own("plain")
    subprocess.run(["redis-cli", "-s", redis, "flushall"], check=True, stdout=subprocess.DEVNULL)
    w = watch()
    first = Limits.start(path, "juju", 1)
    w.until(lambda: w.attached_to(path, *LIBRARIES.values()))
    turns = 0
    for mode, count in {**COUNTS, "uber": 61}.items():
        program = Limits.start(path, f"{mode}@50", count, at_once=True, REDIS_SOCKET=redis)
        truth = program.truth()
        rows = w.rows(program.pid, count)
        assert len(rows) == len(truth) == count, mode
        if mode == "uber":
            uber_slept(truth)
            until = {reported["until_ns"]: reported for reported in truth}
            for row, name in zip(rows, names(rows), strict=True):
                assert until[int(row["program_wall_ns"] + row["wait_ns"])]["result"] == name
        reported = Counter((key_of(t), t["result"]) for t in truth)
        if mode == "juju":
            assert Counter(n == "refused" for n in names(rows)) == Counter(t["result"] == "refused" for t in truth)
        else:
            assert Counter(zip(rows["key"].tolist(), names(rows), strict=True)) == reported, mode
        assert mode in ("uber", "juju") or len(set(names(rows))) == 2
        turns = max(turns, len(set(rows["goroutine"])))  # how many get one is the scheduler's
        program.end()
    assert turns > 1
    assert w.limiters.orphans == 0
    assert w.attached.lost() == 0
    first.go()
    first.end()


def test_who_waits_within_sentinel_is_delayed(watch: Callable[..., Watch], own: Callable[[str], Path]) -> None:
    """By fifty goroutines at once: some wait, by its clock, and some would wait for too long."""
    path = own("plain")
    program = Limits.start(path, "paced@50", 97)
    w = watch()
    w.until(lambda: w.attached_to(path, LIBRARIES["sentinel"]))
    truth = program.go()
    rows = w.rows(program.pid, 97)
    assert len(rows) == len(truth) == 97
    reported = Counter(names(rows))
    assert reported["refused"] == Counter(t["result"] for t in truth)["refused"] > 10
    assert reported["delayed"] >= 1
    delayed = rows[[name == "delayed" for name in names(rows)]]
    assert (delayed["wait_ns"] <= 25_000_000).all()
    assert (delayed["duration_ns"] >= delayed["wait_ns"]).all()
    assert w.limiters.orphans == 0
    program.end()


def test_a_redis_that_is_not_reached_is_an_error(watch: Callable[..., Watch], own: Callable[[str], Path]) -> None:
    path = own("plain")
    program = Limits.start(path, "redis", 17, REDIS_SOCKET="/nonexistent")
    w = watch()
    w.until(lambda: w.attached_to(path, LIBRARIES["redis"]))
    truth = program.go()
    rows = w.rows(program.pid, 17)
    by_the_log("redis", rows, truth)
    assert set(names(rows)) == {"error"}
    assert np.isnan(rows["remaining"]).all()
    program.end()
