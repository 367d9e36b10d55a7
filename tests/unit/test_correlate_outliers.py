"""From when a decision is too slow: stalls raise no bar for those that follow, and healthy limiters are silent by a
stated rate.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from agent.correlate.outliers import bars
from tests.unit.correlate_scenarios import APP_PID, MS, T0, UNTIL, Host, S, latest, run

DAYS, DAY_S, WINDOW = 2, 86_400, 124
PYTHON3 = {"pid": APP_PID, "tid": APP_PID, "comm": b"python3"}


def seconds(draw: str, rng: np.random.Generator, n: int, rate: int = 10) -> np.ndarray:
    """The worst of ``rate`` decisions of each second, ms."""
    shape = (n, rate)
    return np.asarray(
        {
            "narrow": lambda: 20 * rng.lognormal(0, 0.4, shape),
            "wide": lambda: 20 * rng.lognormal(0, 0.8, shape),
            "power": lambda: 10 * rng.random(shape) ** (-1 / 4),
        }[draw]().max(axis=1)
    )


@pytest.mark.parametrize(("draw", "most"), [("narrow", 0), ("wide", 1), ("power", 4)])
def test_a_healthy_limiter_passes_the_bar_about_once_a_day_or_less(draw: str, most: int) -> None:
    worst = seconds(draw, np.random.default_rng(7), DAYS * DAY_S)
    passed = sum(
        int(
            (
                worst[at + WINDOW : at + WINDOW + 8_000]
                > bars(some).sure[: len(worst[at + WINDOW : at + WINDOW + 8_000])]
            ).sum()
        )
        for at in range(0, len(worst) - WINDOW, 8_000)
        for some in [sliding_window_view(worst, WINDOW)[at : at + 8_000]]
    )
    assert passed <= DAYS * most


@pytest.mark.parametrize("stalls", [1, 2])
def test_a_stall_raises_no_bar_for_the_next(stalls: int) -> None:
    worst = seconds("narrow", np.random.default_rng(3), WINDOW)
    before = bars(worst[None])
    worst[50 : 50 + stalls] = 930
    after = bars(worst[None])
    assert after.sure[0] < 1.3 * before.sure[0] < 930
    assert after.slow[0] < 1.3 * before.slow[0]


def test_where_80_ms_is_usual_half_a_second_is_not() -> None:
    rng = np.random.default_rng(1)
    worst = 80 * rng.lognormal(0, 0.2, (WINDOW, 15)).max(axis=1)
    assert bars(worst[None]).sure[0] < 500


def decision(host: Host, at: float, ms: float, limiter: bytes = b"api") -> None:
    host.add(
        "limiter_decision", at=at, **PYTHON3, limiter_id=limiter, library=b"own", cost=1.0, duration_ns=int(ms * MS)
    )


def stalls_of(host: Host, until: float) -> list[tuple[float, float]]:
    """(second after T0, what it took at worst in ms) of each finding."""
    return [
        (
            (int(f["start_ns"]) - T0) / S,
            max(float(e["value"]) / MS for e in f["evidence"] if e["what"] == "decision_latency"),
        )  # type: ignore[attr-defined,call-overload]
        for f in latest(run(host, until))
    ]


def test_an_unflagged_stall_hides_none_that_follows() -> None:
    host = Host(2)
    host.decisions(0, 130, rate=20, ms=60)
    for at, ms in ((90.5, 180), (110.5, 620)):
        decision(host, at, ms)
    assert [round(worst) for _, worst in stalls_of(host, 130)] == [620]


def test_slow_ones_at_once_are_one_hiccup() -> None:
    """Hundreds of requests at a time that a pause of 100 ms held up: what counts is for how long nothing went on."""
    host = Host(2)
    host.decisions(0, 60, rate=200)
    for n in range(200):
        decision(host, 40.1, 100 - n / 10)
    assert stalls_of(host, 60) == []


def test_slow_ones_one_after_the_other_are_a_stall() -> None:
    host = Host(2)
    host.decisions(0, 60, rate=20)
    for n in range(6):
        decision(host, 40.1 + 0.3 * n, 90)
    ((since, worst),) = stalls_of(host, 60)
    assert (round(since), round(worst)) == (40, 90)


def test_stalls_that_come_all_the_time_become_usual() -> None:
    host = Host(2)
    host.decisions(0, 1200, rate=5)
    for at in range(100, 1100, 60):
        decision(host, at + 0.5, 300)
    decision(host, 1150.5, 1500)
    found = stalls_of(host, 1200)
    assert len(found) == 13
    assert round(found[-1][1]) == 1500


@pytest.mark.parametrize("ms", [25, 60, 90])
def test_one_decision_in_eight_that_takes_fifty_times_the_usual_is_a_symptom(ms: int) -> None:
    host = Host()
    host.decisions(0, UNTIL, ms=0.4)
    rows = host.made[-1].rows
    at = (rows["t_ns"] - T0) / S
    rows["duration_ns"][(at > 30) & (at < 45) & (np.random.default_rng(2).random(len(at)) < 0.12)] = ms * MS
    (one,) = latest(run(host, UNTIL))
    assert one["symptom"] == "decision_latency"
    assert f"took up to {ms} ms" in str(one["sentence"])
