"""A limiter in Go within a shared library that a program of another language loads: reported, and seen where it is
declared.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.common.settings import Place
from agent.common.settings_file import parse
from agent.limiters import catalogue
from agent.limiters.functions.settings import declare_all, entries
from agent.probes import limiter
from tests.kernel.go_fixture import go_binary
from tests.kernel.limiter_rig import Watch, names

#: Loads the library when it is told to, and says what each decision was.
PROGRAM = """
import ctypes, json, sys
print("ready", flush=True)
allow = None
for line in sys.stdin:
    allow = allow or ctypes.CDLL(sys.argv[1]).Allow
    allow.restype = ctypes.c_uint8
    print(json.dumps([allow() for _ in range(int(line))]), flush=True)
"""
DECLARED = """
- name: lent
  program: PATH
  language: go
  symbol: golang.org/x/time/rate.(*Limiter).reserveN
  arguments: {limiter: ax, cost: si}
  results: {result: bool ax}
"""


class Lender:
    def __init__(self, library: Path) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(library)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.child.stdout and self.child.stdout.readline() == "ready\n"

    def go(self, count: int) -> list[int]:
        assert self.child.stdin and self.child.stdout
        self.child.stdin.write(f"{count}\n")
        self.child.stdin.flush()
        log: list[int] = json.loads(self.child.stdout.readline())
        return log

    def end(self) -> int:
        self.child.communicate()
        return self.child.returncode


def test_it_is_reported_with_what_to_do(watch: Callable[..., Watch], tmp_path: Path) -> None:
    """One that was loaded before the agent came and one after it, under any name; and no longer when nobody uses it."""
    one, other = (
        Path(shutil.copy(go_binary("shared", "shared"), tmp_path / name)) for name in ("libone.so", "other.so.1.2")
    )
    first, second = Lender(one), Lender(other)
    first.go(3)
    w = watch()

    def reported(path: Path) -> list[dict[str, Any]]:
        return [output for output in w.targets.unprobed_programs.reported() if str(path) in str(output["reason"])]

    w.until(lambda: bool(reported(one)))
    assert not reported(other)
    second.go(3)
    w.until(lambda: bool(reported(other)), 20)
    for path in (one, other):
        (output,) = reported(path)
        assert (output["probe"], output["state"]) == (f"limiter:{path.name}", "unavailable")
        assert "Go in a shared library, with golang.org/x/time/rate" in str(output["reason"])
        assert "limiter_functions" in str(output["remedy"])
    assert (first.end(), second.end()) == (0, 0)


def test_it_is_seen_where_its_function_is_declared(
    attach: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copy(go_binary("shared", "shared"), tmp_path / "liblimiter.so"))
    values, lines = parse(Path("t.yaml"), DECLARED.replace("PATH", str(path)))
    kept = entries(values, Place(file="t.yaml", lines=lines))
    declare_all(kept)
    monkeypatch.setattr(limiter, "PROBE", limiter.probe())
    program, w = Lender(path), Watch(attach, functions=kept)
    try:
        log = program.go(1)
        w.until(lambda: w.attached_to(path, "own:lent"), 20)
        log = program.go(17)
        rows = w.rows(program.child.pid, 17)
        assert names(rows) == [("refused", "allowed")[one] for one in log]
        assert not any(str(path) in str(output["reason"]) for output in w.targets.unprobed_programs.reported())
        assert set(rows["limiter_id"]) == {b"lent"} and log.count(1) == 6
    finally:
        w.close()
        catalogue.declare({})
        assert program.end() == 0
