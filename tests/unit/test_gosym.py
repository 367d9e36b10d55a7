"""Go symbols: against nm and objdump on real binaries, and refusing what is hostile, truncated or no Go binary."""

from __future__ import annotations

import os
import random
import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.arch import x86_code
from agent.binaries import gobuild, gopcln
from agent.binaries.elf import ElfError
from agent.binaries.gosym import GoBinary
from agent.limiters.catalogue import seen
from tests.kernel.go_fixture import analyze, go_binary

RESERVE, WAIT, *_ = seen()["golang.org/x/time/rate"].symbols()
KINDS = ["plain", "pie", "stripped", "piestripped", "piecgo", "go1.16.15", "go1.17.13", "go1.21.13"]


@pytest.fixture
def opened() -> Iterator[Callable[[Path], int]]:
    fds: list[int] = []

    def open_(path: Path) -> int:
        fds.append(os.open(path, os.O_RDONLY))
        return fds[-1]

    yield open_
    for fd in fds:
        os.close(fd)


def _disassembly(path: Path, start: int, end: int) -> list[tuple[int, str]]:
    text = subprocess.run(
        ["objdump", "-d", "-w", f"--start-address={start}", f"--stop-address={end}", str(path)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [(int(m[1], 16), m[2]) for m in re.finditer(r"^ *([0-9a-f]+):\t(?:[0-9a-f]{2} )+ *\t?(\S+)", text, re.M)]


@pytest.mark.parametrize("kind", KINDS)
def test_functions_and_returns_agree_with_objdump(opened: Callable[[Path], int], kind: str) -> None:
    path = go_binary(kind)
    binary = GoBinary(opened(path))
    functions = binary.functions(binary.names([RESERVE, WAIT, b"runtime.main"]))
    assert {f.name.encode() for f in functions} == {RESERVE, WAIT, b"runtime.main"}
    for function in functions:
        lines = _disassembly(path, function.entry, function.end)
        assert lines[0][0] == function.entry
        assert binary.returns(function) == [at for at, name in lines if name.startswith("ret")]
        if function.name.encode() in (RESERVE, WAIT) and kind != "go1.16.15":  # by which a copy of the package is known
            declared = seen()["golang.org/x/time/rate"].symbols()[function.name.encode()][0]
            assert (binary.lock(function), function.record.args) == (0, declared.argument_bytes)


def test_entries_agree_with_the_symbol_table_and_survive_strip(opened: Callable[[Path], int], tmp_path: Path) -> None:
    path = go_binary()
    symbols = subprocess.run(["nm", str(path)], check=True, capture_output=True, text=True).stdout
    expected = {m[2]: int(m[1], 16) for m in re.finditer(r"^([0-9a-f]+) [tT] (\S+)$", symbols, re.M)}
    names = [RESERVE, WAIT, b"main.main", b"runtime.mallocgc", b"fmt.Sprintf"]
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-o", str(stripped), str(path)], check=True)
    for one in (path, stripped):
        binary = GoBinary(opened(one))
        found = {f.name: f.entry for f in binary.functions(binary.names(names))}
        assert found == {n.decode(): expected[n.decode()] for n in names}


@pytest.mark.parametrize("kind", ["stripped", "piecgo"])
def test_without_section_headers_the_tables_are_found_by_magic(
    opened: Callable[[Path], int], tmp_path: Path, kind: str
) -> None:
    path = go_binary(kind)
    expected = GoBinary(opened(path))
    data = bytearray(path.read_bytes())
    data[40:48] = bytes(8)  # e_shoff
    data[60:64] = bytes(4)  # e_shnum, e_shstrndx
    bare = tmp_path / "bare"
    bare.write_bytes(data)
    binary = GoBinary(opened(bare))
    assert binary.build == expected.build
    assert binary.functions(binary.names([RESERVE])) == expected.functions(expected.names([RESERVE]))


@pytest.mark.parametrize("kind", KINDS)
def test_build_information(opened: Callable[[Path], int], kind: str) -> None:
    path = go_binary(kind)
    build = GoBinary(opened(path)).build
    assert build is not None
    reported = subprocess.run(["go", "version", "-m", str(path)], check=True, capture_output=True, text=True).stdout
    assert build.go_version == reported.split("\n", 1)[0].rpartition(": ")[2]
    assert f"golang.org/x/time\t{build.modules['golang.org/x/time']}" in reported
    if kind.startswith("go1"):
        assert build.minor == int(kind.split(".")[1])


def test_build_information_with_a_replaced_module_and_a_cut_one() -> None:
    text = b"0" * 16 + b"path\tx\nmod\tx\t(devel)\t\ndep\ta/b\tv1.0.0\th1:=\n=>\tc/d\tv2.0.0\th1:=\n" + b"1" * 16
    build = gobuild.parse(b"go1.22.1 X:loopvar", text)
    assert build.modules == {"x": "(devel)", "a/b": "v2.0.0"}
    assert build.minor == 22
    assert gobuild.parse(b"devel +abc", b"").minor is None
    whole = bytes([7]) + b"go1.2.3" + bytes([3]) + b"abc"
    assert gobuild.inline_strings(whole) == (b"go1.2.3", b"abc")
    assert gobuild.inline_strings(whole[:-1]) == (b"go1.2.3", b"")
    assert gobuild.inline_strings(b"\xff" * 40) == (b"", b"")


def test_the_package_of_a_function() -> None:
    names = {
        b"github.com/juju/ratelimit.(*Bucket).Take": b"github.com/juju/ratelimit",
        b"example.com/gopkg%2ev2.New[...]": b"example.com/gopkg.v2",
        b"type..eq.github.com/juju/ratelimit.realClock": b"",
        b"type:.hash.github.com/juju/ratelimit.realClock": b"",
        b"main.main": b"",
    }
    assert {name: gobuild.package_of(name) for name in names} == names


def test_decoder_agrees_with_objdump_on_a_whole_program() -> None:
    """Every instruction boundary of every function of a real binary, some 250,000."""
    path = go_binary()
    text = subprocess.run(
        ["objdump", "-d", "-w", "--insn-width=16", "-j", ".text", str(path)], check=True, capture_output=True, text=True
    ).stdout
    checked = 0
    for block in text.split("\n\n"):
        lines = re.findall(r"^ *([0-9a-f]+):\t((?:[0-9a-f]{2} )+)", block, re.M)
        if not lines or "(bad)" in block:
            continue
        start = int(lines[0][0], 16)
        code = b"".join(bytes.fromhex(raw) for _, raw in lines)
        assert list(x86_code.instructions(code)) == [int(at, 16) - start for at, _ in lines], block[:80]
        checked += len(lines)
    assert checked > 100_000


@pytest.mark.parametrize(
    ("code", "offsets"),
    [
        ("90 c3", [1]),
        ("b8 c3 c3 c3 c3 c3", [5]),  # the immediate is no RET
        ("48 b8 c3 c3 c3 c3 c3 c3 c3 c3 c3", [10]),
        ("66 b8 c3 c3 c3", [4]),
        ("8b 84 c3 c3 c3 c3 c3 c3", [7]),  # nor are SIB and displacement
        ("f6 c3 c3 c3", [3]),  # TEST has an immediate, NOT has none
        ("f6 d3 c3", [2]),
        ("c5 f8 77 c3", [3]),
        ("c4 e3 7d 39 c3 c3 c3", [6]),
        ("62 f1 7c 48 10 c3 c3", [6]),
        ("74 01 c3 c3 cc cc", [2, 3]),
    ],
)
def test_returns_in_hand_made_code(code: str, offsets: list[int]) -> None:
    assert x86_code.return_offsets(bytes.fromhex(code)) == offsets


@pytest.mark.parametrize(
    ("code", "boundaries", "stack", "reason"),
    [
        ("06 c3", (), None, "unknown instruction"),
        ("b8 c3", (), None, "unknown|within the function"),
        ("b8 c3 c3 c3 c3 c3", (2,), None, "disagree"),
        ("74 01 b8 c3 c3 c3 c3 c3", (), None, "middle"),
        ("eb 7f c3", (), None, "left by a jump"),
        ("90 90", (), None, "no return"),
        ("c2 08 00", (), None, "not one that the Go compiler makes"),
        ("50 c3", (), {range(2): 8}, "not one that the Go compiler makes"),
    ],
)
def test_uncertain_code_is_refused(
    code: str, boundaries: tuple[int, ...], stack: dict[range, int] | None, reason: str
) -> None:
    with pytest.raises(ElfError, match=reason):
        x86_code.return_offsets(bytes.fromhex(code), boundaries, stack)


def test_pc_tables() -> None:
    table = bytes([2, 4, 0x10, 3, 0x0F, 1, 0])  # +1 for 4 bytes, +8 for 3, -8 for 1
    assert gopcln.pc_values(table, 1, 8) == {range(4): 0, range(4, 7): 8, range(7, 8): 0}
    with pytest.raises(ElfError, match="runs past"):
        gopcln.pc_values(table, 1, 7)
    with pytest.raises(ElfError, match="cut off"):
        gopcln.pc_values(table[:3], 1, 8)


def test_no_go_binary(opened: Callable[[Path], int], tmp_path: Path) -> None:
    assert analyze(opened(Path("/bin/true"))) is None
    text = tmp_path / "text"
    text.write_text("#!/bin/sh\n")
    assert analyze(opened(text)) is None
    assert (
        analyze(
            opened(
                Path("/usr/local/go/bin/gofmt")
                if Path("/usr/local/go/bin/gofmt").exists()
                else Path(shutil.which("gofmt") or "")
            )
        )
        is None
    )


def test_truncated_binaries_are_refused_with_a_reason(opened: Callable[[Path], int], tmp_path: Path) -> None:
    data = go_binary("stripped").read_bytes()
    whole = analyze(opened(go_binary("stripped")))
    assert whole is not None
    assert whole.state == "attached"
    for share in range(0, 100, 7):
        path = tmp_path / f"cut{share}"
        path.write_bytes(data[: len(data) * share // 100])
        one = analyze(opened(path))
        if one is not None and one.state != "unavailable":
            assert one.sites == whole.sites
        elif one is not None:
            assert one.reason


def test_damaged_binaries_never_give_other_sites(opened: Callable[[Path], int], tmp_path: Path) -> None:
    """Bytes of headers and tables overwritten at random: the same answer, none, or a refusal; never a crash, never
    another place in code.
    """
    path = go_binary("piestripped")
    binary = GoBinary(opened(path))
    base, header = binary._pclntab
    table = binary.file_offset(base)
    data = path.read_bytes()
    whole = analyze(opened(path))
    assert whole is not None
    chance = random.Random(7)
    places = [(0, 64), (64, 1024), (table, table + 72), (table + header.functab, table + header.functab + 40_000)]
    for turn in range(151):
        damaged = bytearray(data)
        low, high = places[turn % len(places)]
        for _ in range(1 + turn % 5):
            at = chance.randrange(low, high)
            damaged[at] = chance.randrange(256)
        other = tmp_path / "damaged"
        other.write_bytes(damaged)
        fd = os.open(other, os.O_RDONLY)
        try:
            one = analyze(fd)
        finally:
            os.close(fd)
        if one is not None and one.state != "unavailable":
            code = {at for _, offsets in one.sites for at in offsets}
            assert all(
                data[at] == 0xC3
                for name, offsets in one.sites
                if name in ("limiter_reserved", "limiter_waited")
                for at in offsets
            ), code


def test_hostile_counts_are_bounded(opened: Callable[[Path], int], tmp_path: Path) -> None:
    path = go_binary()
    binary = GoBinary(opened(path))
    table = binary.file_offset(binary._pclntab[0])
    data = bytearray(path.read_bytes())
    for count in (0, 1 << 21, 1 << 40, (1 << 64) - 1):
        data[table + 8 : table + 16] = struct.pack("<Q", count)
        other = tmp_path / f"count{count:x}"
        other.write_bytes(data)
        one = analyze(opened(other))
        assert one is not None
        assert one.state == "unavailable"
        assert one.reason
