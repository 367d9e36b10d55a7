"""Totals of limiters that are watched in windows: from records as the kernel has them, of a bucket that is simulated
here, against what it decided.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.cli.limiters_totals import COLUMNS, Total, added, told
from agent.columns import NULL_I64
from agent.kernel.wire import Wire
from agent.limiters.catalogue import seen
from agent.probes.beside.go_rates import Rates
from agent.probes.beside.pace import pace
from agent.tables import TABLES

BPF = Path(__file__).parents[2] / "bpf"
RECORD = Wire.read(BPF / "tickscope.h", BPF / "events.h", BPF / "limiter_decision.h").dtype("limiter_decision")
LIBRARY = list(seen()).index("golang.org/x/time/rate")
SECOND = 1_000_000_000
PID, LIMITER, HIT_NS = 4711, 0xC000010000, 10_000.0


def decided(t_ns: np.ndarray, limit: float, burst: int) -> np.ndarray:
    """Records of Allow at these times, by x/time/rate's own arithmetic."""
    out = np.zeros(len(t_ns), RECORD)
    tokens, last = float(burst), int(t_ns[0])
    for i, now in enumerate(t_ns.tolist()):
        have = min(float(burst), tokens + (now - last) / 1e9 * limit)
        if have >= 1:
            tokens, last = have - 1, now
            out["ok"][i] = 1
        out["tokens"][i] = np.float64(tokens).view(np.uint64)
        out["last_ext"][i] = last
    out["t_ns"], out["limiter"], out["library"], out["n"], out["reserved"], out["every"] = (
        t_ns,
        LIMITER,
        LIBRARY,
        1,
        1,
        20,
    )
    out["limit"], out["burst"] = np.float64(limit).view(np.uint64), burst
    out["last_wall"] = out["act_wall"] = out["now_wall"] = 1 << 63
    out["act_ext"] = out["now_ext"] = t_ns
    out["proc"]["pid"] = out["proc"]["tid"] = PID
    return out


def watched(records: np.ndarray, windows: Iterator[tuple[int, int]], exact_until: int) -> np.ndarray:
    """Rows of limiter_rate of one that is watched in windows after a while."""
    rates = Rates()
    rates.before(records[records["t_ns"] < exact_until])
    rates.begin(exact_until)
    out = [batch.rows for since, until in windows for batch in rates.window(records, since, until, HIT_NS)]
    return np.concatenate(out)


def windows(rng: np.random.Generator, first: int, seconds: int, length: int = 30_000_000) -> Iterator[tuple[int, int]]:
    for second in range(seconds):
        since = first + second * SECOND + int(rng.integers(0, SECOND - length))
        yield since, since + length


def as_read(rows: np.ndarray) -> list[dict[str, Any]]:
    """Rows as a store gives them."""
    basis = TABLES["limiter_rate"].by_name["basis"].names
    return [
        {
            "boot_id": "",
            **{
                n: None if v != v or v == NULL_I64 else basis[v] if n == "basis" else v
                for n in COLUMNS[1:]
                for v in [row[n].item()]
            },
        }
        for row in rows
    ]


def test_a_bucket_that_never_fills_says_what_it_let_through() -> None:
    rng = np.random.default_rng(1)
    t = SECOND + np.cumsum(rng.integers(20_000, 80_000, 200_000))
    records = decided(t, 700.0, 50)
    rows = watched(records, windows(rng, 2 * SECOND, 8), 2 * SECOND)
    assert set(rows["basis"]) == {0}
    last = int(rows["t_ns"][-1])
    let = (records["ok"] == 1) & (records["t_ns"] >= 2 * SECOND) & (records["t_ns"] < last)
    assert abs(int(rows["allowed"].sum()) - int(let.sum())) <= 1
    assert (rows["allowed_low"] == rows["allowed_high"]).all()
    assert rows["limiter_id"][0] == b"rate.Limiter@?"


def test_a_bucket_that_fills_is_not_believed() -> None:
    """Fewer than its limit ask: what it does not take in is not what it let through."""
    rng = np.random.default_rng(2)
    t = SECOND + np.cumsum(rng.exponential(4_000_000, 3_000).astype(np.int64) + 1)
    records = decided(t, 700.0, 50)
    rows = watched(records, windows(rng, 2 * SECOND, 9, 200_000_000), 2 * SECOND)
    assert set(rows["basis"]) == {1}
    assert not rows["refused"].sum()


def test_looks_at_a_bucket_that_others_are_at_do_not_count() -> None:
    """Every fifth was taken between two writes of another goroutine."""
    rng = np.random.default_rng(3)
    records = decided(SECOND + np.cumsum(rng.integers(20_000, 80_000, 120_000)), 700.0, 50)
    torn = rng.random(len(records)) < 0.2
    records["last_ext"][torn] += rng.integers(1, 1_000_000, int(torn.sum())).astype(np.uint64)
    rows = watched(records, windows(rng, 2 * SECOND, 4), 2 * SECOND)
    assert set(rows["basis"]) == {0}


@pytest.mark.parametrize("uneven", [False, True])
def test_the_interval_holds_what_was_refused_in_95_of_100_runs(uneven: bool) -> None:
    """An open loop: arrivals by chance, or in bursts. Of 100 programs, each watched in windows of 150 ms for 16 s."""
    held = 0
    for run in range(100):
        rng = np.random.default_rng(100 + run)
        gaps = rng.exponential(1_600_000, 14_000)
        if uneven:
            gaps *= np.repeat(rng.choice([0.3, 1.7], len(gaps) // 125 + 1), 125)[: len(gaps)]
        t = SECOND + np.cumsum(gaps.astype(np.int64) + 1)
        records = np.zeros(len(t), RECORD)
        records["t_ns"], records["limiter"], records["library"], records["limit"] = (
            t,
            LIMITER,
            LIBRARY,
            np.float64(1e300).view(np.uint64),
        )
        records["proc"]["pid"], records["goroutine"], records["proc"]["tid"] = (
            PID,
            rng.integers(1, 99, len(t)),
            rng.integers(1, 9, len(t)),
        )
        records["last_wall"] = records["now_wall"] = 1 << 63
        rows = watched(records, windows(rng, 2 * SECOND, 16, 150_000_000), 2 * SECOND)
        _, refused = next(iter(added(as_read(rows)).values()))
        truth = int(((t >= 2 * SECOND) & (t < int(rows["t_ns"][-1]))).sum())
        assert refused.most is not None
        held += refused.least <= truth <= refused.most
    assert held >= 95


def test_who_waits_for_the_probes_may_decide_more_often_without() -> None:
    records = np.zeros(1000, RECORD)
    records["proc"]["tid"], records["goroutine"] = 1, np.arange(1000)
    assert pace(records, 100_000_000, 1_000.0) == pytest.approx(1 / (1 - 0.01), rel=0.01)
    assert pace(records, 100_000_000, 30_000.0) == pytest.approx(1 / (1 - 0.3), rel=0.01)
    assert np.isnan(pace(records, 100_000_000, 80_000.0))
    records["proc"]["tid"], records["goroutine"] = np.arange(1000), 1
    assert np.isnan(pace(records, 100_000_000, 80_000.0))
    assert pace(records[:0], 100_000_000, 1.0) == 1.0


def test_a_limiter_that_stops_between_two_windows_may_have_gone_on_for_all_or_none_of_it() -> None:
    rng = np.random.default_rng(5)
    records = decided(SECOND + np.cumsum(rng.integers(20_000, 80_000, 140_000)), 700.0, 50)
    rows = watched(records, windows(rng, 2 * SECOND, 9), 2 * SECOND)
    end = int(records["t_ns"][-1])
    after = rows[rows["t_ns"] > end]
    assert len(after) >= 2
    assert after["allowed_low"][0] == 0 < after["allowed"][0] < after["allowed_high"][0]
    assert after["refused_low"][0] == 0 < after["refused"][0] < after["refused_high"][0]
    assert not after["allowed"][1:].any()


def test_nobody_knows_since_when_one_decides_that_began_between_two_windows() -> None:
    """As of a program that was started anew, while its file is watched in windows. Of 100 the bounds of allowed, and of
    refused, hold 95.
    """
    rng, held = np.random.default_rng(11), {"allowed": 0, "refused": 0}
    for _ in range(100):
        begun = 2 * SECOND + int(rng.integers(0, SECOND))
        t = begun + np.cumsum(rng.integers(60_000, 140_000, 40_000))
        records = decided(t, 1000.0, 1000)
        records["proc"]["proc_start_ns"] = begun - SECOND
        rates = Rates()
        rates.begin(SECOND)
        rows = np.concatenate(
            [
                b.rows
                for since, until in windows(rng, 2 * SECOND, 4, 20_000_000)
                for b in rates.window(records, since, until, HIT_NS)
            ]
        )
        truth = records["ok"][records["t_ns"] < int(rows["t_ns"][-1])]
        ((allowed, refused),) = added(as_read(rows)).values()
        for name, total, n in (("allowed", allowed, truth.sum()), ("refused", refused, (truth == 0).sum())):
            held[name] += total.most is not None and total.least <= n <= total.most
    assert min(held.values()) >= 95, held


def test_a_total_says_how_good_it_is() -> None:
    assert told(Total(5, 5, 5), Total(7, 7, 7)) == "exact"
    assert told(Total(50, 50, 50), Total(50, 40, 52)) == "within 10 %"
    assert told(Total(50, 50, 50), Total(50, 50, 480)) == "within 430 %"
    assert told(Total(5, 5, 5), Total(7, 7, None)) == "at least"
