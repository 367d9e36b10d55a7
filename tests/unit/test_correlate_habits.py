"""What is a habit of a healthy service is not told, and no fault ever makes one of another cause, or after a few
times.
"""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from agent.correlate.episode import Episode
from agent.correlate.habits import Habits
from tests.unit.correlate_scenarios import MS, REDIS_PID, T0, Host, S, latest, run
from tests.unit.test_correlate_processes import event

HOUR = 3600


def episode(second: int, value: float = 5.0, key: str = "orders") -> Episode:
    return Episode(
        "queue_lag",
        (key,),
        0,
        key,
        key,
        second * S,
        (second + 1) * S,
        "age_s",
        "s",
        0.1,
        value,
        1.0,
        second,
        habit="age_s",
    )


def told(times: list[int], cause: str = "", habits: Habits | None = None, value: float = 5.0) -> int:
    habits = Habits() if habits is None else habits
    return sum(not habits.has(episode(second, value), cause, second) for second in times)


def test_what_comes_again_and_again_for_no_known_reason_is_told_twelve_times() -> None:
    assert told(list(range(0, 10 * HOUR, 600))) == 12


def test_a_few_strong_faults_in_half_an_hour_raise_no_bar() -> None:
    assert told(list(range(0, 1800, 180))) == 10


def test_twice_as_bad_is_told() -> None:
    habits = Habits()
    told(list(range(0, 2 * HOUR, 300)), habits=habits)
    assert told([3 * HOUR], habits=habits) == 0
    assert told([3 * HOUR + 60], habits=habits, value=11.0) == 1


def test_another_subject_has_its_own_habits() -> None:
    habits = Habits()
    told(list(range(0, 2 * HOUR, 300)), habits=habits)
    assert not habits.has(episode(3 * HOUR, key="mails"), "", 3 * HOUR)


def test_it_is_forgotten_after_a_day() -> None:
    habits = Habits()
    told(list(range(0, 2 * HOUR, 300)), habits=habits)
    assert told([27 * HOUR], habits=habits) == 1


def test_a_fault_of_another_cause_is_told_however_often_something_else_was() -> None:
    habits = Habits()
    told(list(range(0, 4 * HOUR, 300)), "syscall", habits)
    assert [told([5 * HOUR + n], cause, habits) for n, cause in ((0, "disk"), (90, "network_loss"), (180, ""))] == [
        1,
        1,
        1,
    ]
    assert told([6 * HOUR], "syscall", habits) == 0


@pytest.mark.parametrize(("every_s", "silent"), [(60, False), (300, True)])
def test_of_a_known_cause_it_must_be_spread_over_half_an_hour(every_s: int, silent: bool) -> None:
    assert (told([n * every_s for n in range(13)], "disk") == 12) is silent


@pytest.mark.parametrize("cause", ["process_stopped", "process_killed", "broker_down"])
def test_what_no_healthy_service_does_is_never_a_habit(cause: str) -> None:
    times = list(range(0, 10 * HOUR, 600))
    assert told(times, cause) == len(times)


@pytest.mark.parametrize("rate", [1, 3, 20, 200])
def test_harmless_times_are_told_less_often_than_twelve_times_a_day_and_subject(rate: int) -> None:
    """Poisson times, ``rate`` an hour, log-normal with sigma 0.3."""
    rng, habits, days = np.random.default_rng(rate), Habits(), 4
    at = np.unique(np.cumsum(rng.exponential(HOUR / rate, rate * 24 * days)).astype(int))
    at = at[np.diff(at, prepend=-100) > 5]
    values = 5.0 * rng.lognormal(0, 0.3, len(at))
    n = [
        not habits.has(episode(int(second), float(value)), "", int(second))
        for second, value in zip(at, values, strict=True)
    ]
    assert sum(n) <= 12 * days


def test_its_memory_is_bounded() -> None:
    habits = Habits()
    for n in range(5000):
        habits.has(episode(n, key=f"queue {n}"), "", n)
    assert len(habits) == 1024


def stalls(host: Host, until: int, every: int) -> list[int]:
    """A decision that takes 1.5 s now and then, for no reason that is seen."""
    times = list(range(40, until - 15, every))
    for at in times:
        host.stalled_decision(at + 0.7, 1.5, children=False)
    return times


def test_stalls_of_no_known_cause_hide_none_that_follows() -> None:
    """Eight within seven minutes, each of them told, and one of which the cause is known."""
    host = Host(2)
    until = 470
    host.decisions(0, until, rate=20)
    host.rtt(0, until)
    host.server(0, until)
    times = stalls(host, 420, 50)
    event(host, "stopped", 440, pid=REDIS_PID, signal=19)
    event(host, "continued", 441.6, pid=REDIS_PID, signal=18)
    host.stalled_decision(441.65, 1.6)
    found = latest(run(host, until, every_ms=500))
    assert [f["cause"] for f in found] == ["unknown"] * len(times) + ["process_stopped"]
    assert found[-1]["start_ns"] <= T0 + 440 * S + 60 * MS  # type: ignore[operator]


def test_all_that_it_keeps_is_bounded_and_no_episode_is_held_for_long() -> None:
    habits, kept = Habits(), list[weakref.ref[Episode]]()
    for second in range(0, 40_000, 4):
        one = episode(second, key=f"q{second % 1000}")
        habits.has(one, f"cause{second % 37}", second)
        kept.append(weakref.ref(one))
    del one
    assert sum(map(len, habits._runs.values())) <= 8192
    assert sum(ref() is not None for ref in kept) < 30
