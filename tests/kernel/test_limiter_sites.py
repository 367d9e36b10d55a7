"""Limiters are named by who asks them: real programs, of every kind of build."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.go_fixture import go_binary
from tests.kernel.limiter_rig import Watch

COUNT = 23
#: What the program calls a place -> what its limiter is called.
SITES = {
    "pay": "shop:rate.Limiter@shop/api.(*Server).admit",
    "customer": "shop:rate.Limiter@shop/api.(*Server).Customer",
    "deep": "shop:rate.Limiter@shop/api.(*Server).Deep",
    "handler": "shop:rate.Limiter@shop/api.(*Server).Handler.func1",
    "main": "shop:rate.Limiter@main.main.func2",
}


def start(path: Path, *more: str, count: int = COUNT) -> subprocess.Popen[str]:
    return subprocess.Popen([str(path), str(count), *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def go(program: subprocess.Popen[str]) -> list[dict[str, Any]]:
    assert program.stdin
    assert program.stdout
    program.stdin.write("\n")
    program.stdin.flush()
    reported: dict[str, Any] = json.loads(program.stdout.readline())
    return list(reported["decisions"])


def end(program: subprocess.Popen[str]) -> None:
    assert program.stdin
    program.stdin.close()
    assert program.wait(10) == 0


@pytest.mark.parametrize("kind", ["plain", "piestripped", "go1.19.13", "go1.17.13"])
def test_who_asks_is_the_name(watch: Callable[..., Watch], tmp_path: Path, kind: str) -> None:
    """Two processes, one that was there before the agent and one after it, have the same ids; a limiter for each
    customer is a member of one.
    """
    path = Path(shutil.copy(go_binary(kind, "shop"), tmp_path / "anything"))
    first = start(path)
    w = watch()
    w.until(lambda: w.attached_to(path, "golang.org/x/time/rate"))
    second = start(path)
    named = dict(SITES)
    for program in (first, second):
        truth = go(program)
        rows = w.rows(program.pid, len(truth))
        if kind == "go1.17.13":  # whose inlined functions are not reported
            named["pay"] = named["pay"].replace("admit", "Pay")
        assert [row["limiter_id"].decode() for row in rows] == [named[reported["site"]] for reported in truth]
        customers = rows[rows["limiter_id"] == SITES["customer"].encode()]
        assert len(set(customers["member"].tolist())) == 7
        others = rows[rows["limiter_id"] != SITES["customer"].encode()]
        assert len(set(others["member"].tolist())) == 1
        end(program)
    sites = w.attached.rows("limiter")
    sites = sites[sites["path"] == str(path).encode()]
    assert {one["limiter_id"].decode() for one in sites} == set(named.values())


def test_a_program_that_comes_by_thousands_of_ways_keeps_nobody_s_name(
    watch: Callable[..., Watch], tmp_path: Path
) -> None:
    """Each way is a stack of its own, more of them than are reported in that time: its own decisions are all there, and
    another program's have their names.
    """
    paths = [Path(shutil.copy(go_binary("plain", "shop"), tmp_path / name)) for name in ("winding", "other")]
    w = watch()
    winding, other = start(paths[0], "winding", count=2_003), start(paths[1])
    w.until(lambda: all(w.attached_to(path, "golang.org/x/time/rate") for path in paths))
    assert len(go(winding)) == 2_003
    truth = go(other)
    rows = w.rows(other.pid, len(truth))
    assert [row["limiter_id"].decode() for row in rows] == [SITES[reported["site"]] for reported in truth]
    rows = w.rows(winding.pid, 2_003)
    assert len(rows) == 2_003
    assert set(rows["limiter_id"]) <= {
        b"shop:rate.Limiter@shop/api.(*Server).turn",
        b"shop:rate.Limiter@shop/api.(*Server).left",
        b"shop:rate.Limiter@shop/api.(*Server).right",
        b"rate.Limiter@?",
    }
    assert len(set(rows["member"])) == 1
    end(winding)
    end(other)
