"""Subjects of series: for how many there is room, and what it takes to say that there is none."""

from __future__ import annotations

import time

from agent.correlate.series import SECONDS, Series


def refusing(limit: int) -> float:
    """How long it takes to refuse 3,000 subjects in one second where so many have their place, s of processor time."""
    series = Series((), limit)
    for n in range(limit):
        assert series.slot((n,), 7) == n
    begun = time.thread_time()
    assert all(series.slot((limit + n,), 8) < 0 for n in range(3000))
    took = time.thread_time() - begun
    assert series.dropped == 3000
    return took


def test_who_comes_with_ever_new_subjects_takes_no_time_from_the_others() -> None:
    """Anybody may tell of thousands of limiters a second, and there is one thread."""
    assert refusing(4096) < 20 * refusing(16)


def test_one_that_was_not_seen_for_long_gives_way_also_in_a_second_in_which_others_found_no_room() -> None:
    series = Series((), 2)
    series.slot(("a",), 0)
    series.slot(("b",), 1)
    assert series.slot(("c",), SECONDS - 1) < 0
    assert series.slot(("c",), SECONDS) == 0
    assert series.slot(("d",), SECONDS) < 0
    assert series.slot(("d",), SECONDS + 1) == 1
