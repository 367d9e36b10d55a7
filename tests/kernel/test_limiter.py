"""Limiter decisions of real Go programs, against what the programs say themselves."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.columns import NULL_I64
from agent.kernel.targets import Targets
from agent.probes.limiter import setup
from agent.tables import TABLES
from tests.kernel.conftest import Attached
from tests.kernel.go_fixture import Limits, go_binary
from tests.kernel.local_attach import LocalAttacher

RESULTS = TABLES["limiter_decision"].by_name["result"].names


class Watch:
    """The limiter family with its sources, attached to every Go program of this host that has the package."""

    def __init__(self, attach: Callable[..., Attached], budget: int = 10_000_000) -> None:
        self.attached = attach("limiter", "exec")
        self.helper = LocalAttacher()
        family = self.attached.loaded.families["limiter"]
        self.targets = Targets(self.helper, self.attached.source)
        (self.limiters,) = setup(family, self.attached.source, self.helper, self.targets, {"limiter_max_hits_per_s": budget})
        self.targets.start()
        self.status: list[np.ndarray] = []

    def turn(self) -> None:
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self.attached.pump()
        self.targets.drain(now)
        self.status += [batch.rows for batch in self.limiters.drain(now) if batch.table == "probe_status"]

    def until(self, done: Callable[[], bool], limit_s: float = 10) -> None:
        end = time.monotonic() + limit_s
        while not done() and time.monotonic() < end:
            self.turn()
            time.sleep(0.005)
        assert done()

    def of(self, path: Path) -> Any:
        return next((b for b in self.limiters.binaries.values() if b.path == str(path)), None)

    def rows(self, pid: int, count: int) -> np.ndarray:
        """The process's decisions in order, after as many as expected and some time in which a surplus would show."""
        found = self.attached.wait("limiter_decision", lambda r: r[r["pid"] == pid], lambda r: len(r) >= count)
        return np.sort(found, order="t_ns")

    def close(self) -> None:
        self.targets.close()
        self.limiters.close()
        self.helper.close()


@pytest.fixture
def watch(attach: Callable[..., Attached]) -> Iterator[Callable[..., Watch]]:
    live: list[Watch] = []

    def start(**more: Any) -> Watch:
        live.append(Watch(attach, **more))
        return live[-1]

    yield start
    for one in live:
        one.close()


@pytest.fixture
def own(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a build for one test alone: a new inode."""

    def copy(kind: str = "plain") -> Path:
        return Path(shutil.copy(go_binary(kind), tmp_path / f"limits-{kind}"))

    return copy


def names(rows: np.ndarray) -> list[str]:
    return [RESULTS[code] for code in rows["result"]]


def bracketed(rows: np.ndarray, truth: list[dict[str, Any]]) -> None:
    """Each decision lies within the program's own clock readings around it, and is of the same limiter and cost."""
    assert len(rows) == len(truth)
    for row, told in zip(rows, truth, strict=True):
        assert told["start_ns"] <= row["t_ns"] - row["duration_ns"] <= row["t_ns"] <= told["end_ns"]
        assert row["limiter_id"].decode() == told["limiter"]
        assert row["cost"] == told["cost"]


def plain_facts(watch: Watch, rows: np.ndarray, pid: int) -> None:
    assert set(rows["pid"]) == {pid}
    assert set(rows["library"]) == {b"golang.org/x/time/rate"}
    assert set(rows["source"]) == {TABLES["limiter_decision"].code("source", "uprobe")}
    assert set(rows["sample_rate"]) == {1.0}
    assert (rows["goroutine"] > 0).all()
    assert watch.attached.lost() == 0
    assert not any(batch.table == "loss" for batch in watch.limiters.drain(1 << 62))


@pytest.mark.parametrize("kind", ["plain", "pie", "stripped", "piestripped", "go1.17.13", "go1.19.13", "go1.21.13"])
def test_allow_in_every_kind_of_binary(watch: Callable[..., Watch], own: Callable[[str], Path], kind: str) -> None:
    """1009 decisions of one goroutine, of a process that was there before the agent."""
    path = own(kind)
    program = Limits.start(path, "allow", 1009)
    w = watch()
    w.until(lambda: w.of(path) is not None)
    assert w.of(path).state == "attached", w.of(path).reason
    truth = program.go()
    rows = w.rows(program.pid, 1009)
    assert names(rows) == [t["result"] for t in truth]
    assert Counter(names(rows)) == {"allowed": 500, "refused": 509}
    bracketed(rows, truth)
    plain_facts(w, rows, program.pid)
    assert rows["program_wall_ns"].tolist() == [t["wall_ns"] for t in truth]
    assert set(rows["step_immune"]) == {1}
    assert set(rows["burst"]) == {500.0}
    assert rows["limit_per_s"] == pytest.approx(np.full(1009, 1 / 3600))
    assert rows["remaining"][:500] == pytest.approx(np.arange(499, -1, -1), abs=0.1)
    assert set(rows["wait_ns"][:500]) == {0}
    assert set(rows["wait_ns"][500:]) == {NULL_I64}
    expected = "v0.3.0" if kind.startswith("go1") else w.of(path).library_version
    assert set(rows["library_version"]) == {expected.encode()}
    program.end()


def test_many_goroutines_and_threads(watch: Callable[..., Watch], own: Callable[[str], Path]) -> None:
    path = own()
    program = Limits.start(path, "many", 101)
    w = watch()
    truth = program.go()
    rows = w.rows(program.pid, 101)
    assert Counter(names(rows)) == Counter(t["result"] for t in truth) == {"allowed": 53, "refused": 48}
    assert len(set(rows["goroutine"])) > 10
    assert len(set(rows["tid"])) > 2
    plain_facts(w, rows, program.pid)
    assert w.limiters.orphans == 0
    by_wall = {t["wall_ns"]: t for t in truth}
    for row in rows:
        told = by_wall[row["program_wall_ns"]]
        assert told["start_ns"] <= row["t_ns"] - row["duration_ns"] <= row["t_ns"] <= told["end_ns"]
        assert RESULTS[row["result"]] == told["result"]
    program.end()


def test_growing_stacks_count_once(watch: Callable[..., Watch], own: Callable[[str], Path]) -> None:
    """A prologue that grows the stack runs the entry twice: one decision, no orphan."""
    path = own()
    program = Limits.start(path, "stacks", 499)
    w = watch()
    truth = program.go()
    rows = w.rows(program.pid, 499)
    assert names(rows) == [t["result"] for t in truth]
    bracketed(rows, truth)
    assert w.limiters.orphans == 0
    assert w.attached.lost() == 0
    program.end()


def test_reserve_with_delay(watch: Callable[..., Watch], own: Callable[[str], Path]) -> None:
    path = own()
    program = Limits.start(path, "reserve", 53)
    w = watch()
    truth = program.go()
    rows = w.rows(program.pid, 53)
    assert names(rows) == [t["result"] for t in truth]
    assert {"allowed", "refused", "delayed"} == set(names(rows))
    bracketed(rows, truth)
    for row, told in zip(rows, truth, strict=True):
        assert row["wait_ns"] == (NULL_I64 if told["result"] == "refused" else told["wait_ns"])
    plain_facts(w, rows, program.pid)
    program.end()


def test_wait_is_one_decision_also_when_it_refuses_early(watch: Callable[..., Watch], own: Callable[[str], Path]) -> None:
    path = own()
    program = Limits.start(path, "wait", 103)
    w = watch()
    truth = program.go()
    rows = w.rows(program.pid, 103)
    assert ["refused" if n == "refused" else "passed" for n in names(rows)] == [t["result"] for t in truth]
    assert Counter(names(rows))["refused"] >= 51
    assert Counter(names(rows))["delayed"] > 5  # one in four consumes, 26 of 103; a token comes every 20 ms
    bracketed(rows, truth)
    plain_facts(w, rows, program.pid)
    program.end()


def test_times_without_monotonic_reading(watch: Callable[..., Watch], own: Callable[[str], Path]) -> None:
    path = own()
    program = Limits.start(path, "utc", 23)
    w = watch()
    truth = program.go()
    rows = w.rows(program.pid, 23)
    assert names(rows) == [t["result"] for t in truth]
    assert set(rows["step_immune"]) == {0}
    assert rows["program_wall_ns"].tolist() == [t["wall_ns"] for t in truth]
    program.end()


def test_several_limiters_of_one_process(watch: Callable[..., Watch], own: Callable[[str], Path]) -> None:
    path = own()
    program = Limits.start(path, "several", 31)
    w = watch()
    truth = program.go()
    rows = w.rows(program.pid, 31)
    bracketed(rows, truth)
    assert names(rows) == [t["result"] for t in truth]
    first, second, third = (rows[i::3] for i in range(3))
    assert [set(r["limit_per_s"]) for r in (first, second)] == [{3.0}, {0.25}]
    assert [set(r["burst"]) for r in (first, second, third)] == [{5.0}, {7.0}, {0.0}]
    assert len(set(rows["limiter_id"])) == 3
    assert np.isnan(third["remaining"]).all()
    program.end()


def test_decisions_that_panic_are_counted_as_orphans(watch: Callable[..., Watch], own: Callable[[str], Path]) -> None:
    path = own()
    program = Limits.start(path, "panic", 17)
    w = watch()
    truth = program.go()
    rows = w.rows(program.pid, 17)
    assert names(rows) == [t["result"] for t in truth]
    bracketed(rows, truth)
    assert w.limiters.orphans == 17
    program.end()


def test_later_processes_from_their_first_instruction_and_none_when_detached(
    watch: Callable[..., Watch], own: Callable[[str], Path]
) -> None:
    """A program that is new is found when it is executed; another process of it is seen from its start; a detached one not at all."""
    path = own()
    w = watch()
    assert w.of(path) is None
    first = Limits.start(path, "allow", 7)
    w.until(lambda: w.of(path) is not None)
    second = Limits.start(path, "allow", 211, at_once=True)
    truth = second.truth()
    rows = w.rows(second.pid, 211)
    assert names(rows) == [t["result"] for t in truth]
    bracketed(rows, truth)
    assert w.attached.lost() == 0
    w.limiters.close()
    first.go()
    assert len(w.rows(first.pid, 1)) == 0
    first.end()
    second.end()


def test_unused_binary_is_let_go(watch: Callable[..., Watch], own: Callable[[str], Path]) -> None:
    path = own()
    program = Limits.start(path, "allow", 3)
    w = watch()
    one = w.of(path)
    assert one.links
    program.go()
    program.end()
    path.unlink()
    start = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    for minutes in range(1, 4):  # the targets' slow rescan, as if it were later
        w.targets.drain(start + minutes * 60_000_000_000)
    assert one.links == []
    assert one.file == -1
    assert one.state == "off"
    assert w.of(path) is None


def test_over_budget_a_binary_is_sampled_and_calm_restores_it(watch: Callable[..., Watch], own: Callable[[str], Path]) -> None:
    path = own()
    program = Limits.start(path, "busy", 12_000)
    w = watch(budget=30_000)
    one = w.of(path)
    program.begin()
    w.until(lambda: one.every > 1)
    assert one.state == "degraded"
    first, w.limiters._budget = one.every, 10_000
    w.until(lambda: one.every > first)
    assert f"one second in {one.every}," in one.reason
    w.until(lambda: bool((w.attached.rows("limiter_decision")["sample_rate"] < 1).any()), limit_s=60)
    w.until(lambda: one.every == 1, limit_s=90)
    assert one.state == "attached"
    rows = w.attached.rows("limiter_decision")
    rates = set(rows["sample_rate"][rows["pid"] == program.pid])
    assert 1.0 in rates
    assert rates - {1.0} <= {1 / k for k in range(2, 61)}
    assert w.attached.lost() == 0
    assert not any(batch.table == "loss" for batch in w.limiters.drain(1 << 62))
    program.truth()
    program.end()


def test_what_cannot_be_probed_says_why(watch: Callable[..., Watch], own: Callable[[str], Path], tmp_path: Path) -> None:
    old = own("go1.16.15")
    program = Limits.start(old, "allow", 5)
    sleeper = subprocess.Popen([shutil.copy("/bin/sleep", tmp_path / "sleep"), "60"])
    w = watch()
    one = w.of(old)
    assert one.state == "unavailable"
    assert "go1.16.15" in one.reason
    assert w.of(tmp_path / "sleep") is None
    w.turn()
    told = np.concatenate(w.status)
    assert any(b"go1.16.15" in reason for reason in told["reason"])
    truth = program.go()
    assert len(truth) == 5
    assert len(w.rows(program.pid, 1)) == 0
    program.end()
    sleeper.kill()
    sleeper.wait()
