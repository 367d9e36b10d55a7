"""A host that is stepped without end: the agent's history stays small, and what follows from rows costs nothing a step
in Python.
"""

from __future__ import annotations

import sys
import tracemalloc

import numpy as np

from agent.clock.clock_source import _COMPACT_ROWS, MOST_SEGMENTS
from agent.clock.history import AMBIGUOUS, EXACT, EXTRAPOLATED, History
from agent.tables import TABLES

S = 1_000_000_000
MINUTE = 60 * S
WALL = 1_800_000_000 * S
YEAR = 525_600


def stepped(first: int, n: int) -> np.ndarray:
    """A cut each minute from minute ``first`` on, by 300 ms back and forth."""
    rows = TABLES["clock_offset"].empty(n)
    minutes = np.arange(first, first + n)
    rows["t_ns"], rows["real_mono_ns"], rows["boot_mono_ns"], rows["err_ns"], rows["cut"] = (
        minutes * MINUTE,
        WALL + minutes % 2 * 300_000_000,
        0,
        40,
        1,
    )
    return rows


def test_a_year_of_steps_leaves_the_agent_a_small_history() -> None:
    """As the clock's source adds them, a row at a time: bounded rows, what is recent exact, what was forgotten
    extrapolated.
    """
    history, all_rows = History(), stepped(0, YEAR)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    compactions = 0
    for i in range(0, YEAR, 100):
        history.append(all_rows[i : i + 100])
        if len(history) > _COMPACT_ROWS:
            history.compact(MOST_SEGMENTS)
            compactions += 1
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(history) <= _COMPACT_ROWS
    assert (
        compactions <= YEAR / (_COMPACT_ROWS - 2 * MOST_SEGMENTS) + 1
    )  # each after thousands of rows, not one after every row
    assert grown < 4_000_000
    t = np.array([YEAR - 1, YEAR - 1000, YEAR // 2]) * MINUTE
    there = history.to_wall(t)
    assert (there.ns - t)[:2].tolist() == (WALL + np.array([YEAR - 1, YEAR - 1000]) % 2 * 300_000_000).tolist()
    assert there.err_ns[:2].tolist() == [40, 40]
    assert there.state.tolist()[2] == EXTRAPOLATED
    assert there.err_ns[2] > 10**12
    assert history.forgotten == YEAR - len(history.segments.start_ns)


def test_a_year_of_rows_converts_exactly_both_ways() -> None:
    """What the store still has: no loop of Python over segments (a year took five minutes), and not one time is off."""
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    history = History.from_rows(stepped(0, YEAR))
    t = np.random.default_rng(1).integers(0, (YEAR - 1) * MINUTE, 10_007)
    sys.setprofile(count)
    there = history.to_wall(t)
    back = history.to_boot(there.ns)
    sys.setprofile(None)
    assert calls < 5_000
    assert (there.ns - t == WALL + t // MINUTE % 2 * 300_000_000).all()
    assert set(there.err_ns.tolist()) == {40}
    assert ((back.ns == t) | (back.alt_ns == t)).all()
    assert set(there.state.tolist()) == {EXACT, AMBIGUOUS}


def test_rows_that_were_appended_are_sorted_in_once() -> None:
    history = History()
    for i in (3, 1, 2, 0):
        history.append(stepped(i, 1))
    assert len(history) == 4
    assert history.segments.start_ns.tolist() == [i * MINUTE for i in range(4)]
    assert history.segments is history.segments
