"""Changes of rate that nobody asked for, found in recorded readings of a quiet machine: an hour, one a second, kernel
6.18 in a VM.

(In that hour some test set the frequency by 1 ppm for a second, as adjtimex said, and was to be left alone.)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agent.clock.slope import Bend, Slope
from agent.clock.timex import freq_ppb

QUIET = np.load(Path(__file__).parent / "data" / "clock_quiet.npz")
T_NS = np.cumsum(QUIET["apart_ns"].astype(np.int64))
MONO_RAW, ERR = QUIET["mono_raw_ns"].astype(np.int64), QUIET["err_ns"].astype(np.int64)
EXPLAINED = [freq_ppb(int(f), 10_000) for f in QUIET["freq_scaled"]]
SECOND = 1_000_000_000


def bends(extra_ns: np.ndarray, first: int = 0, count: int = 3600) -> list[tuple[int, Bend]]:
    """(when it was reported, what), with extra_ns added to MONOTONIC - MONOTONIC_RAW."""
    slope, out = Slope(), []
    for i in range(first, min(first + count, len(T_NS))):
        bend = slope.add(int(T_NS[i]), int(MONO_RAW[i] + extra_ns[i]), int(ERR[i]), EXPLAINED[i])
        if bend is not None:
            out.append((int(T_NS[i]), bend))
    return out


def test_an_hour_of_quiet_without_a_false_alarm() -> None:
    assert T_NS[-1] - T_NS[0] > 3500 * SECOND
    assert bends(np.zeros(len(T_NS), np.int64)) == []


@pytest.mark.parametrize("ppb", [1_000, -1_000, 1_500, -11_600, 50_000, -500_000])
@pytest.mark.parametrize("at", [100, 1234, 2000])
def test_a_change_of_rate_is_found_once_within_ten_seconds(ppb: int, at: int) -> None:
    begin = int(T_NS[at]) + 300_000_000
    extra = np.maximum(T_NS - begin, 0) * ppb // SECOND
    found = bends(extra, first=at - 50, count=150)
    assert len(found) == 1
    reported, bend = found[0]
    assert reported - begin < 10 * SECOND
    assert abs(bend.t_ns - begin) < 2 * SECOND
    assert abs(bend.before_ppb) < 50
    assert abs(bend.after_ppb - ppb) < 100


def test_beginning_and_end_of_a_smear_are_two() -> None:
    rate = np.where((np.arange(len(T_NS)) >= 200) & (np.arange(len(T_NS)) < 400), -11_574, 0)
    extra = np.cumsum(rate * np.diff(T_NS, prepend=0) // SECOND)
    found = [bend for _, bend in bends(extra, count=800)]
    assert [round(b.after_ppb, -2) for b in found] == [-11_600, 0]


def test_wander_below_the_allowance_is_nothing() -> None:
    assert bends((T_NS.astype(float) * 400 / SECOND).astype(np.int64)) == []
    assert bends((50_000 * np.sin(T_NS / SECOND / 300)).astype(np.int64)) == []  # at most 167 ppb


def test_what_the_discipline_explains_is_nothing() -> None:
    """A correction of 100 ppm that adjtimex tells, a slew while which it tells nothing, and a sleep."""
    slope, y = Slope(), 0
    for i in range(300):
        explained: int | None = 100_000 if i >= 100 else 0
        y += 100_000 if i >= 100 else 0
        if 200 <= i < 220:
            explained, y = None, y + 500_000
        t = i * SECOND + (60 * SECOND if i >= 250 else 0)
        if i == 250:
            y += 30_000_000
        assert slope.add(t, y, 90, explained) is None


def test_wide_readings_raise_the_threshold() -> None:
    rng = np.random.default_rng(7)
    slope = Slope()
    for i in range(3000):
        err = 40_000
        assert slope.add(i * SECOND, int(rng.integers(-err, err)), err, 0) is None


def test_a_change_among_wide_readings_is_reported_once_it_is_known() -> None:
    rng = np.random.default_rng(7)
    slope, err = Slope(), 5_000
    found = [slope.add(i * SECOND, max(i - 50, 0) * 10_000 + int(rng.integers(-err, err)), err, 0) for i in range(300)]
    (bend,) = [b for b in found if b is not None]
    assert abs(bend.after_ppb - 10_000) <= 250
