"""A limiter that reported a limit and its window has reported a rate, too."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from agent.batch import make
from agent.common.host import boot_id as this_boot
from agent.store.hot import HotStore
from agent.tables import TABLES
from tests.unit.test_limiters_cli import tickscope


def test_so_many_in_a_window_is_a_rate(tmp_path: Path) -> None:
    now, result = time.clock_gettime_ns(time.CLOCK_BOOTTIME), TABLES["limiter_decision"].by_name["result"]
    decided = np.where(np.arange(100) % 2 < 1, result.code("allowed"), result.code("refused"))
    windowed = make(
        "limiter_decision",
        100,
        t_ns=now - 10_000_000_000 + np.arange(100) * 100_000_000,
        pid=4_100_000,
        proc_start_ns=5,
        result=decided,
        limiter_id=b"shop:api",
        comm=b"node",
        burst=14.0,
        window_ns=2_000_000_000,
        cost=1.0,
    )
    hot = HotStore(tmp_path, this_boot(), "host-a", seal_command=())
    seen = make(
        "limiter_decision",
        9,
        t_ns=now - 9,
        pid=4_100_001,
        proc_start_ns=5,
        limiter_id=b"counter:api",
        comm=b"php",
        result=np.array([1, 0, 0, *[-1] * 6]),
    )
    hot.append([windowed, seen])
    hot.close()
    one, counter = json.loads(tickscope(tmp_path, "-o", "json").stdout)["rows"]
    assert (counter["decisions"], counter["refused"], counter["refused_share"]) == (9, 1, None), (
        "three of nine say nothing"
    )
    assert (one["limit_per_s"], one["burst"], one["window_ns"]) == (7.0, 14.0, 2_000_000_000)
    assert one["limit_use"] == pytest.approx(50 / (7 * 9.9 + 14), rel=0.001)
    shown = json.loads(tickscope(tmp_path, "show", "shop", "-o", "json").stdout)
    assert {piece["limit"] for piece in shown["rows"]} == {7.0}
    assert "limit         7/s, burst 14" in tickscope(tmp_path, "show", "shop").stdout


def test_a_jump_that_did_not_happen_lies_in_the_middle_of_what_is_asked_for(tmp_path: Path) -> None:
    now, allowed = time.clock_gettime_ns(time.CLOCK_BOOTTIME), TABLES["limiter_decision"].code("result", "allowed")
    hot = HotStore(tmp_path, this_boot(), "host-a", seal_command=())
    for name, ago_s in ((b"long:ago", 60), (b"late:api", 10)):
        t = now - ago_s * 1_000_000_000 + np.arange(50) * 100_000_000
        given = {"pid": 4_100_000, "proc_start_ns": 5, "comm": b"node", "limit_per_s": 7.0, "burst": 14.0, "cost": 1.0}
        hot.append([make("limiter_decision", 50, t_ns=t, result=allowed, limiter_id=name, **given)])
    hot.close()
    asked = ("replay", "--what-if", "-1s", "--model", "token bucket", "-o", "json", "--limiter")
    (one,) = json.loads(tickscope(tmp_path, *asked, "late:*").stdout)["rows"]
    assert (one["limiter_id"], one["decisions"]) == ("late:api", 25)
    none = tickscope(tmp_path, *asked, "nope*")
    assert (none.returncode, none.stdout) == (3, "")
    assert "no limiter decisions of nope*" in none.stderr
