"""Functions of the user's own, as the settings declare them, in programs of four languages that say themselves what was
decided.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.columns import NULL_I64
from agent.common.settings import Place
from agent.common.settings_file import parse
from agent.limiters import catalogue
from agent.limiters.decision import hashed
from agent.limiters.functions.settings import FunctionSettings, declare_all, entries, functions, replayed
from agent.limiters.reading import ALLOWED, ERROR
from agent.limiters.replay.jump import Decisions, Jump
from agent.probes import limiter
from tests.kernel.limiter_rig import Watch, names
from tests.kernel.own_rig import OwnProgram, address, built, copy, linked

WINDOW = """
  language: c
  arguments: {limiter: di, key: si, cost: i32 edx, limit: i32 (di+8)+0}
  results: {result: i32 eax}
  allowed: 1
  refused: 0
  error: ..-1
  window: 1s
  clock: wall
  algorithm: sliding window of slots
  slots: 10
"""
BUCKET = """
  language: c++
  arguments: {limiter: rdi, key: si+0, key_size: si+8, cost: u32 dx, per_s: f64 di+8, burst: i64 di+16}
  results: {result: u8 ax, remaining: i64 limiter+0}
  allowed: 1
  refused: 0
  delayed: 2
"""
SPACING = """
  language: rust
  arguments: {limiter: di, key: si, key_size: dx, cost: u32 cx}
  results: {result: ax, wait: ax us}
  allowed: 0..
  refused: ..-1
  clock: monotonic
"""
INC = """
  language: go
  symbol: main.(*SlidingWindow).Inc
  arguments: {limiter: ax, key: bx, key_size: cx, cost: di, limit: (ax+8)+0}
  results: {result: bool bx, remaining: ax}
  window: 1s
"""
DECLARED = f"""
- name: c
  program: HERE/window-c
  symbol: window_inc{WINDOW}
- name: c.tail
  program: HERE/window-c
  symbol: window_inc_now{WINDOW}
- name: c.stripped
  program: HERE/window-fixed
  address: WINDOW{WINDOW}
- name: c.library
  program: HERE/libwindow.so*
  symbol: window_inc{WINDOW}
- name: bucket
  program: bucket-?
  symbol: shop::Bucket::take(std::string const&, unsigned int){BUCKET}
- name: gate
  program: bucket-1
  language: c++
  symbol: bool shop::Gate<long>::pass(long, long*)
  arguments: {{key: i64 rsi}}
  results: {{result: bool ax}}
- name: bucket.stripped
  program: HERE/stripped
  address: TAKE{BUCKET}
- name: spacing
  program: HERE/spacing
  symbol: spacing::limits::Spacing::reserve{SPACING}
- name: spacing.v0
  program: HERE/spacing-v0
  symbol: spacing::limits::Spacing::reserve{SPACING}
- name: inc
  program: HERE/inc{INC}
- name: inc.stripped
  program: HERE/inc-stripped{INC}
"""
TAKE = "_ZN4shop6Bucket4takeERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEj"
#: File in the test's folder -> build, whether it is stripped, arguments, calls.
PROGRAMS = {
    "window-c": ("c", False, (), 53),
    "window-fixed": ("c, fixed", True, (), 59),
    "bucket-1": ("c++", False, (), 61),
    "stripped": ("c++", True, (), 67),
    "spacing": ("rust", False, (), 71),
    "spacing-v0": ("rust, v0", False, (), 73),
    "inc": ("go", False, ("1",), 79),
    "inc-stripped": ("go, stripped", False, ("50",), 211),
}


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], tuple[FunctionSettings, ...]]]:
    """What the text declares is known to the limiter family until the end of the test."""

    def declare(text: str) -> tuple[FunctionSettings, ...]:
        values, lines = parse(Path("t.yaml"), text)
        kept = entries(values, Place(file="t.yaml", lines=lines))
        declare_all(kept)
        monkeypatch.setattr(limiter, "PROBE", limiter.probe())
        return kept

    yield declare
    catalogue.declare({})


def by_the_log(rows: np.ndarray, truth: list[list[str]]) -> None:
    """Each call, in order, as the program was told: result, cost, key."""
    seen = [(result, float(row["cost"]), bytes(row["key"])) for result, row in zip(names(rows), rows, strict=True)]
    reported = [
        (result, float(cost), hashed(" ".join(key).encode()) if "".join(key) else b"") for result, cost, *key in truth
    ]
    assert seen == reported


def test_each_decision_as_the_program_reports(
    attach: Callable[..., Any], declared: Callable[[str], tuple[FunctionSettings, ...]], tmp_path: Path
) -> None:
    """Programs that were there before the agent: stripped, position-independent and not, in a shared library, by a
    jump, some that throw, fifty goroutines at once.
    """
    files = {name: copy(kind, tmp_path / name, strip) for name, (kind, strip, _, _) in PROGRAMS.items()}
    library = copy("library", tmp_path / "libwindow.so.1")
    text = DECLARED.replace("HERE", str(tmp_path)).replace("TAKE", hex(address(built("c++"), TAKE)))
    kept = declared(text.replace("WINDOW", hex(address(built("c, fixed"), "window_inc"))))
    assert not any(one.wrong for one in kept)
    programs = {name: OwnProgram(files[name], *arguments) for name, (_, _, arguments, _) in PROGRAMS.items()}
    programs["library"] = OwnProgram(linked(library, tmp_path / "with-library"))
    programs["other"] = OwnProgram(copy("c", tmp_path / "not-named"))
    w = Watch(attach, functions=kept)
    try:
        w.until(
            lambda: (
                sum(one.since_ns > 0 for one in w.limiters.binaries.values() if one.library.startswith("own:"))
                == len(kept)
            )
        )
        assert {(one.state, one.reason) for one in w.limiters.binaries.values() if one.library.startswith("own:")} == {
            ("attached", "")
        }
        truth = {name: program.go(PROGRAMS[name][3] if name in PROGRAMS else 83) for name, program in programs.items()}

        def rows(program: str, limiter_name: str, count: int) -> np.ndarray:
            found = w.rows(programs[program].pid, count)
            assert set(found["library"]) == {b"declared"}
            assert set(found["sample_rate"]) == {1.0}
            return np.asarray(found[found["limiter_id"] == limiter_name.encode()])

        def window(program: str, limiter_name: str, count: int) -> None:
            found = rows(program, limiter_name, count)
            by_the_log(found, truth[program])
            assert set(zip(found["limit_per_s"], found["window_ns"], found["step_immune"], strict=True)) == {
                (7.0, 10**9, 0)
            }
            assert set(found["tid"]) == {programs[program].pid}
            assert set(found["goroutine"]) == {NULL_I64}

        window("window-c", "c", 2 * 53)
        window("window-c", "c.tail", 2 * 53)
        window("window-fixed", "c.stripped", 59)
        window("library", "c.library", 83)
        for program, limiter_name, count in (("bucket-1", "bucket", 2 * 61), ("stripped", "bucket.stripped", 67)):
            reported = [words for words in truth[program] if words[0] not in ("gate", "thrown")]
            found = rows(program, limiter_name, count - sum(words[0] == "thrown" for words in truth[program]))
            by_the_log(found, reported)
            assert set(zip(found["limit_per_s"], found["burst"], strict=True)) == {(5.5, 3.0)}
        reported = [[words[1], "1", words[2]] for words in truth["bucket-1"] if words[0] == "gate"]
        by_the_log(rows("bucket-1", "gate", len(reported)), reported)
        for program, limiter_name in (("spacing", "spacing"), ("spacing-v0", "spacing.v0")):
            reported = [words for words in truth[program] if words[0] != "thrown"]
            found = rows(program, limiter_name, len(reported))
            by_the_log(found, [words[:-1] for words in reported])
            waits = [int(wait) * 1000 if wait != "-" else NULL_I64 for *_, wait in reported]
            assert found["wait_ns"].tolist() == waits
            assert set(found["step_immune"]) == {1}
        found = rows("inc", "inc", 79)
        by_the_log(found, [words[:-1] for words in truth["inc"]])
        assert found["remaining"].tolist() == [float(words[-1]) for words in truth["inc"]]
        found = rows("inc-stripped", "inc.stripped", 211)
        seen = Counter(
            zip(names(found), found["cost"].tolist(), found["key"].tolist(), found["remaining"].tolist(), strict=True)
        )
        assert seen == Counter(
            (r, float(c), hashed(" ".join(k).encode()), float(left)) for r, c, *k, left in truth["inc-stripped"]
        )
        assert (found["goroutine"] != NULL_I64).all()
        assert len(w.rows(programs["other"].pid, 0)) == 0
    finally:
        w.close()
        ends = {name: program.end() for name, program in programs.items()}
    assert set(ends.values()) == {0}, ends


def test_one_that_is_wrong_does_not_keep_the_others(
    attach: Callable[..., Any],
    declared: Callable[[str], tuple[FunctionSettings, ...]],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """An unknown register, a function that is not there, an address within an instruction; the last declaration of the
    file is right.
    """
    path = copy("c", tmp_path / "window")
    inside = address(path, "window_inc") + 1
    head = f"- name: NAME\n  program: {path}\n"
    text = (
        head.replace("NAME", "register")
        + "  language: c\n  symbol: window_inc\n  arguments:\n    key: xmm0\n  results: {result: bool ax}\n"
        + head.replace("NAME", "absent")
        + f"  symbol: window_ink{WINDOW}"
        + head.replace("NAME", "inside")
        + f"  address: {inside:#x}{WINDOW}"
        + head.replace("NAME", "right")
        + f"  symbol: window_inc{WINDOW}"
    )
    kept = declared(text)
    program = OwnProgram(path)
    w = Watch(attach, functions=kept)
    try:
        w.until(lambda: w.attached_to(path, "own:right"))
        truth = program.go(41)
        by_the_log(w.rows(program.pid, 41), truth)
        states = {one.library: (one.state, one.reason) for one in w.limiters.binaries.values() if one.path == str(path)}
        assert states["own:absent"][0] == states["own:inside"][0] == "unavailable"
        assert "there is no such function" in states["own:absent"][1]
        assert "would corrupt the program" in states["own:inside"][1]
        reported = [one for one in w.targets.unprobed_programs.reported() if one["probe"] == "limiter:register"]
        assert [one["state"] for one in reported] == ["unavailable"]
        assert "t.yaml:6: arguments.key: there is no register 'xmm0'" in capfd.readouterr().err
    finally:
        w.close()
        assert program.end() == 0


def test_its_decisions_are_replayed(
    attach: Callable[..., Any], declared: Callable[[str], tuple[FunctionSettings, ...]], tmp_path: Path
) -> None:
    """The declared algorithm decides each as the program did, by the time that it was given; a step that did not happen
    is counted to the request.
    """
    path = copy("c", tmp_path / "window")
    text = f"- name: w\n  program: {path}\n  symbol: window_inc{WINDOW}"
    kept = declared(text.replace("key: si, cost: i32 edx", "cost: i32 edx, now: i64 cx ns"))
    program, w = OwnProgram(path), Watch(attach, functions=kept)
    try:
        w.until(lambda: w.attached_to(path, "own:w"))
        for _ in range(40):
            program.go(3)
            time.sleep(0.03)
        rows = w.rows(program.pid, 120)
    finally:
        w.close()
        assert program.end() == 0
    wall = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert (np.abs(rows["program_wall_ns"] - wall - rows["t_ns"]) < 50_000_000).all()
    asked = rows[rows["result"] != ERROR]
    decisions = Decisions(asked, 0, [], replayed(functions(kept)))
    at = int(asked["t_ns"][len(asked) * 2 // 3])
    for size_ns in (-300_000_000, 400_000_000):
        (one,) = decisions.around(Jump(at, size_ns, wall + at, int(asked["t_ns"][-1]), hypothetical=True))
        assert (one.quality, one.reason, one.algorithm) == ("exact", "", "sliding window of slots")
        later = asked["t_ns"] >= at
        assert one.admitted_true == np.count_nonzero(asked["result"][later] == ALLOWED)
        assert one.admitted_program == stepped(asked, at, size_ns)


def stepped(rows: np.ndarray, at: int, size_ns: int) -> int:
    """What a ring of ten slots admits from a step of its clock on, as the program has it."""
    slot, counts, admitted = [0] * 10, [0] * 10, 0
    for row in rows:
        now = int(row["program_wall_ns"] + size_ns * (row["t_ns"] >= at)) // 100_000_000
        total = sum(count for stamp, count in zip(slot, counts, strict=True) if stamp > now - 10)
        if total + row["cost"] <= 7:
            if slot[now % 10] != now:
                slot[now % 10], counts[now % 10] = now, 0
            counts[now % 10] += int(row["cost"])
            admitted += int(row["t_ns"] >= at)
    return admitted
