"""A limiter library is one declaration: what is probed, reported and compiled follows it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agent.batch import make
from agent.binaries import gofacts
from agent.columns import NULL_I64
from agent.instruments.limiters import decisions as go_decisions
from agent.kernel.loaded_families import BPF_DIR
from agent.limiters import catalogue, libraries
from agent.limiters.decision import Decoder, hashed
from agent.limiters.library import ARGUMENTS, BASES, RESULTS, Function, LimiterLibrary, Refused, Seen, Step, place
from agent.limiters.reading import UNKNOWN
from agent.limiters.replay.ruled import ruled
from agent.probes import limiter
from agent.probes.limiter import PROBE
from tests.kernel.go_fixture import go_program
from tests.unit.test_limiters_cli import RESULT, records

ANOTHER = """
from agent.limiters.library import LimiterLibrary, Step
STEPS = (Step("old", "old", r"v1\\..*"), Step("new", "new"))
LIBRARY = LimiterLibrary("example.com/leak", "go", "wall", "leaky bucket", STEPS)
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


def nothing(r: np.ndarray) -> dict[str, np.ndarray]:
    return {"result": r["ok"]}


def declared(package: str, refused: tuple[Refused, ...] = (), **places: str) -> Seen:
    take = Function("Take", "decision", "limiter_x_begin", "limiter_x_end", places, {"ok": "bx"}, "decisions")
    return Seen("example.com/shop", (f"example.com/shop/{package}",), (take,), "x.Limiter", nothing, refused)


@pytest.mark.parametrize(
    ("version", "clock"), [("v0.7.0", "monotonic"), ("v0.7.1", "wall"), ("v1.0.0", "wall"), ("", "wall")]
)
def test_one_version_of_go_limiter_goes_by_another_clock(version: str, clock: str) -> None:
    row = make("limiter_decision", 1, library=b"github.com/sethvargo/go-limiter", library_version=version.encode()).rows
    assert ruled(row[0]).clock == clock


def test_a_library_is_known_by_being_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leak_of_a_test.py").write_text(ANOTHER)
    monkeypatch.setattr(libraries, "__path__", [*libraries.__path__, str(tmp_path)])
    found = catalogue._found()
    assert {one.library for one in found} - {one.library for one in catalogue.CATALOGUE} == {"example.com/leak"}
    monkeypatch.setattr(catalogue, "CATALOGUE", found)
    steps = [catalogue.look_up("example.com/leak", version) for version in ("v1.2.3", "v2.0.0", "")]
    assert [step and step.back for step in steps] == ["old", "new", "new"]


def test_places_reach_the_programs() -> None:
    assert [place(text) for text in ("ax", "r11", "ax+24", "sp+8", "limiter+128")] == [
        0,
        8,
        16 | 24 << 8,
        25 | 8 << 8,
        26 | 128 << 8,
    ]
    text = declared("ratelimit", n="r11", limit="limiter+16").text(3)
    begin, end = text.splitlines()
    assert begin.startswith(
        "int limiter_x_begin(struct pt_regs *ctx) { on_own_stack(ctx); return limiter_begins(ctx, 3, "
    )
    assert ".n = 8," in begin and f".limit = {26 | 16 << 8}," in begin and ".burst = 15," in begin
    assert "return limiter_ends(ctx, 3, " in end and ".ok = 1," in end and ".n = 15," in end
    names = [program.function for program in PROBE.programs if "probe" in program.kind]
    assert len(names) == len(set(names))
    assert all(f"int {name}(struct pt_regs *ctx) {{ on_own_stack(ctx);" in PROBE.text for name in names)


def test_places_are_those_of_the_kernels_side() -> None:
    text = (BPF_DIR / "limiter_decision.h").read_text()
    fields = re.search(r"struct limiter_places \{(.*?)\};", text, re.S)
    assert fields is not None
    assert re.findall(r"\b(?!u32)\w+", fields[1]) == ["frame", *dict.fromkeys((*ARGUMENTS, *RESULTS))]
    registers = (BPF_DIR / "arch_x86.h").read_text()
    for number, base in enumerate(BASES):
        if base == "limiter":
            assert f"#define LIMITER_ITSELF {number}\n" in text
        else:
            assert f"case {number}: return ctx->{base};" in registers


def test_two_libraries_whose_names_clash_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter, "seen", lambda: {"one": declared("one"), "other": declared("other")})
    with pytest.raises(ValueError, match="other: limiter_x_begin is also a program of one"):
        list(limiter._programs(limiter.seen()))


def take(places: dict[str, str], role: str = "decision") -> Function:
    return Function("Take", role, "a", "b", places, {}, "x")


@pytest.mark.parametrize(
    ("declare", "reason"),
    [
        (lambda: declared("ratelimit", n="rax"), "Take: n in 'rax': one of ax, bx,"),
        (lambda: declared("ratelimit", n="sp"), "Take: n in 'sp': one of ax, bx,"),
        (lambda: declared("ratelimit", n="ax+9999"), "Take: n in 'ax.9999': one of ax, bx,"),
        (lambda: declared("ratelimit", weight="ax"), "Take: nothing is called 'weight': one of limiter, n,"),
        (lambda: take({"n": "ax"}, "sleep"), "Take: nothing is called 'n': one of wait"),
        (lambda: take({}, "guess"), "Take: no role 'guess'"),
        (
            lambda: Seen("m", ("p",), (take({"n": "ax"}), take({"n": "bx"})), "L", nothing).text(0),
            "a of Take has other places elsewhere",
        ),
        (lambda: LimiterLibrary("l", "go", "sundial", "x", (Step("a", "b"),)), "l: no clock 'sundial'"),
        (lambda: LimiterLibrary("l", "go", "wall", "x", ()), "l: the effect of a step is missing"),
    ],
)
def test_a_wrong_declaration_reports_what_is_wrong(declare: Callable[[], object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        declare()


def test_several_libraries_of_one_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by its declaration, one of them of a version that is refused, one undeclared; a dot in a path's last element
    is escaped in Go's symbols.
    """
    for folder in ("ratelimit", "third.v2", "throttle"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "take.go").write_text(PACKAGE.format(folder.partition(".")[0]))
    here = {
        "first": declared("ratelimit"),
        "third": declared("third.v2", (Refused(".*", "is of a test"),)),
        "absent": declared("absent"),
    }
    monkeypatch.setattr(catalogue, "seen", lambda: here)
    with go_program(tmp_path, SHOP, "-ldflags=-s -w").open("rb") as file:
        found = gofacts.analyze(file.fileno())
    assert found is not None
    first, third = found.probed
    assert (first.library, first.state, [program for program, _ in first.sites]) == (
        "first",
        "attached",
        ["limiter_x_begin", "limiter_x_end"],
    )
    assert (third.library, third.state, third.sites) == ("third", "unavailable", [])
    assert third.reason.startswith("example.com/shop ") and third.reason.endswith(" is of a test")
    assert found.others == []  # another package of a module that is reported


def test_what_is_inlined_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ratelimit").mkdir()
    (tmp_path / "ratelimit" / "take.go").write_text(PACKAGE.format("ratelimit").replace("//go:noinline\n", ""))
    main = 'package main\n\nimport "example.com/shop/ratelimit"\n\nfunc main() { println(ratelimit.Take()) }\n'
    monkeypatch.setattr(catalogue, "seen", lambda: {"first": declared("ratelimit")})
    with go_program(tmp_path, main).open("rb") as file:
        found = gofacts.analyze(file.fileno())
    assert found is not None
    (one,) = found.probed
    assert (one.state, one.sites) == ("unavailable", [])
    assert one.reason == "Take is inlined wherever it is called, so nothing can be probed"
    assert "-gcflags=example.com/shop/ratelimit=-l" in one.remedy


COPY = """package rate

import (
	"sync"
	"time"
)

type Limiter struct {{
	before [{words}]uint64
	mu     sync.Mutex
	tokens float64
}}

func New() *Limiter {{ return new(Limiter) }}

//go:noinline
func (lim *Limiter) reserveN(now time.Time, n {kind}, most time.Duration) bool {{
	lim.mu.Lock()
	defer lim.mu.Unlock()
	lim.tokens += float64(len(now.String())) + float64(most)
	return lim.tokens > 1
}}

func (lim *Limiter) Allow(n {kind}) bool {{ return lim.reserveN(time.Now(), n, 0) }}
"""


def test_copies_are_known_by_arguments_and_mutex(tmp_path: Path) -> None:
    """Under whatever path: of the layouts of today and of 2019; another layout is reported, another function is none of
    it.
    """
    uses, imports = "", ""
    for name, words, kind, value in (
        ("today", 0, "int", "1"),
        ("first", 2, "int", "1"),
        ("odd", 5, "int", "1"),
        ("text", 0, "string", '"a"'),
    ):
        (tmp_path / name / "rate").mkdir(parents=True)
        (tmp_path / name / "rate" / "rate.go").write_text(COPY.format(words=words, kind=kind))
        imports += f'\t{name} "example.com/shop/{name}/rate"\n'
        uses += f"\tprintln({name}.New().Allow({value}))\n"
    main = f"package main\n\nimport (\n{imports})\n\nfunc main() {{\n{uses}}}\n"
    with go_program(tmp_path, main, "-ldflags=-s -w").open("rb") as file:
        found = gofacts.analyze(file.fileno())
    assert found is not None
    (one,) = found.probed
    assert (one.library, one.library_version, one.state) == ("golang.org/x/time/rate", "", "degraded")
    assert sorted(program for program, _ in one.sites[::2]) == ["limiter_reserve", "limiter_reserve_2019"]
    assert (
        one.reason
        == "decisions are not seen: the layout of example.com/shop/odd/rate.(*Limiter).reserveN is another one"
    )
    assert one.remedy == "declare its function in limiter_functions"
    assert (
        one.unversioned
        == "a copy of it: example.com/shop/first/rate, example.com/shop/odd/rate, example.com/shop/today/rate"
    )


def test_decisions_of_several_libraries_in_one_batch() -> None:
    r = records(3)
    numbers = list(catalogue.seen())
    x, juju = numbers.index("golang.org/x/time/rate"), numbers.index("github.com/juju/ratelimit")
    r["library"] = [juju, x, juju]
    r["granted"] = [2, UNKNOWN, UNKNOWN]
    r["limit"][[0, 2]], r["period"] = 5, 10**9
    r["wait"], r["ok"] = 7, [0, 1, 1]
    rows = go_decisions.decided(r, go_decisions.unnamed)
    assert rows["library"].tolist() == [numbers[i].encode() for i in (juju, x, juju)]
    assert [name.partition(b"@")[0] for name in rows["limiter_id"].tolist()] == [
        b"ratelimit.Bucket",
        b"rate.Limiter",
        b"ratelimit.Bucket",
    ]
    assert [RESULT.names[i] for i in rows["result"]] == ["allowed", "allowed", "delayed"]
    assert rows["wait_ns"].tolist() == [0, 0, 7]
    assert rows["limit_per_s"].tolist() == [5, 10, 5]


def test_keys_are_hashed_as_those_that_are_reported() -> None:
    long = "k" * 63
    texts = np.array([b"customer 17", b"", b"customer 17", long.encode(), long.encode(), b"a\0"], "S64")
    sizes = np.array([11, UNKNOWN, 11, 63, 99, 2], np.uint64)
    found = go_decisions.keys(texts, sizes).tolist()
    assert (
        found[0]
        == found[2]
        == Decoder("hashed").parse(b'{"limiter":"x","result":"allowed","key":"customer 17"}')[0]["key"]
    )
    assert found[1] == b""
    assert found[5] == hashed(b"a\0")
    assert len(set(found)) == 5


@pytest.mark.parametrize(
    "library",
    [
        "go.uber.org/ratelimit",
        "github.com/throttled/throttled",
        "github.com/ulule/limiter",
        "github.com/sethvargo/go-limiter",
        "github.com/go-redis/redis_rate",
        "github.com/juju/ratelimit",
    ],
)
def test_what_could_not_be_read_is_unknown(library: str) -> None:
    r = records(2)
    for name in ("limit", "burst", "period", "tokens", "granted", "n", "now_wall", "now_ext", "act_wall", "act_ext"):
        r[name] = UNKNOWN
    r["library"] = list(catalogue.seen()).index(library)
    rows = go_decisions.decided(r, go_decisions.unnamed)
    assert np.isnan(rows["limit_per_s"]).all()
    assert np.isnan(rows["burst"]).all()
    assert set(rows["window_ns"]) == {NULL_I64}
