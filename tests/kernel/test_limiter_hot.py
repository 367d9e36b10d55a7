"""Limiters of Go programs that decide too often to be probed all of the time, against what the programs say
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

import pytest

from agent.cli.limiters_totals import COLUMNS, KEY, Total, added
from agent.columns import NULL_I64
from agent.limiters.settings import HITS_PER_S
from tests.kernel.go_fixture import Limits, go_binary
from tests.kernel.limiter_rig import Watch, names


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


def attached(watch: Watch, process: subprocess.Popen[str]) -> Path:
    """Its file, once all of its probes are there."""
    path = Path(os.readlink(f"/proc/{process.pid}/exe"))
    watch.until(lambda: watch.attached_to(path, "golang.org/x/time/rate"), 60)
    return path


def start_program(process: subprocess.Popen[str]) -> None:
    """A line, on which it begins, stops or ends."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def stopped(watch: Watch, process: subprocess.Popen[str]) -> dict[str, Any]:
    """Has it stop and end; what it says."""
    start_program(process)
    out, reported = process.stdout, list[str]()
    assert out is not None
    os.set_blocking(out.fileno(), False)

    def done() -> bool:
        reported.extend(line for line in [out.readline()] if line)
        return bool(reported)

    watch.until(done, 30)
    start_program(process)
    watch.until(lambda: process.poll() is not None, 30)
    return dict(json.loads(reported[0]))


def totals(watch: Watch, pid: int) -> tuple[Total, Total]:
    """Let through and not, as `tickscope limiters` has them."""
    rows = watch.attached.rows("limiter_decision")
    always = Counter(names(rows[(rows["pid"] == pid) & (rows["sample_rate"] == 1)]))
    sampled = [
        {name: "" if name == "boot_id" else None if (v := row[name].item()) == NULL_I64 else v for name in COLUMNS}
        for row in watch.rates(pid)
    ]
    assert len({tuple(row[n] for n in KEY) for row in sampled}) <= 1
    allowed, refused = next(iter(added(sampled).values()), (Total(), Total()))
    return tuple(Total(n, n, n) + more for n, more in ((always["allowed"], allowed), (always["refused"], refused)))  # type: ignore[return-value]


def holds(total: Total, truth: int) -> bool:
    """Whether the truth lies in the interval, or 2 % beside it: it is that of 95 runs in 100, on a machine that others
    use.
    """
    return 0.98 * total.least <= truth and (total.most is None or truth <= 1.02 * total.most)


def check_rows(watch: Watch, pid: int, truth: dict[str, Any]) -> None:
    """That rows of a sampled limiter and of its rates agree, and name it."""
    rates, rows = watch.rates(pid), watch.attached.rows("limiter_decision")
    sampled = rows[(rows["pid"] == pid) & (rows["sample_rate"] < 1)]
    assert set(rates["limiter_id"]) == set(sampled["limiter_id"])
    assert int(rates["seen_allowed"].sum() + rates["seen_refused"].sum()) == len(sampled)
    assert {f"rate.Limiter@{member:#x}" for member in sampled["member"].tolist()} == {truth["limiter"]}
    assert (rates["watched_ns"] < rates["interval_ns"]).any()


@pytest.mark.parametrize(
    ("load", "slowed"),
    [
        ("-rate 20000 -limit 1000 -burst 400", False),
        ("-rate 20000 -callers 20 -limit 15000 -burst 400", False),
        ("-limit 1000 -burst 2000", True),
    ],
    ids=["an open loop, refused", "an open loop, allowed", "a closed loop"],
)
def test_a_hot_limiter_is_sampled_and_the_truth_lies_in_its_interval(
    watch: Callable[..., Watch], hot: Callable[..., Any], load: str, slowed: bool
) -> None:
    """In a closed loop the probes set the pace while they are attached: what is reported is a lower bound."""
    program = hot("-for", "600", *load.split())
    w = watch(hits_per_s=HITS_PER_S)
    path = attached(w, program)
    start_program(program)
    w.until(lambda: len(w.rates(program.pid)) > 5, 60)
    truth = stopped(w, program)
    w.until(lambda: w.of(path) is None, 30)
    w.turn()
    allowed, refused = totals(w, program.pid)
    assert holds(allowed, truth["allowed"]), (allowed, truth)
    assert holds(refused, truth["refused"]), (refused, truth)
    assert (refused.most is None) == slowed
    check_rows(w, program.pid, truth)


def test_one_that_decides_rarely_is_exact_again_after_a_hot_time(watch: Callable[..., Watch], tmp_path: Path) -> None:
    path = Path(shutil.copy(go_binary(), tmp_path / "limits"))
    program = Limits.start(path, "busy", 3_000)
    w = watch(hits_per_s=1_000)
    one = w.of(path)
    program.begin()
    w.until(lambda: one.sampled)
    assert one.state == "degraded" and "sampled" in one.reason and "report" in one.remedy
    w.until(lambda: not one.sampled and bool(one.links), limit_s=60)
    assert one.state == "attached"
    assert w.attached.lost() == 0
    program.truth()
    program.end()


def test_a_program_that_is_started_anew_while_it_is_sampled(
    watch: Callable[..., Watch], hot: Callable[..., Any]
) -> None:
    """The file is known, and its probes are away where the second begins: that is in its interval, too."""
    first = hot("-for", "600", "-rate", "20000", "-limit", "1000", "-burst", "400")
    w = watch(hits_per_s=HITS_PER_S)
    path = attached(w, first)
    start_program(first)
    w.until(lambda: len(w.rates(first.pid)) > 3, 60)
    second = subprocess.Popen(
        [path, "-for", "600", "-rate", "30000", "-limit", "2000", "-burst", "4000"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        start_program(second)
        w.until(lambda: len(w.rates(second.pid)) > 3, 60)
        truths = {one.pid: stopped(w, one) for one in (first, second)}
    finally:
        second.kill()
        second.communicate()
    w.until(lambda: w.of(path) is None, 30)
    w.turn()
    for pid, truth in truths.items():
        allowed, refused = totals(w, pid)
        assert holds(allowed, truth["allowed"]), (allowed, truth)
        assert holds(refused, truth["refused"]), (refused, truth)
        check_rows(w, pid, truth)
        if pid == first.pid:  # the probes may slow the second one down: its figures are lower bounds then
            assert allowed.most is not None and refused.most is not None
