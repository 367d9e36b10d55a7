"""A limiter library is one declaration: what is probed, told and compiled follows it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agent.binaries import gofacts
from agent.kernel.load import BPF_DIR
from agent.limiters import catalogue, libraries
from agent.limiters.library import Function, LimiterLibrary, Refused, Seen, Step
from agent.probes import limiter
from agent.probes.beside import go_decisions
from agent.probes.limiter import PROBE
from tests.unit.test_limiters_cli import records

ANOTHER = """
from agent.limiters.library import LimiterLibrary, Step
LIBRARY = LimiterLibrary("example.com/leak", "go", "wall", "leaky bucket", (Step("old", "old", r"v1\\..*"), Step("new", "new")))
"""
SHOP = """package main

import (
	"example.com/shop/ratelimit"
	"example.com/shop/third.v2"
	"example.com/shop/throttle"
)

func main() { println(ratelimit.Take(), third.Take(), throttle.Take()) }
"""
PACKAGE = "package {}\n\nvar n []int\n\n//go:noinline\nfunc Take() int {{ n = append(n, len(n)); return len(n) }}\n"


def declared(package: str, refused: tuple[Refused, ...] = (), **registers: str) -> Seen:
    take = Function("Take", "decision", "limiter_x_begin", "limiter_x_end", registers, {"ok": "bx"}, "decisions")
    return Seen(
        "example.com/shop",
        (f"example.com/shop/{package}",),
        (take,),
        {"tokens": 24},
        "x.Limiter",
        9.0,
        "limiter_x.bpf.c",
        refused,
    )


def test_a_library_is_known_by_being_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leak_of_a_test.py").write_text(ANOTHER)
    monkeypatch.setattr(libraries, "__path__", [*libraries.__path__, str(tmp_path)])
    found = catalogue._found()
    assert {one.library for one in found} - {one.library for one in catalogue.CATALOGUE} == {"example.com/leak"}
    monkeypatch.setattr(catalogue, "CATALOGUE", found)
    steps = [catalogue.look_up("example.com/leak", version) for version in ("v1.2.3", "v2.0.0", "")]
    assert [step and step.back for step in steps] == ["old", "new", "new"]


def test_places_reach_the_programs_by_name() -> None:
    assert catalogue.seen()["golang.org/x/time/rate"].options() == {
        "LIMITER_AT_LIMIT": 8, "LIMITER_AT_BURST": 16, "LIMITER_AT_TOKENS": 24, "LIMITER_AT_LAST_WALL": 32, "LIMITER_AT_LAST_EXT": 40,
        "LIMITER_RESERVE_LIMITER": 0, "LIMITER_RESERVE_NOW_WALL": 1, "LIMITER_RESERVE_NOW_EXT": 2, "LIMITER_RESERVE_N": 4,
        "LIMITER_RESERVED_OK": 0, "LIMITER_RESERVED_ACT_WALL": 3, "LIMITER_RESERVED_ACT_EXT": 4,
        "LIMITER_WAIT_LIMITER": 0, "LIMITER_WAIT_N": 3, "LIMITER_WAIT_NOW_WALL": 4, "LIMITER_WAIT_NOW_EXT": 5, "LIMITER_WAITED_ERROR": 0,
    }  # fmt: skip
    text = "".join((BPF_DIR / name).read_text() for name in PROBE.sources)
    assert [name for name in PROBE.options if "_AT_" not in name and name not in text] == []
    assert declared("ratelimit", n="r11").options() == {
        "LIMITER_X_AT_TOKENS": 24,
        "LIMITER_X_BEGIN_N": 8,
        "LIMITER_X_END_OK": 1,
    }


def test_two_libraries_whose_names_clash_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter, "seen", lambda: {"one": declared("one"), "other": declared("other")})
    with pytest.raises(
        ValueError, match="other: LIMITER_X_AT_TOKENS, LIMITER_X_END_OK, LIMITER_X_LIBRARY is another library's"
    ):
        limiter._options()


@pytest.mark.parametrize(("declare", "reason"), [
    (lambda: declared("ratelimit", n="rax"), "Take: n in 'rax': one of ax, bx,"),
    (lambda: Function("Take", "guess", "a", "b", {}, {}, "x"), "Take: no role 'guess'"),
    (lambda: LimiterLibrary("l", "go", "sundial", "x", (Step("a", "b"),)), "l: no clock 'sundial'"),
    (lambda: LimiterLibrary("l", "go", "wall", "x", ()), "l: what a step does to it is not said"),
])  # fmt: skip
def test_a_wrong_declaration_says_what_is_wrong(declare: Callable[[], object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        declare()


def test_several_libraries_of_one_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by its declaration, one of them of a version that is refused, one undeclared; a dot in a path's last element is escaped in Go's symbols."""
    if not shutil.which("go"):
        pytest.skip("needs Go: apt install golang")
    for folder in ("ratelimit", "third.v2", "throttle"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "take.go").write_text(PACKAGE.format(folder.partition(".")[0]))
    (tmp_path / "main.go").write_text(SHOP)
    (tmp_path / "go.mod").write_text("module example.com/shop\n\ngo 1.18\n")
    subprocess.run(
        ["go", "build", "-ldflags=-s -w", "-o", "shop", "."],
        cwd=tmp_path,
        env=os.environ | {"CGO_ENABLED": "0"},
        check=True,
    )
    here = {
        "first": declared("ratelimit"),
        "third": declared("third.v2", (Refused(".*", "is of a test"),)),
        "absent": declared("absent"),
    }
    monkeypatch.setattr(catalogue, "seen", lambda: here)
    with (tmp_path / "shop").open("rb") as file:
        found = gofacts.examine(file.fileno())
    assert found is not None
    first, third = found.probed
    assert (first.library, first.state, [program for program, _ in first.sites]) == (
        "first",
        "attached",
        ["limiter_x_begin", "limiter_x_end"],
    )
    assert (third.library, third.state, third.sites) == ("third", "unavailable", [])
    assert third.reason.startswith("example.com/shop ") and third.reason.endswith(" is of a test")
    assert found.others == ["example.com/shop/throttle"]


def test_decisions_of_several_libraries_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(go_decisions, "_NAMES", np.array(["one", "other"], "S48"))
    monkeypatch.setattr(go_decisions, "_LIMITERS", ("one.L", "other.L"))
    monkeypatch.setattr(go_decisions, "_UNLIMITED", np.array([100.0, 5.0]))
    r = records(3)
    r["library"] = [1, 0, 1]  # numbers go by name
    rows = go_decisions.decided(r)
    assert rows["library"].tolist() == [b"other", b"one", b"other"]
    assert rows["limiter_id"].tolist() == [b"other.L@0xc000012340", b"one.L@0xc000012340", b"other.L@0xc000012340"]
    assert rows["unlimited"].tolist() == [1, 0, 1]
