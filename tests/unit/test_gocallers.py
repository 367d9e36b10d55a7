"""Who called, by a return address: against go's own addr2line on real binaries, and refusing what is hostile."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from agent.binaries.elf import ElfError
from agent.binaries.gobuild import BuildInfo
from agent.binaries.gocallers import MOST, GoCallers, callers, module_of, package_of
from tests.kernel.go_fixture import go_binary


def calls(binary: GoCallers) -> tuple[int, list[int]]:
    """(where the code begins, addresses behind call instructions): what looks like one and calls the begin of a
    function.
    """
    code = binary._loads[binary._loads["flags"] & 1 != 0][0]
    base, size = int(code["vaddr"]), int(code["filesz"])
    raw = np.frombuffer(
        b"".join(binary.read(base + at, min(1 << 20, size - at)) for at in range(0, size, 1 << 20)), np.uint8
    )
    at = np.flatnonzero(raw[:-5] == 0xE8)
    target = sum(raw[at + 1 + i].astype(np.int64) << (8 * i) for i in range(4))
    target = base + at + 5 + np.where(target >= 1 << 31, target - (1 << 32), target)
    entries = binary._module[0] + binary._functab[:-1, 0].astype(np.int64)
    return base, (base + at + 5)[np.isin(target, entries)].tolist()


@pytest.mark.parametrize("kind", ["plain", "stripped"])
def test_names_and_lines_agree_with_addr2line(kind: str) -> None:
    path = go_binary(kind, "shop")
    fd = os.open(path, os.O_RDONLY)
    try:
        binary = GoCallers(fd)
        base, found = calls(binary)
        chosen = random.Random(7).sample(found, 300)
        asked = "".join(f"{at - 1:#x}\n" for at in chosen)
        reported = subprocess.run(
            ["go", "tool", "addr2line", str(go_binary("plain", "shop") if kind == "plain" else path)],
            input=asked,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split("\n")
        deep = 0
        for i, at in enumerate(chosen):
            frames = binary.at(at - base)
            name, where = reported[2 * i], reported[2 * i + 1]
            assert frames, (hex(at), name)
            assert frames[-1].name == re.sub(r"\[.*\]", "[...]", name)
            assert f"{frames[0].file}:{frames[0].line}" == "/".join(where.split("/")[-2:]), (hex(at), frames)
            deep += len(frames) > 1
        assert deep > 20  # some are inlined
    finally:
        os.close(fd)


def test_places_that_are_none_have_no_callers() -> None:
    fd = os.open(go_binary("plain", "shop"), os.O_RDONLY)
    try:
        assert callers([fd], [0, -5, 1, 1 << 40, (1 << 63) - 1]) == [[]] * 5
        assert len(callers([fd], list(range(100, 100 + 3 * MOST)))) == MOST
    finally:
        os.close(fd)
    with open("/bin/ls", "rb") as other:
        assert callers([other.fileno()], [5000]) == [[]]  # no Go program


def test_damaged_tables_are_refused_or_report_nothing_wrong_for_long(tmp_path: Path) -> None:
    """Bytes of the tables are changed at random: never another error, nor much time."""
    path = Path(shutil.copy(go_binary("plain", "shop"), tmp_path / "shop"))
    with path.open("rb") as file:
        binary = GoCallers(file.fileno())
        base, found = calls(binary)
        table, header = binary._pclntab
        begin, end = binary.file_offset(table), binary.file_offset(table + header.functab)
    some, whole = random.Random(11), path.read_bytes()
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(some.choice((1, 30, 3000))):
            damaged[some.randrange(begin, min(end + 200_000, len(damaged)))] = some.randrange(256)
        path.write_bytes(damaged)
        began = time.process_time()
        with path.open("rb") as file:
            try:
                for frames in callers([file.fileno()], [at - base for at in some.sample(found, 12)]):
                    assert len(frames) <= 8
                    assert all(len(str(part)) <= 520 for frame in frames for part in frame)
            except ElfError:
                continue
        assert time.process_time() - began < 5


def test_packages_and_their_modules() -> None:
    build = BuildInfo("go1.26", {"golang.org/x/time": "v0.3.0"}, "shop/cmd/api", "shop")
    assert package_of("golang.org/x/time/rate.(*Limiter).Allow") == "golang.org/x/time/rate"
    assert package_of("gopkg.in/yaml%2ev3.F[go.shape.int]") == "gopkg.in/yaml.v3"
    assert package_of("main.main.func1") == "main"
    assert module_of("main", build) == module_of("shop/internal/x", build) == ("shop", True)
    assert module_of("golang.org/x/time/rate", build) == ("golang.org/x/time", False)
    assert module_of("net/http", build) == ("std", False)
    assert build.program == "api"
    assert BuildInfo("", path="github.com/x/y/v2").program == "y"
    assert not BuildInfo("", path="command-line-arguments").program
    assert module_of("github.com/a/b/c", BuildInfo(""))[0] == "github.com/a/b"
