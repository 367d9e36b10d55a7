"""``tickscope limiters try``: a declaration against a live process, or which line of it is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.cli.trial import Declarations, Trial, TriedProcess
from agent.errors import AgentError
from agent.kernel import attaching
from tests.kernel.own_rig import OwnProgram, address, copy
from tests.patience import PATIENCE

C = """limiter_functions:
  - name: window
    program: PROGRAM
    language: c
    symbol: window_inc
    arguments:
      limiter: di
      key: si
      cost: i32 dx
      limit: i32 (di+8)+0
    results:
      result: i32 ax
    allowed: 1
    refused: 0
    error: ..-1
    window: 1s
"""
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
GO = """- name: inc
  program: in?
  language: go
  symbol: main.(*SlidingWindow).Inc
  arguments: {limiter: ax, key: bx, key_size: cx, cost: di, limit: (ax+8)+0}
  results: {result: bool bx, remaining: ax}
  window: 1s
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., OwnProgram]]:
    """One process of each kind, for all tests."""
    here, live = tmp_path_factory.mktemp("own"), dict[str, OwnProgram]()

    def start(kind: str, name: str, *arguments: str, strip: bool = False) -> OwnProgram:
        if name not in live:
            live[name] = OwnProgram(copy(kind, here / name, strip), *arguments)
        return live[name]

    yield start
    assert {name: program.end() for name, program in live.items()} == dict.fromkeys(live, 0)


def tried(
    text: str, pid: int, tmp_path: Path, *more: str, uid: int = 0, act: Callable[[], Any] = lambda: None
) -> tuple[int, str, str]:
    """Exit status, stdout, stderr. act: what is done as soon as the probes are attached."""
    file = tmp_path / "t.yaml"
    file.write_text(text)
    tmp_path.chmod(0o755)
    command = [sys.executable, "-m", "agent", "limiters", "try", str(file), "--pid", str(pid), *more]
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        user=uid or None,
        cwd="/" if uid else None,
        env=ENVIRONMENT,
    )
    assert child.stderr is not None
    output = []
    for line in child.stderr:
        output.append(line)
        if line.startswith("watching"):
            act()
            break
    out, rest = child.communicate(timeout=60 * PATIENCE)
    return child.returncode, out, "".join(output) + rest


def test_it_shows_ten_decisions(programs: Callable[..., OwnProgram], tmp_path: Path) -> None:
    """And no more, of thirteen."""
    program = programs("c", "window")
    truth = list[list[str]]()
    status, out, output = tried(
        C.replace("PROGRAM", "window"), program.pid, tmp_path, "-o", "json", act=lambda: truth.extend(program.go(13))
    )
    document = json.loads(out)
    assert (status, document["wrong"], len(truth)) == (0, [], 13), output
    seen = [[row["result"], str(int(row["cost"])), row["key"]] for row in document["rows"]]
    assert seen == [[result, cost, " ".join(key)] for result, cost, *key in truth[:10]]
    assert {(row["limit_per_s"], row["window_ns"], row["tid"]) for row in document["rows"]} == {
        (7.0, 10**9, program.pid)
    }


def test_goroutines_in_a_stripped_program(programs: Callable[..., OwnProgram], tmp_path: Path) -> None:
    program = programs("go, stripped", "inc", "50")
    truth = list[list[str]]()
    status, out, output = tried(
        GO, program.pid, tmp_path, "-o", "ndjson", "--count", "211", act=lambda: truth.extend(program.go(211))
    )
    rows = [json.loads(line) for line in out.splitlines()]
    assert status == 0, output
    seen = sorted(
        [row["result"], str(int(row["cost"])), *row["key"].split(), str(int(row["remaining"]))] for row in rows
    )
    assert seen == sorted(truth)


def refused(text: str, pid: int, tmp_path: Path) -> str:
    """Why a declaration is not tried at all."""
    file = tmp_path / "t.yaml"
    file.write_text(text)
    with pytest.raises(AgentError) as caught:
        Trial(Declarations(file), TriedProcess(pid))
    return str(caught.value)


def line_of(text: str, what: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if what in line)


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (
            ("key: si", "key: rbp"),
            "key: rbp",
            ("arguments.key: there is no register 'rbp'", "one of di, si, dx, cx, r8, r9"),
        ),
        (
            ("symbol: window_inc", "symbol: window_increment"),
            "symbol:",
            ("symbol: window_increment: there is no such function", "there is: window_inc"),
        ),
        (("symbol: window_inc", "address: 0x12"), "address:", ("0x12 is not in the program's code",)),
        (("symbol: window_inc", "offset: 0x7fffffff"), "offset:", ("0x7fffffff is not in the file's code",)),
        (
            ("symbol: window_inc", "address: INSIDE"),
            "address:",
            ("is not where an instruction begins", "the function begins at BEGIN"),
        ),
        (
            ("symbol: window_inc", "offset: INSIDE"),
            "offset:",
            ("is not where an instruction begins", "the function begins at BEGIN"),
        ),
        (
            ("symbol: window_inc", "address: FURTHER"),
            "address:",
            ("calls another or branches before that", "name its first instruction, BEGIN"),
        ),
        (("program: PROGRAM", "program: /usr/bin/shop"), "program:", ("which is not /usr/bin/shop", "program: /")),
        (("program: PROGRAM", "build_id: '00112233'"), "build_id:", ("build_id: that of", "readelf -n")),
        (("    window: 1s", "    windw: 1s"), "windw", ("there is no setting 'windw'", "did you mean window?")),
        (
            ("      cost: i32 dx", "      cost: int dx"),
            "cost",
            ("the size of 'int' depends", "i32 in C and C++, i64 in Go"),
        ),
        (("    window: 1s", "    burst: 7"), "limit:", ("arguments.limit: the window is missing", "window: 1s")),
        (("    refused: 0", "    refused: 1"), "allowed", ("1 is both allowed and refused",)),
    ],
)
def test_a_wrong_line_is_named(
    programs: Callable[..., OwnProgram], tmp_path: Path, change: tuple[str, str], line: str, words: tuple[str, ...]
) -> None:
    program = programs("c", "window")
    begin = address(Path(f"/proc/{program.pid}/exe"), "window_inc")
    places = {"INSIDE": hex(begin + 1), "FURTHER": hex(begin + 0x40), "BEGIN": hex(begin)}

    def filled(text: str) -> str:
        for name, value in places.items():
            text = text.replace(name, value)
        return text

    text = filled(C.replace(*change).replace("PROGRAM", "window"))
    output = refused(text, program.pid, tmp_path)
    assert output.startswith(f"{tmp_path}/t.yaml:{line_of(text, line)}: "), output
    assert all(filled(word) in output for word in words), output
    assert len(program.go(3)) == 3


def test_another_language_is_reported(programs: Callable[..., OwnProgram], tmp_path: Path) -> None:
    output = refused(GO.replace("in?", "window"), programs("c", "window").pid, tmp_path)
    assert "t.yaml:3: language: main.(*SlidingWindow).Inc: it is no Go program" in output
    output = refused(GO.replace("Inc", "Ink"), programs("go, stripped", "inc", "50").pid, tmp_path)
    assert "t.yaml:4: symbol: main.(*SlidingWindow).Ink: there is no such function" in output
    output = refused(GO.replace("Window).Inc", "window).Inc"), programs("go, stripped", "inc", "50").pid, tmp_path)
    assert "there is: main.(*SlidingWindow).Inc" in output


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        (
            [("result: i32 ax", "result: i64 limiter+8")],
            [("result:", "is none of allowed: 1, refused: 0, error: ..-1")],
        ),
        (
            [("key: si", "key: dx"), ("limit: i32 (di+8)+0", "limit: i32 dx+8"), ("limiter: di", "limiter: ecx")],
            [
                ("key:", "nothing can be read at dx: is it a pointer to the key's bytes?"),
                ("limit:", "nothing can be read at dx+8: is dx a pointer there?"),
            ],
        ),
        (
            [("limit: i32 (di+8)+0", "limit: f64 di+8"), ("limiter: di", "limiter: edx")],
            [("limit:", "makes no sense: is its place right, and its type (f64)?"), ("limiter:", "0x1 is no address")],
        ),
    ],
)
def test_values_that_make_no_sense_name_their_lines(
    programs: Callable[..., OwnProgram], tmp_path: Path, changes: list[tuple[str, str]], wrong: list[tuple[str, str]]
) -> None:
    program, text = programs("c", "window"), C.replace("PROGRAM", "window")
    for change in changes:
        text = text.replace(*change)
    status, out, output = tried(text, program.pid, tmp_path, act=lambda: program.go(11))
    assert status == 1, output
    assert len(out.splitlines()) == 11  # a heading
    for line, words in wrong:
        assert f"t.yaml:{line_of(text, line)}: " in output and words in " ".join(output.split()), output


def test_silence_is_reported(programs: Callable[..., OwnProgram], tmp_path: Path) -> None:
    program = programs("c", "window")
    status, out, output = tried(
        C.replace("PROGRAM", "window"), program.pid, tmp_path, "--duration", "0.5s", "-o", "ndjson"
    )
    assert (status, out) == (3, "")
    assert "no call in 0.5 s: is it called at all meanwhile?" in " ".join(output.split())
    assert f"no program runs as process {2**22 - 3}" in refused(C, 2**22 - 3, tmp_path)


def test_a_stripped_program_reports_what_it_needs(programs: Callable[..., OwnProgram], tmp_path: Path) -> None:
    output = refused(C.replace("PROGRAM", "bare"), programs("c", "bare", strip=True).pid, tmp_path)
    assert "the file is stripped and does not export it" in output
    assert "name its address, which nm prints of the file before it was stripped" in output


def test_only_root_may(programs: Callable[..., OwnProgram], tmp_path: Path) -> None:
    program = programs("c", "window")
    status, out, output = tried(C.replace("PROGRAM", "window"), program.pid, tmp_path, uid=65534)
    assert (status, out) == (5, "")
    assert "sudo tickscope limiters try" in output


def first_byte(program: OwnProgram) -> bytes:
    """Of window_inc, as the process has it: a breakpoint while it is probed."""
    exe = Path(f"/proc/{program.pid}/exe")
    with open(f"/proc/{program.pid}/maps") as maps:
        mapped = next(line.split() for line in maps if line.rstrip().endswith(os.readlink(exe)))
    with open(f"/proc/{program.pid}/mem", "rb") as memory:
        memory.seek(int(mapped[0].split("-")[0], 16) + address(exe, "window_inc"))
        return memory.read(1)


def test_no_other_process_and_nothing_left(programs: Callable[..., OwnProgram], tmp_path: Path) -> None:
    """Ended by Ctrl-C: status 130, the rows that came, and no breakpoint in the program. Another process of the same
    file never had one.
    """
    program = programs("c", "window")
    other = OwnProgram(Path(os.readlink(f"/proc/{program.pid}/exe")))
    file = tmp_path / "t.yaml"
    file.write_text(C.replace("PROGRAM", "window"))
    command = [sys.executable, "-m", "agent", "limiters", "try", str(file), "--pid", str(program.pid)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    try:
        assert child.stderr is not None
        assert any(line.startswith("watching") for line in iter(child.stderr.readline, ""))
        assert len(program.go(3)) == len(other.go(5)) - 2 == 3
        assert first_byte(program) == b"\xcc"
        if attaching.knows_processes():
            assert first_byte(other) != b"\xcc"
        time.sleep(0.2 * PATIENCE)
        child.send_signal(2)
        out, output = child.communicate(timeout=30 * PATIENCE)
        assert child.returncode == 130, output
        assert len(out.splitlines()) == 4
        assert first_byte(program) != b"\xcc"
    finally:
        child.kill()
        assert other.end() == 0
