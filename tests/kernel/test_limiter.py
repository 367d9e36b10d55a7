"""Limiter decisions of real Go programs, against what the programs say themselves."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.columns import NULL_I64
from agent.kernel import detach
from agent.kernel.steps import Steps
from agent.tables import TABLES
from tests.kernel.go_fixture import Limits, go_binary
from tests.kernel.limiter_rig import RESULTS, Watch, names
from tests.kernel.local_attach import LocalAttacher


@pytest.fixture
def own(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a build for one test alone: a new inode."""

    def copy(kind: str = "plain") -> Path:
        return Path(shutil.copy(go_binary(kind), tmp_path / f"limits-{kind}"))

    return copy


def bracketed(rows: np.ndarray, truth: list[dict[str, Any]]) -> None:
    """Each decision lies within the program's own clock readings around it, and is of the same limiter and cost."""
    assert len(rows) == len(truth)
    for row, reported in zip(rows, truth, strict=True):
        assert reported["start_ns"] <= row["t_ns"] - row["duration_ns"] <= row["t_ns"] <= reported["end_ns"]
        assert row["limiter_id"].decode().startswith("limits:rate.Limiter@main.")
        assert f"rate.Limiter@{row['member']:#x}" == reported["limiter"]
        assert row["cost"] == reported["cost"]


def plain_facts(watch: Watch, rows: np.ndarray, pid: int) -> None:
    assert set(rows["pid"]) == {pid}
    assert set(rows["library"]) == {b"golang.org/x/time/rate"}
    assert set(rows["source"]) == {TABLES["limiter_decision"].code("source", "uprobe")}
    assert set(rows["sample_rate"]) == {1.0}
    assert (rows["goroutine"] > 0).all()
    assert watch.attached.lost() == 0
    assert not any(batch.table == "loss" for batch in watch.limiters.drain(1 << 62))


@pytest.mark.parametrize(
    "kind",
    [
        "plain",
        "pie",
        "stripped",
        "piestripped",
        "noopt",
        "race",
        "cgo",
        "piecgo",
        "2019",
        "2019noopt",
        "2022",
        "go1.17.13",
        "go1.19.13",
        "go1.21.13",
    ],
)
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
    expected = "v0.3.0" if kind.startswith("go1") or kind == "piecgo" else w.of(path).library_version
    assert set(rows["library_version"]) == {expected.encode()[:24]}
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
        reported = by_wall[row["program_wall_ns"]]
        assert reported["start_ns"] <= row["t_ns"] - row["duration_ns"] <= row["t_ns"] <= reported["end_ns"]
        assert RESULTS[row["result"]] == reported["result"]
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
    for row, reported in zip(rows, truth, strict=True):
        assert row["wait_ns"] == (NULL_I64 if reported["result"] == "refused" else reported["wait_ns"])
    plain_facts(w, rows, program.pid)
    program.end()


@pytest.mark.parametrize("kind", ["plain", "2018", "piestripped"])
def test_a_reservation_that_is_given_back_at_once_is_refused(
    watch: Callable[..., Watch], own: Callable[[str], Path], kind: str
) -> None:
    path = own(kind)
    program = Limits.start(path, "ask", 602)
    w = watch()
    truth = program.go()
    rows = w.rows(program.pid, 602)
    late = {"cancelled": "refused"}  # where the machine let it wait for 10 ms in between
    assert [late.get(name, name) for name in names(rows)] == [t["result"] for t in truth]
    counts = Counter(names(rows))
    assert {"allowed", "refused", "delayed"} <= set(counts) and counts["refused"] > 10 * counts["cancelled"]
    bracketed(rows, truth)
    for row, name, reported in zip(rows, names(rows), truth, strict=True):
        if name == "cancelled":
            continue
        assert row["wait_ns"] == (NULL_I64 if name == "refused" else reported["wait_ns"])
        assert -1.3 < row["remaining"] < (0.3 if name == "refused" else 3)  # one in 2.5 ms, and 3 ms ahead
    plain_facts(w, rows, program.pid)
    program.end()


@pytest.mark.parametrize("kind", ["plain", "2018", "2019", "2022"])
def test_wait_is_one_decision_also_when_it_refuses_early(
    watch: Callable[..., Watch], own: Callable[[str], Path], kind: str
) -> None:
    path = own(kind)
    program = Limits.start(path, "wait", 103)
    w = watch()
    truth = program.go()
    rows = w.rows(program.pid, 103)
    assert [{"allowed": "passed", "delayed": "passed"}.get(n, n) for n in names(rows)] == [t["result"] for t in truth]
    assert (
        Counter(names(rows))["refused"] >= 26
    )  # beyond the burst; a deadline that is as good as over may come to its end first
    assert Counter(names(rows))["cancelled"] >= 26
    assert Counter(names(rows))["delayed"] > 5  # one in four consumes, 26 of 103; a token comes every 20 ms
    bracketed(rows, truth)
    plain_facts(w, rows, program.pid)
    program.end()


@pytest.mark.parametrize("kind", ["plain", "2018", "2019", "2022", "go1.21.13"])
def test_a_wait_whose_caller_gives_up_is_cancelled(
    watch: Callable[..., Watch], own: Callable[[str], Path], kind: str
) -> None:
    """Waits that sleep: some to their end, some until their context is cancelled; a deadline that is too near is a
    refusal at once.
    """
    path = own(kind)
    program = Limits.start(path, "sleep", 23)
    w = watch()
    truth = {t["limiter"]: t for t in program.go()}
    rows = w.rows(program.pid, 46)
    first, rows = rows[rows["wait_ns"] == 0], rows[rows["wait_ns"] != 0]  # each limiter's only token goes first
    assert Counter(names(first)) == {"allowed": 23}
    assert Counter(names(rows)) == {"delayed": 8, "cancelled": 8, "refused": 7}
    for row, name in zip(rows, names(rows), strict=True):
        reported = truth[f"rate.Limiter@{row['member']:#x}"]
        assert {"delayed": "passed"}.get(name, name) == reported["result"]
        assert reported["start_ns"] <= row["t_ns"] - row["duration_ns"] <= row["t_ns"] <= reported["end_ns"]
        if name != "refused":  # the delay that was imposed, and when the wait ended
            assert 150_000_000 < row["wait_ns"] <= 400_000_000
            assert (row["duration_ns"] >= row["wait_ns"]) == (name == "delayed")
    assert set(rows["unlimited"]) == {0}
    plain_facts(w, rows, program.pid)
    program.end()


def test_a_wait_that_is_never_seen_to_end_is_delayed(watch: Callable[..., Watch], own: Callable[[str], Path]) -> None:
    """Its program is killed while it sleeps: reported when the sleep would be over."""
    path = own()
    program = Limits.start(path, "doze", 2)
    w = watch()
    program.begin()
    w.until(lambda: int((w.attached.rows("limiter_decision")["pid"] == program.pid).sum()) == 1)
    program.process.kill()
    program.process.wait()
    rows = w.rows(program.pid, 2)
    assert names(rows) == ["allowed", "delayed"]
    assert rows["wait_ns"][1] > 500_000_000 > rows["duration_ns"][1]


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
    assert np.isnan(third["limit_per_s"]).all()
    assert [set(r["unlimited"]) for r in (first, second, third)] == [{0}, {0}, {1}]
    assert [set(r["burst"]) for r in (first, second, third)] == [{5.0}, {7.0}, {0.0}]
    assert len(set(rows["member"])) == 3
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
    """A program that is new is found when it is executed; another process of it is seen from its start; a detached one
    not at all.
    """
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
    assert len(w.rows(first.pid, 1, limit_s=2)) == 0
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
    unused(w)
    assert one.links == []
    assert one.file == -1
    assert one.state == "off"
    assert w.of(path) is None
    program = Limits.start(path, "allow", 5)
    w.until(lambda: bool((again := w.of(path)) and again.links))
    program.go()
    assert len(w.rows(program.pid, 5)) == 5
    program.end()


@pytest.mark.parametrize("variant", ["written to", "replaced"])
def test_another_program_in_its_place_while_it_has_its_probes(
    watch: Callable[..., Watch], own: Callable[[str], Path], tmp_path: Path, variant: str
) -> None:
    """It was built otherwise: probes at the former places would end it. Written to where nobody runs it, as `cp` does;
    replaced while it runs.
    """
    path, other = own("plain"), Path(shutil.copy(go_binary("noopt"), tmp_path / "other"))
    w = watch()
    first = Limits.start(path, "allow", 101)
    w.until(lambda: bool((one := w.of(path)) and one.links))
    one = w.of(path)
    assert len(first.go()) == 101
    if variant == "written to":
        first.end()
        shutil.copyfile(other, path)  # the same inode
        w.until(lambda: not one.links)
        detach.finish()  # a program that starts before that has breakpoints at the former places
    else:
        other.rename(path)
    second = Limits.start(path, "allow", 211)
    w.until(lambda: any(b is not one and b.path == str(path) and bool(b.links) for b in w.limiters.binaries.values()))
    truth = second.go()
    rows = w.rows(second.pid, 211)
    assert names(rows) == [t["result"] for t in truth]
    bracketed(rows, truth)
    second.end()
    if variant == "replaced":
        first.end()


def unused(w: Watch) -> None:
    """The targets' slow rescan, as if it were later."""
    start = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    for minutes in range(1, 4):
        w.targets.drain(start + minutes * 60_000_000_000)


def test_a_helper_that_is_held_up_costs_no_binary_its_probes(
    watch: Callable[..., Watch], own: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first attach, and at one of a binary that is turned off and on for its cost."""
    w, real = watch(), LocalAttacher.attach_uprobe
    failures = 0

    def held_up(self: LocalAttacher, *args: Any) -> list[int]:
        nonlocal failures
        if failures:
            failures -= 1
            raise TimeoutError(errno.ETIMEDOUT, "the helper does not answer")
        return real(self, *args)

    monkeypatch.setattr(LocalAttacher, "attach_uprobe", held_up)
    failures, path = 1, own()
    program = Limits.start(path, "allow", 3)
    w.until(lambda: not failures)
    full_scan(w)
    w.until(lambda: bool((one := w.of(path)) and one.links))
    one, failures = w.of(path), 2
    w.limiters._probes.detach(one)
    w.until(lambda: not failures)
    w.until(lambda: bool(one.links))
    assert one.state == "attached"
    program.go()
    assert len(w.rows(program.pid, 3)) == 3
    program.end()


def full_scan(w: Watch) -> None:
    w.targets._full_ns = 1


def test_a_binary_that_is_let_go_of_while_its_probes_are_turned_on_closes_each_once(
    watch: Callable[..., Watch], own: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, answers = own(), list[Callable[[], None]]()
    program = Limits.start(path, "allow", 3)
    w, real = watch(), LocalAttacher.attaching
    one = w.of(path)
    monkeypatch.setattr(LocalAttacher, "attaching", lambda self, *args: later(real(self, *args), answers))
    w.limiters._probes.detach(one)
    for number in (1, 2):
        w.until(lambda n=number: len(answers) == n)  # type: ignore[misc]
        answers[-1]()
    program.go()
    program.end()
    unused(w)
    detach.finish()
    with ExitStack() as stack:
        files = [stack.enter_context(open("/dev/null")).fileno() for _ in range(20)]
        answers[-1]()
        detach.finish()
        assert [os.path.realpath(f"/proc/self/fd/{fd}") for fd in files] == ["/dev/null"] * 20


def later(steps: Steps[list[int]], answers: list[Callable[[], None]]) -> Steps[list[int]]:
    """Attaches once its answer is called for."""
    links = yield from steps
    yield lambda done: answers.append(lambda: done(None, None))
    return links


def test_two_binaries_of_one_inode_number_are_distinguished(watch: Callable[..., Watch], tmp_path: Path) -> None:
    """On two file systems: who is turned off, and how much it decides, is nobody else's."""
    mounts = [tmp_path / "one", tmp_path / "other"]
    for mount in mounts:
        mount.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", mount], check=True)
    try:
        paths = [Path(shutil.copy(go_binary(), mount / "limits")) for mount in mounts]
        assert len({path.stat().st_ino for path in paths}) == 1
        programs = [Limits.start(path, "allow", 23) for path in paths]
        w = watch()
        one, other = map(w.of, paths)
        w.limiters._probes.publish(one, 0)
        for program in programs:
            assert len(program.go()) == 23
        assert len(w.rows(programs[1].pid, 23)) == 23
        assert len(w.rows(programs[0].pid, 0)) == 0
        assert [int(w.limiters._probes._read(each)["decisions"][0]) for each in (one, other)] == [0, 23]
        for program in programs:
            program.end()
    finally:
        for mount in mounts:
            subprocess.run(["umount", "-l", mount], check=True)


def test_what_cannot_be_probed_reports_why(
    watch: Callable[..., Watch], own: Callable[[str], Path], tmp_path: Path
) -> None:
    old = own("go1.16.15")
    program = Limits.start(old, "allow", 5)
    sleeper = subprocess.Popen([shutil.copy("/bin/sleep", tmp_path / "sleep"), "60"])
    w = watch()
    one = w.of(old)
    assert one.state == "unavailable"
    assert "go1.16.15" in one.reason
    assert w.of(tmp_path / "sleep") is None
    w.turn()
    reported = np.concatenate(w.reported["probe_status"])
    assert any(b"go1.16.15" in reason for reason in reported["reason"])
    truth = program.go()
    assert len(truth) == 5
    assert len(w.rows(program.pid, 1, limit_s=2)) == 0
    program.end()
    sleeper.kill()
    sleeper.wait()
