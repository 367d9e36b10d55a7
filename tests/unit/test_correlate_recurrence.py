"""What is a recurrence of a healthy service is not reported, and no fault ever makes one of another cause, or after a
few times.
"""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from agent.correlate.episode import Episode
from agent.correlate.recurrence import Recurrences
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
        recurs_by="age_s",
    )


def reported(times: list[int], cause: str = "", recurrences: Recurrences | None = None, value: float = 5.0) -> int:
    recurrences = Recurrences() if recurrences is None else recurrences
    return sum(not recurrences.has(episode(second, value), cause, second) for second in times)


def test_what_comes_again_and_again_for_no_known_reason_is_reported_twelve_times() -> None:
    assert reported(list(range(0, 10 * HOUR, 600))) == 12


def test_a_few_strong_faults_in_half_an_hour_raise_no_bar() -> None:
    assert reported(list(range(0, 1800, 180))) == 10


def test_twice_as_bad_is_reported() -> None:
    recurrences = Recurrences()
    reported(list(range(0, 2 * HOUR, 300)), recurrences=recurrences)
    assert reported([3 * HOUR], recurrences=recurrences) == 0
    assert reported([3 * HOUR + 60], recurrences=recurrences, value=11.0) == 1


def test_another_subject_has_its_own_recurrences() -> None:
    recurrences = Recurrences()
    reported(list(range(0, 2 * HOUR, 300)), recurrences=recurrences)
    assert not recurrences.has(episode(3 * HOUR, key="mails"), "", 3 * HOUR)


def test_it_is_forgotten_after_a_day() -> None:
    recurrences = Recurrences()
    reported(list(range(0, 2 * HOUR, 300)), recurrences=recurrences)
    assert reported([27 * HOUR], recurrences=recurrences) == 1


def test_a_fault_of_another_cause_is_reported_however_often_something_else_was() -> None:
    recurrences = Recurrences()
    reported(list(range(0, 4 * HOUR, 300)), "syscall", recurrences)
    assert [
        reported([5 * HOUR + n], cause, recurrences) for n, cause in ((0, "disk"), (90, "network_loss"), (180, ""))
    ] == [
        1,
        1,
        1,
    ]
    assert reported([6 * HOUR], "syscall", recurrences) == 0


@pytest.mark.parametrize(("every_s", "silent"), [(60, False), (300, True)])
def test_of_a_known_cause_it_must_be_spread_over_half_an_hour(every_s: int, silent: bool) -> None:
    assert (reported([n * every_s for n in range(13)], "disk") == 12) is silent


@pytest.mark.parametrize("cause", ["process_stopped", "process_killed", "broker_down"])
def test_what_no_healthy_service_does_is_never_a_recurrence(cause: str) -> None:
    times = list(range(0, 10 * HOUR, 600))
    assert reported(times, cause) == len(times)


@pytest.mark.parametrize("rate", [1, 3, 20, 200])
def test_harmless_times_are_reported_less_often_than_twelve_times_a_day_and_subject(rate: int) -> None:
    """Poisson times, ``rate`` an hour, log-normal with sigma 0.3."""
    rng, recurrences, days = np.random.default_rng(rate), Recurrences(), 4
    at = np.unique(np.cumsum(rng.exponential(HOUR / rate, rate * 24 * days)).astype(int))
    at = at[np.diff(at, prepend=-100) > 5]
    values = 5.0 * rng.lognormal(0, 0.3, len(at))
    n = [
        not recurrences.has(episode(int(second), float(value)), "", int(second))
        for second, value in zip(at, values, strict=True)
    ]
    assert sum(n) <= 12 * days


def test_its_memory_is_bounded() -> None:
    recurrences = Recurrences()
    for n in range(5000):
        recurrences.has(episode(n, key=f"queue {n}"), "", n)
    assert len(recurrences) == 1024


def stalls(host: Host, until: int, every: int) -> list[int]:
    """A decision that takes 1.5 s now and then, for no reason that is seen."""
    times = list(range(40, until - 15, every))
    for at in times:
        host.stalled_decision(at + 0.7, 1.5, children=False)
    return times


def test_stalls_of_no_known_cause_hide_none_that_follows() -> None:
    """Eight within seven minutes, each of them reported, and one of which the cause is known."""
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
    recurrences, kept = Recurrences(), list[weakref.ref[Episode]]()
    for second in range(0, 40_000, 4):
        one = episode(second, key=f"q{second % 1000}")
        recurrences.has(one, f"cause{second % 37}", second)
        kept.append(weakref.ref(one))
    del one
    assert sum(map(len, recurrences._runs.values())) <= 8192
    assert sum(ref() is not None for ref in kept) < 30
