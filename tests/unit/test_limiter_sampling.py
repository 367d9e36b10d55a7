"""Sampling of hot limiters: when a program has probes, and whether stated intervals hold what simulated ones
decided.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from agent.instruments.limiters.limiter_sampling import HITS_PER_S, Rates, Schedule
from agent.kernel.wire_structs import Wire
from agent.limiters.catalogue import seen

BPF = Path(__file__).parents[2] / "bpf"
RECORD = Wire.read(BPF / "tickscope.h", BPF / "events.h", BPF / "limiter_decision.h").dtype("limiter_decision")
SECOND, MS = 1_000_000_000, 1_000_000


def called(records: np.ndarray) -> np.ndarray:
    return np.full(len(records), b"shop:rate.Limiter@pay")


def refused(t_ns: np.ndarray) -> np.ndarray:
    """Records of 100 goroutines' Allow at these times, each refused."""
    out = np.zeros(len(t_ns), RECORD)
    out["t_ns"], out["library"] = t_ns, list(seen()).index("golang.org/x/time/rate")
    out["goroutine"] = out["proc"]["tid"] = np.arange(len(t_ns)) % 100
    out["n"], out["reserved"], out["limit"], out["burst"] = 1, 1, np.float64(7).view(np.uint64), 7
    out["last_wall"] = out["now_wall"] = 1 << 63
    out["proc"]["pid"] = os.getpid()
    return out


@pytest.mark.parametrize("uneven", [False, True], ids=["by chance", "in bursts"])
def test_the_interval_holds_95_of_100_programs(uneven: bool) -> None:
    held = 0
    for run in range(100):
        rng = np.random.default_rng(run)
        gaps = rng.exponential(500_000, 16_000)
        if uneven:
            gaps *= np.repeat(rng.choice([0.3, 1.7], 128), 125)
        t = SECOND + np.cumsum(gaps.astype(np.int64) + 1)
        records, rates, total = refused(t), Rates(), np.zeros(3, np.int64)
        rates.begin(2 * SECOND)
        for second in range(2, 7):
            since = second * SECOND + (0 if second == 2 else int(rng.integers(0, SECOND - 60 * MS)))
            until = since + (10 if second == 2 else 60) * MS
            window = records[(t >= since) & (t < until)]
            for batch in rates.window(window, since, until, called):
                total += [int(batch.rows[f"refused{end}"].sum()) for end in ("_low", "", "_high")]
        truth = int(((t >= 2 * SECOND) & (t < until)).sum())
        held += total[0] <= truth <= total[2]
    assert held >= 95


@pytest.mark.parametrize(("per_s", "leaves"), [(0.4 * HITS_PER_S, True), (0.6 * HITS_PER_S, False)])
def test_sampling_ends_below_half_of_the_budget(per_s: float, leaves: bool) -> None:
    schedule = Schedule()
    schedule.begin(0)
    calm = [schedule.calm(round(per_s * ns / SECOND), ns) for ns in [schedule.window_ns, 400 * MS, 400 * MS]]
    assert calm == [False, False, leaves]


def test_probes_of_a_closed_loop_are_attached_for_at_most_6_percent_of_its_time() -> None:
    """Attaching and detaching take 20 ms each, in which the probes are hit, too."""
    schedule, now, attached, n = Schedule(), 0, 0, 0
    schedule.begin(now)
    while now < 60 * SECOND:
        asked = now = schedule.next_ns(now)
        open_ns = schedule.window_ns
        assert not schedule.calm(open_ns // 10_000, open_ns)
        now += open_ns + 40 * MS
        schedule.closed(asked, now, (now - asked) // 10_000)
        attached, n = attached + now - asked, n + 1
    assert attached / now <= 0.061 and n > 30
