"""Declared functions: their words, meanings, names and code; pure, and with files that lie."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.arch.registers import SYSTEM_V
from agent.arch.x86_code import Body
from agent.binaries import ownfunction
from agent.binaries.elf import ElfError
from agent.binaries.symbolnames import path, pattern, plain
from agent.binaries.symbols import SymbolFile
from agent.binaries.unwind import function_at
from agent.columns import NULL_I64
from agent.common.settings import SettingError
from agent.config import Config, read_file
from agent.errors import AgentError
from agent.limiters.functions import meanings
from agent.limiters.functions.declared import parse
from agent.limiters.functions.seen import read, seen
from agent.limiters.functions.settings import matches, replayed
from agent.limiters.functions.words import Word, WordError
from agent.limiters.functions.words import parse as parse_word
from agent.limiters.reading import ALLOWED, DELAYED, ERROR, REFUSED
from agent.limiters.settings import LimiterSettings
from tests.unit.limiter_records import records

BASE: dict[str, Any] = {"name": "n", "program": "p", "language": "c", "symbol": "s", "results": {"result": "bool ax"}}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("di", Word("di")),
        ("rdi", Word("di")),
        ("i32 edx", Word("dx", "i32")),
        ("f64 di + 24", Word("di+24", "f64")),
        ("(rdi+8)+0", Word("(di+8)+0")),
        ("u64 sp+8 ms", Word("sp+8", "u64", 1_000_000)),
        ("double limiter+16", Word("limiter+16", "f64")),
        ("r9 s", Word("r9", "", 10**9)),
    ],
)
def test_words(text: str, word: Word) -> None:
    assert parse_word(text, SYSTEM_V, limiter=True, timed=True) == word


@pytest.mark.parametrize(
    ("text", "why", "remedy"),
    [
        ("xmm0", "no register 'xmm0'", "registers of floats cannot be read"),
        ("r12", "no register 'r12'", "di, si, dx"),
        ("ax", "'ax' has no meaning there", "di, si, dx"),
        ("int di", "the size of 'int' depends", "i32 in C"),
        ("i33 di", "no type 'i33'", "i32"),
        ("f64 di", "floats in registers cannot be read", "f64 di+24"),
        ("di+5000", "is not a place", "4095"),
        ("di di di", "is not a place", "TYPE"),
        ("", "is not a place", "TYPE"),
        (5, "is not a place", "register"),
        ("sp", "is not a place", "register"),
        ("limiter", "is not a place", "register"),
    ],
)
def test_wrong_words_report_what_to_write(text: object, why: str, remedy: str) -> None:
    with pytest.raises(WordError, match=re.escape(why)) as caught:
        parse_word(text, SYSTEM_V, limiter=True)
    assert remedy in caught.value.remedy


def test_types() -> None:
    words = np.array([0xFFFFFFFF_FFFFFFFF, 0x7FFF0000_FFFFFFFF, 0x12345601, 0x40F00000_00000000], np.uint64)
    assert Word("ax", "i32").integers(words).tolist()[:3] == [-1, -1, 0x12345601]
    assert Word("ax", "bool").integers(words).tolist() == [255, 255, 1, 0]
    assert Word("ax").integers(words).tolist()[0] == -1
    assert Word("ax", "u16").numbers(words).tolist() == [65535, 65535, 0x5601, 0]
    assert Word("di+8", "f64").numbers(words).tolist()[3] == 65536.0
    assert np.isnan(Word("di+8", "i32").numbers(words)[0]) and Word("ax", "i32").numbers(words)[0] == -1


def test_meanings() -> None:
    one = meanings.parse({"allowed": [1, 2], "refused": "other", "error": "..-1", "delayed": "10..20"})
    codes = one.codes(np.array([1, 2, 0, -1, -(1 << 63), 10, 20, 21]))
    assert codes.tolist() == [ALLOWED, ALLOWED, REFUSED, ERROR, ERROR, DELAYED, DELAYED, REFUSED]
    assert str(one) == "allowed: 1 2, error: ..-1, delayed: 10..20, refused: other"
    assert meanings.parse({"allowed": True, "refused": False}).codes(np.array([0, 1, 2])).tolist() == [
        REFUSED,
        ALLOWED,
        meanings.NONE,
    ]
    for given in (
        {"allowed": "x"},
        {"allowed": []},
        {"allowed": ".."},
        {"allowed": 1 << 64},
        {"allowed": "5..3"},
        {"allowed": 1, "refused": "0..2"},
        {"allowed": "other", "refused": "other"},
    ):
        with pytest.raises(ValueError):
            meanings.parse(given)


def test_a_wrong_declaration_names_its_line_and_the_others_hold(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(
        "poll_s: 2\nlimiter_functions:\n  - name: bad\n    program: p\n    language: c\n    symbol: f\n    arguments:\n"
        "      key: xmm1\n    results: {result: bool ax}\n  - {name: good, program: p, language: rust, symbol: f,"
        " results: {result: bool ax}, algorithm: sliding window of slots, window: 1s, limit: 5}\n  - {name: good,"
        " program: p, language: rust, symbol: g, results: {result: bool ax}}\n  - five\n"
    )
    kept = read_file(file, required=True).limiters.limiter_functions
    assert [(one.where, one.wrong) for one in kept] == [
        (f"{file}:8", "arguments.key: there is no register 'xmm1'"),
        (f"{file}:10", ""),
        (f"{file}:11", "name: 'good' is used twice"),
        (f"{file}:12", "there is 'five'"),
    ]
    config = Config(limiters=LimiterSettings(limiter_functions=kept))
    assert Config.from_json(json.loads(json.dumps(config.to_json()))) == config
    output = replayed([parse(kept[1].given)])
    assert [(one.pattern, one.model, one.window_ns, one.count) for one in output] == [
        ("good", "sliding window of slots", 10**9, 5.0),
        ("good@*", "sliding window of slots", 10**9, 5.0),
    ]
    for text in ("limiter_functions: 5\n", "limiter_functions:\n" + "  - {}\n" * 33):
        file.write_text(text)
        with pytest.raises(AgentError, match=f"{file}:1: "):
            read_file(file, required=True)


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ({"name": "a b"}, ("name",)),
        ({"language": "java"}, ("language",)),
        ({"symbol": None}, ()),
        ({"address": 5}, ("address",)),
        ({"symbol": None, "address": "x"}, ("address",)),
        ({"program": None}, ()),
        ({"build_id": "00ff00ff"}, ("program",)),
        ({"arguments": {"kay": "di"}}, ("arguments", "kay")),
        ({"arguments": []}, ("arguments",)),
        ({"results": {"result": "ax"}}, ("results", "result")),
        ({"results": {}}, ("results",)),
        ({"results": {"result": "bool ax", "remaining": "limiter+8"}}, ("results", "remaining")),
        ({"allowed": 1, "refused": 1}, ("allowed",)),
        ({"algorithm": "sundial"}, ("algorithm",)),
        ({"window": "soon"}, ("window",)),
        ({"clock": "moon"}, ("clock",)),
        ({"arguments": {"limit": "di+8"}}, ("arguments", "limit")),
        ({"limit": 5}, ("limit",)),
        ({"window": "1s", "arguments": {"limit": "di+8", "per_s": "di+16"}}, ("arguments", "per_s")),
        ({"arguments": {"key_size": "dx"}}, ("arguments", "key_size")),
        ({"language": "go", "arguments": {"key": "bx"}}, ("arguments", "key")),
        ({"results": {"result": "di"}}, ("results", "result")),
    ],
)
def test_what_is_wrong_is_found(change: dict[str, Any], at: tuple[str, ...]) -> None:
    with pytest.raises(SettingError) as caught:
        parse({key: value for key, value in {**BASE, **change}.items() if value is not None})
    assert caught.value.keys == at
    assert caught.value.remedy or caught.value.why or "cannot be" in str(caught.value)


def test_decisions_by_the_declaration() -> None:
    one = parse(
        {
            **BASE,
            "results": {"result": "i32 ax", "wait": "i32 dx us"},
            "arguments": {"cost": "u8 si", "now": "i64 dx s", "limit": "u32 di+4"},
            "allowed": "0..",
            "refused": "..-1",
            "window": "2s",
            "clock": "wall",
        }
    )
    high = 0xABCD << 32
    r = records(
        n=[high | 3, high | 0x204],
        granted=[0, high | 0xFFFFFFFF],
        wait=[high | 1500, 0],
        limit=[10, 1 << 33],
        now_ext=[1_700_000_000, 1_700_000_001],
    )
    columns = read(one, r)
    assert columns["cost"].tolist() == [3.0, 4.0]
    assert columns["result"].tolist() == [DELAYED, REFUSED]
    assert columns["wait_ns"].tolist() == [1_500_000, NULL_I64]
    assert columns["limit_per_s"].tolist() == [5.0, 0.0]
    assert columns["program_wall_ns"].tolist() == [1_700_000_000_000_000_000, 1_700_000_001_000_000_000]
    assert set(columns["step_immune"]) == {0} and set(columns["window_ns"]) == {2 * 10**9}
    (function,) = seen(one, 3).functions
    assert sorted(function.programs()) == ["limiter_own3_entered", "limiter_own3_left", "limiter_own3_returned"]


def test_the_wait_of_a_delay_that_is_not_read_is_unknown() -> None:
    one = parse({**BASE, "results": {"result": "i32 ax"}, "allowed": 0, "delayed": 2, "refused": 1})
    columns = read(one, records(granted=[0, 1, 2]))
    assert columns["result"].tolist() == [ALLOWED, REFUSED, DELAYED]
    assert columns["wait_ns"].tolist() == [0, NULL_I64, NULL_I64]


def test_programs_are_reported_by_their_paths() -> None:
    one, other = (parse({**BASE, "program": text}) for text in ("/srv/*/shop", "sho?"))
    assert [matches(one, text) for text in ("/srv/a/shop", "/srv/a/shop (deleted)", "/srv/shop", "/srv/a/shop2")] == [
        True,
        True,
        False,
        False,
    ]
    assert [matches(other, text) for text in ("/any/shop", "/any/shopp", "/shop/x")] == [True, False, False]


@pytest.mark.parametrize(
    ("written", "language", "symbol", "fits"),
    [
        ("allow", "c", "allow", True),
        ("allow", "c", "allow.isra.0", True),
        ("allow", "c", "disallow", False),
        ("allow", "c", "_Z5allowv", False),
        ("allow", "c++", "_Z5allowPKc", True),
        ("allow(char const*)", "c++", "_ZL5allowPKc", True),
        ("allow", "c++", "_Z6allowsPKc", False),
        (
            "shop::Window::inc(std::string const&) const",
            "c++",
            "_ZNK4shop6Window3incERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
            True,
        ),
        ("shop::Window::inc", "c++", "_ZN4shop6Window4inc2Ev", False),
        ("shop::Gate<long>::pass", "c++", "_ZN4shop4GateIlE4passElPl", True),
        ("shop::Gate<long>::pass", "c++", "_ZN4shop4GateIiE4passEiPi", False),
        ("bool shop::Gate<int>::pass<char>(int)", "c++", "_ZN4shop4GateIiE4passIcEEbi", True),
        ("(anonymous namespace)::allow(int)", "c++", "_ZN12_GLOBAL__N_15allowEi", True),
        ("shop::allow[abi:cxx11]", "c++", "_ZN4shop5allowEv", False),
        ("spacing::limits::Spacing::reserve", "rust", "_ZN7spacing6limits7Spacing7reserve17h815a332191a02741E", True),
        ("spacing::limits::Spacing::reserve", "rust", "_RNvMNtCswGajlVl0IF_7spacing6limitsNtB2_7Spacing7reserve", True),
        ("spacing::reserve", "rust", "_ZN7spacing11try_reserve17h815a332191a02741E", False),
        (
            "<shop::Limiter as shop::Limit>::allow",
            "rust",
            "_ZN45_$LT$shop..Limiter$u20$as$u20$shop..Limit$GT$5allow17h0123456789abcdefE",
            True,
        ),
        (
            "<tr::shop::Limiter as tr::shop::Limit>::allow",
            "rust",
            "_ZN53_$LT$tr..shop..Limiter$u20$as$u20$tr..shop..Limit$GT$5allow17h222208286f6b473fE",
            True,
        ),
        (
            "<tr::shop::Limiter as tr::shop::Limit>::allow",
            "rust",
            "_RNvXNtCs4aeLWIHSniE_2tr4shopNtB2_7LimiterNtB2_5Limit5allow",
            True,
        ),
        ("<r::Gcra<&str> as r::Limit>::ok", "rust", "_RNvXCs6GmmlP4bgsG_1rINtB2_4GcraReENtB2_5Limit2okB2_", True),
        ("<r::Gcra<&str> as r::Limit>::ok", "rust", "_RNvXCs6GmmlP4bgsG_1rINtB2_4GcrahENtB2_5Limit5checkB2_", False),
        ("_ZN4shop6Window3incEv", "c++", "_ZN4shop6Window3incEv", True),
    ],
)
def test_names_are_matched(written: str, language: str, symbol: str, fits: bool) -> None:
    assert bool(pattern(written, language).fullmatch(symbol.encode() + b"\0")) == fits


def test_paths_and_plain_names() -> None:
    assert path("bool shop::Gate<long, int>::pass(std::map<int, int> const&) const") == [
        "shop",
        "Gate<long, int>",
        "pass",
    ]
    assert plain("_ZN4shop6Window3incERKSs") == "shop::Window::inc"
    assert plain("_ZN7spacing6limits7Spacing7reserve17h815a332191a02741E") == "spacing::limits::Spacing::reserve"
    assert plain("_RNvMNtCswGajlVl0IF_7spacing6limitsNtB2_7Spacing7reserve") == "spacing::limits::Spacing::reserve"
    assert (plain("window_inc"), plain("_Z5allowPKc")) == ("window_inc", "allow")


@pytest.mark.parametrize("language", ["c", "c++", "rust"])
def test_names_that_are_none_match_nothing(language: str) -> None:
    for written in ("as) ", "::", "()", " ", "<", ">(", "a::"):
        assert not pattern(written, language).search(b"_ZN4shop5allowEv\0_RNvCs1_4shop5allow\0")


def test_code() -> None:
    """push rbp; je +1 over nop; ret; jmp out."""
    body = Body([(0x1000, bytes.fromhex("55 7401 90 c3 e9f0ffffff"))])
    assert (body.starts, body.returns, body.leaves) == ({0x1000, 0x1001, 0x1003, 0x1004, 0x1005}, [0x1004], [0x1005])
    assert Body([(0x1000, bytes.fromhex("e90b000000")), (0x1010, bytes.fromhex("c3"))]).leaves == []
    assert Body([(0, bytes.fromhex("ffe0 3effe0 ff10 c3"))]).leaves == [0]  # by a register; of a switch; a call
    for switch in ("4801d0 ffe0", "4c01d8 ffe0", "4c03f8 41ffe7", "ff24c500104000", "48635495 00 4801c2 ffe2"):
        assert Body([(0, bytes.fromhex(switch + " c3"))]).leaves == [], switch
    for leaving in ("4801c2 ffe0", "4801d0 90 ffe0", "ff6010", "41ff24c4", "01d0 ffe0", "ff2500100000"):
        assert len(Body([(0, bytes.fromhex(leaving + " c3"))]).leaves) == 1, leaving
    assert not body.called_before(0x1000, 0x1001) and body.called_before(0x1000, 0x1004)
    for code in ("7401 e8 c3", "d5 01 c3", "48", "cb", "06 c3"):
        with pytest.raises(ElfError):
            Body([(0, bytes.fromhex(code))])


SOURCE = """
__attribute__((noinline)) int allow(int n) { return n % 3 ? n / 7 : __builtin_popcount(n) + n * 3; }
__attribute__((noinline)) static int inner(int n) { return n > 3 ? -1 : n; }
int outer(int n) { return inner(n + 1) + 1; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")
    here = tmp_path_factory.mktemp("own")
    (here / "a.c").write_text(SOURCE)
    subprocess.run(["gcc", "-O1", "-fPIC", "-shared", "-o", str(here / "a.so"), str(here / "a.c")], check=True)
    return here / "a.so"


def asked(**change: Any) -> dict[str, Any]:
    return {
        "library": "own:a",
        "entry": "e",
        "left": "l",
        "returned": "r",
        "language": "c",
        "symbol": "",
        "address": None,
        "offset": None,
        "build_id": "",
        "mapped": True,
        **change,
    }


def test_only_starts_of_instructions_are_places(library: Path, tmp_path: Path) -> None:
    """By the symbols and, once those are gone, by the unwind table: each byte of a function is a start, as objdump has
    them, or refused.
    """
    stripped = tmp_path / "s.so"
    subprocess.run(["strip", "-s", "-o", str(stripped), str(library)], check=True)
    lines = subprocess.run(["nm", "-S", str(library)], check=True, capture_output=True, text=True).stdout.splitlines()
    begin, size = next(
        (int(line.split()[0], 16), int(line.split()[1], 16)) for line in lines if line.endswith(" inner")
    )
    text = subprocess.run(["objdump", "-d", str(library)], check=True, capture_output=True, text=True).stdout
    starts = {int(at, 16) for at in re.findall(r"^ +([0-9a-f]+):", text, re.M)}
    for file in (library, stripped):
        with file.open("rb") as opened:
            assert function_at(SymbolFile(opened.fileno()), begin + size - 1) == (begin, size)
            for at in range(begin, begin + size):
                ((found, _),) = ownfunction.analyze(opened.fileno(), [asked(address=at)])
                refused = "would corrupt the program" in found.reason
                assert refused == (at not in starts), (hex(at), found)
                assert bool(found.sites) == (found.state == "attached")


def test_names_that_are_proposed_can_be_declared(tmp_path: Path) -> None:
    """Not the part of a function that the compiler has put elsewhere."""
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")
    (tmp_path / "a.c").write_text("void abort(void);\nint risky(int n) { if (n == 77) abort(); return n * 3; }\n")
    subprocess.run(["gcc", "-O2", "-fPIC", "-shared", "-o", str(tmp_path / "a.so"), str(tmp_path / "a.c")], check=True)
    with (tmp_path / "a.so").open("rb") as file:
        binary = SymbolFile(file.fileno())
        assert [f.name for f in binary.named(re.compile(rb"risky[^\0]*\0"))] == ["risky.cold", "risky"]
        assert binary.near("risk") == ["risky"]


def test_a_file_that_lies_is_refused(library: Path, tmp_path: Path) -> None:
    """Bytes changed at random, and truncated at random: facts, or an error that is expected."""
    whole, chance, outcomes = library.read_bytes(), random.Random(7), set[str]()
    file = tmp_path / "lies.so"
    questions = [
        asked(symbol="allow"),
        asked(address=0x1110),
        asked(symbol="outer", language="c++"),
        asked(symbol="x", language="go"),
    ]
    for _ in range(300):
        data = bytearray(whole[: chance.choice((len(whole), len(whole), chance.randrange(len(whole))))])
        for _ in range(chance.choice((1, 4, 64))):
            if data:
                data[chance.choice((chance.randrange(len(data)), chance.randrange(min(len(data), 0x400))))] = (
                    chance.randrange(256)
                )
        file.write_bytes(data)
        fd = os.open(file, os.O_RDONLY)
        try:
            outcomes.update(one.state for one, _ in ownfunction.analyze(fd, questions, near=True))
        except ElfError:
            outcomes.add("none")
        finally:
            os.close(fd)
    assert {"attached", "unavailable"} <= outcomes
