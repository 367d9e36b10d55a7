"""Limiters of Go programs that decide too often to be watched all of the time, against what the programs say
themselves.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.cli.limiters_totals import COLUMNS, KEY, Total, added
from agent.columns import NULL_I64
from agent.tables import TABLES
from tests.kernel.go_fixture import Limits, go_binary
from tests.kernel.limiter_rig import Watch, names

BUCKET = TABLES["limiter_rate"].code("basis", "bucket")


@pytest.fixture
def hot(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A program that asks, which ``ask`` has begin."""
    live = list[subprocess.Popen[str]]()

    def start(*args: str) -> subprocess.Popen[str]:
        path = shutil.copy(go_binary("plain", "hot"), tmp_path / f"hot{len(live)}")
        live.append(subprocess.Popen([path, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return live[-1]

    yield start
    for process in live:
        process.kill()
        process.communicate()


def say(process: subprocess.Popen[str]) -> None:
    """A line, on which it begins, stops or ends."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def stopped(watch: Watch, process: subprocess.Popen[str]) -> dict[str, Any]:
    """Has it stop and end; what it says."""
    say(process)
    out, told = process.stdout, list[str]()
    assert out is not None
    os.set_blocking(out.fileno(), False)

    def done() -> bool:
        told.extend(line for line in [out.readline()] if line)
        return bool(told)

    watch.until(done, 30)
    say(process)
    watch.until(lambda: process.poll() is not None, 30)
    return dict(json.loads(told[0]))


def totals(watch: Watch, pid: int) -> tuple[Total, Total]:
    """Let through and not, as `tickscope limiters` has them."""
    rows = watch.attached.rows("limiter_decision")
    always = Counter(names(rows[(rows["pid"] == pid) & (rows["sample_rate"] == 1)]))
    basis = TABLES["limiter_rate"].by_name["basis"].names
    sampled = [
        {
            n: None if v != v or v == NULL_I64 else basis[v] if n == "basis" else v
            for n in COLUMNS
            if n != "boot_id"
            for v in [row[n].item()]
        }
        | {"boot_id": ""}
        for row in watch.rates(pid)
    ]
    assert len({tuple(row[n] for n in KEY) for row in sampled}) <= 1
    allowed, refused = next(iter(added(sampled).values()), (Total(), Total()))
    return tuple(Total(n, n, n) + more for n, more in ((always["allowed"], allowed), (always["refused"], refused)))  # type: ignore[return-value]


def test_what_they_let_through_is_read_from_their_buckets(watch: Callable[..., Watch], hot: Callable[..., Any]) -> None:
    """One asks as often as it can, so that the probes set its pace while it is watched: what it was refused is told as
    at least so much. One has 20 callers, and its limit is set now and then.
    """
    loop, turned = (
        hot("-for", "600", "-limit", "1000", "-burst", "2000"),
        hot("-for", "600", "-rate", "20000", "-callers", "20", "-turns", "0.3", "-limit", "1000", "-burst", "400"),
    )
    w = watch(share=0.1)
    say(loop)
    say(turned)
    w.until(lambda: all(np.count_nonzero(w.rates(one.pid)["allowed"]) > 1 for one in (loop, turned)), 60)
    truths = {one.pid: stopped(w, one) for one in (loop, turned)}
    w.until(lambda: not any(one.rates.pids for one in w.limiters.binaries.values()), 30)
    for pid, truth in truths.items():
        allowed, refused = totals(w, pid)
        # Bounds are those of 95 runs in 100, and this is one, beside whatever else takes the processors.
        assert 0.98 * allowed.least <= truth["allowed"]
        assert allowed.most is not None
        assert truth["allowed"] <= 1.02 * allowed.most
        assert 0.9 * refused.least <= truth["refused"]
    rates, rows = w.rates(loop.pid), w.attached.rows("limiter_decision")
    assert (rates["basis"] == BUCKET).any()
    assert totals(w, loop.pid)[1].most is None
    in_windows = rows[(rows["pid"] == loop.pid) & (rows["sample_rate"] < 1)]
    assert set(rates["limiter_id"]) == set(in_windows["limiter_id"])
    assert {f"rate.Limiter@{member:#x}" for member in in_windows["member"].tolist()} == {truths[loop.pid]["limiter"]}
    assert 0 < int(rates["seen_allowed"].sum() + rates["seen_refused"].sum()) <= len(in_windows)
    assert set(in_windows["duration_ns"]) == {NULL_I64}
    assert w.limiters.looks._link < 0  # nobody is looked at any more


def test_calm_has_it_watched_all_of_the_time_again(watch: Callable[..., Watch], tmp_path: Path) -> None:
    path = Path(shutil.copy(go_binary(), tmp_path / "limits"))
    program = Limits.start(path, "busy", 3_000)
    w = watch(share=0.03)
    one = w.of(path)
    program.begin()
    w.until(lambda: one.share.mode == "windows")
    assert one.state == "degraded"
    assert "watched in windows" in one.reason
    w.until(lambda: one.share.mode == "both" and bool(one.links), limit_s=60)
    assert one.state == "attached"
    assert w.attached.lost() == 0
    program.truth()
    program.end()


@pytest.mark.parametrize("kind", ["plain", "piestripped", "2019", "go1.17.13", "go1.21.13"])
def test_one_probe_at_its_return_sees_each_decision(watch: Callable[..., Watch], tmp_path: Path, kind: str) -> None:
    path = Path(shutil.copy(go_binary(kind), tmp_path / "limits"))
    program = Limits.start(path, "allow", 1009)
    w = watch()
    one = w.of(path)
    assert one.alone[0][0].startswith("limiter_reserved_alone") and len(one.alone) <= 2  # and what is given back
    w.limiters._turn(one, "alone", one.since_ns)
    w.limiters._probes.detach(one)
    w.until(lambda: bool(one.links) and not one.opening)
    truth = program.go()
    rows = w.rows(program.pid, 1009)
    assert names(rows) == [t["result"] for t in truth]
    assert {f"rate.Limiter@{member:#x}" for member in rows["member"].tolist()} == {t["limiter"] for t in truth}
    for row, said in zip(rows, truth, strict=True):
        assert said["start_ns"] <= row["t_ns"] <= said["end_ns"]
    let = rows["result"] == TABLES["limiter_decision"].code("result", "allowed")
    assert rows["program_wall_ns"][let].tolist() == [t["wall_ns"] for t in truth if t["result"] == "allowed"]
    assert set(rows["cost"]) == {1.0}
    assert set(rows["burst"]) == {500.0}
    assert set(rows["step_immune"]) == {1}
    assert rows["remaining"][let] == pytest.approx(np.arange(499, -1, -1), abs=0.1)
    assert np.isnan(rows["remaining"][~let]).all()
    assert set(rows["duration_ns"]) == {NULL_I64}
    program.end()


def test_what_a_hit_costs_is_measured_and_taken_off(watch: Callable[..., Watch], tmp_path: Path) -> None:
    path = Path(shutil.copy(go_binary(), tmp_path / "limits"))
    program = Limits.start(path, "allow", 101)
    w = watch()
    w.until(lambda: w.of(path) is not None)
    cost = w.limiters._cost
    assert cost.measured
    assert cost.both > 100 < cost.alone
    program.go()
    rows = w.rows(program.pid, 101)
    assert 0 < cost.within < cost.both
    assert (rows["probe_ns"] <= cost.within).all()
    assert (rows["probe_ns"] > 0).all()
    assert (rows["duration_ns"] >= 0).all()
    program.end()
