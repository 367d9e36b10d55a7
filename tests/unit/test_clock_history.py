"""Conversion across random histories: round trips within the bound, both answers where ambiguous, skipped times
flagged.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.clock.history import AMBIGUOUS, EXACT, EXTRAPOLATED, SKIPPED, History
from agent.columns import NULL_I64
from agent.tables import TABLES

WALL = 1_800_000_000_000_000_000


def rows(
    t: list[int], real_boot: list[int], err: int = 0, cut: bool = True, boot_mono: list[int] | None = None
) -> np.ndarray:
    """Rows of clock_offset: one segment a row."""
    out = TABLES["clock_offset"].empty(len(t))
    out["t_ns"], out["err_ns"], out["cut"] = t, err, cut
    out["boot_mono_ns"] = boot_mono or 0
    out["real_mono_ns"] = np.array(real_boot) + out["boot_mono_ns"]
    return out


class Truth:
    """A clock whose steps are known: the slow and plain way to convert."""

    def __init__(self, starts: list[int], offsets: list[int]) -> None:
        self.starts, self.offsets = starts, offsets

    def wall(self, t: int) -> int:
        return t + [o for s, o in zip(self.starts, self.offsets, strict=True) if s <= t or s == self.starts[0]][-1]

    def boots(self, wall: int) -> list[int]:
        """Every instant at which the wall clock said so."""
        ends = [*self.starts[1:], 1 << 62]
        begins = [0, *self.starts[1:]]
        return [wall - o for b, e, o in zip(begins, ends, self.offsets, strict=True) if b <= wall - o < e]


@st.composite
def truths(draw: st.DrawFn) -> Truth:
    starts = sorted(draw(st.sets(st.integers(0, 10**6), min_size=1, max_size=12)))
    steps = draw(st.lists(st.integers(-(10**5), 10**5).filter(bool), min_size=len(starts), max_size=len(starts)))
    return Truth(starts, np.cumsum([WALL, *steps[1:]]).tolist())


@given(truths(), st.lists(st.integers(0, 1_200_000), min_size=1, max_size=50))
def test_there_and_back(truth: Truth, times: list[int]) -> None:
    history = History.from_rows(rows(truth.starts, truth.offsets))
    t = np.array(times)
    there = history.to_wall(t)
    assert there.ns.tolist() == [truth.wall(x) for x in times]
    back = history.to_boot(there.ns)
    for x, wall, state, first, last, back_state in zip(
        times, there.ns.tolist(), there.state, back.ns, back.alt_ns, back.state, strict=True
    ):
        instants = truth.boots(wall)
        assert (state == AMBIGUOUS) == (len(instants) > 1) == (back_state == AMBIGUOUS)
        assert first == min(instants)
        assert last == (max(instants) if len(instants) > 1 else NULL_I64)
        assert x in instants


@given(truths(), st.integers(-200_000, 1_400_000))
def test_any_wall_time(truth: Truth, at: int) -> None:
    history = History.from_rows(rows(truth.starts, truth.offsets))
    wall = WALL + at
    back = history.to_boot(np.array([wall]))
    instants = truth.boots(wall)
    before = wall < min(s + o for s, o in zip([0, *truth.starts[1:]], truth.offsets, strict=True))
    inside = bool(instants) and truth.starts[0] <= instants[0] <= truth.starts[-1]
    assert back.state[0] == (
        AMBIGUOUS if len(instants) > 1 else EXACT if inside else EXTRAPOLATED if instants or before else SKIPPED
    )
    if instants:
        assert back.ns[0] == min(instants)
    elif before:
        assert (back.ns[0], back.err_ns[0]) == (wall - truth.offsets[0], NULL_I64)
    else:
        step = int(back.ns[0])
        assert step in truth.starts[1:]
        assert truth.wall(step - 1) + 1 <= wall < truth.wall(step)


@given(truths())
def test_an_ambiguous_instant_gives_the_other_side(truth: Truth) -> None:
    history = History.from_rows(rows(truth.starts, truth.offsets))
    t = np.arange(0, 1_000_000, 9_973)
    there = history.to_wall(t)
    ambiguous = there.state == AMBIGUOUS
    assert np.isin(there.alt_ns[ambiguous] - t[ambiguous], truth.offsets).all()
    assert (there.alt_ns[ambiguous] != there.ns[ambiguous]).all()
    assert (there.alt_ns[~ambiguous] == NULL_I64).all()


@given(truths(), st.integers(0, 400), st.randoms(use_true_random=False))
def test_samples_with_errors_bound_the_truth(truth: Truth, err: int, random: object) -> None:
    """Samples inside segments, each off by up to its error: the answer is within its bound, and later samples only
    tighten it.
    """
    begin, known = list(truth.starts), []
    for i, start in enumerate(begin):
        end = begin[i + 1] if i + 1 < len(begin) else start + 10_000
        for t in (start, *range(start + 1000, end, 5000)):
            off = random.randint(-err, err)  # type: ignore[attr-defined]
            known.append((t, truth.offsets[i] + off, t == start))
    taken = rows([k[0] for k in known], [k[1] for k in known], err)
    taken["cut"] = [k[2] for k in known]
    random.shuffle(known)  # type: ignore[attr-defined]
    history = History.from_rows(taken[::-1])
    t = np.unique(np.concatenate([np.array(begin), np.array(begin) + 500]))
    there = history.to_wall(t)
    assert (there.err_ns <= err).all()
    assert (np.abs(there.ns - [truth.wall(x) for x in t.tolist()]) <= there.err_ns).all()
    history.compact()
    again = history.to_wall(t)
    assert (again.ns == there.ns).all()
    assert (np.abs(again.err_ns - there.err_ns) <= 1).all()


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=8), st.lists(st.integers(0, 10**9), min_size=9, max_size=9))
def test_suspends_move_boottime_against_monotonic_and_nothing_else(gaps: list[int], sleeps: list[int]) -> None:
    awake = np.cumsum([0, *gaps])  # MONOTONIC at each sample
    asleep = np.cumsum(sleeps[: len(awake)])
    history = History.from_rows(
        rows((awake + asleep).tolist(), [WALL] * len(awake), boot_mono=asleep.tolist(), cut=False)
    )
    assert len(history.segments.start_ns) == 1
    assert (history.mono_to_boot(awake) == awake + asleep).all()
    assert (history.boot_to_mono(awake + asleep) == awake).all()
    assert (history.boot_to_mono(awake + asleep - 1) <= awake).all()  # asleep, or just before
    assert history.boot_to_mono(np.array([awake[-1] + asleep[-1] + 7])) == awake[-1] + 7
    assert (history.to_wall(awake + asleep).ns == awake + asleep + WALL).all()


def test_a_step_that_nobody_saw_is_in_the_error_between_the_samples() -> None:
    history = History.from_rows(rows([0, 1000, 2000, 3000], [WALL, WALL, WALL + 700, WALL + 700], err=5, cut=False))
    there = history.to_wall(np.array([500, 999, 1000, 1999, 2000, 2500]))
    assert there.err_ns.tolist() == [5, 5, 705, 705, 5, 5]
    assert (there.ns - WALL).tolist() == [500, 999, 1000, 1999, 2700, 3200]


def test_outside_of_what_was_watched_bounds_grow_and_that_is_reported() -> None:
    """By 500 ppm, to which the kernel trusts an oscillator, and by what steps were seen to do: here 600 us in a minute,
    10 ppm more.
    """
    minute = 60 * 10**9
    history = History.from_rows(rows([minute, 2 * minute], [WALL, WALL + 600_000], err=3))
    t = np.array([-1, 0, minute - 1000, minute, 2 * minute, 2 * minute + 10**9, 2 * minute + 10**18])
    for there in (history.to_wall(t), history.to_boot(history.to_wall(t).ns)):
        assert there.state.tolist() == [EXTRAPOLATED] * 3 + [EXACT] * 2 + [EXTRAPOLATED] * 2
        assert there.err_ns.tolist() == pytest.approx(
            [NULL_I64, 3 + 30_600_000, 3 + 1, 3, 3, 3 + 510_000, 3 + 510 * 10**12], rel=1e-9, abs=1
        )
    history.watched(2 * minute + 10**9)
    there = history.to_wall(t)
    assert there.state.tolist()[4:] == [EXACT, EXACT, EXTRAPOLATED]
    assert there.err_ns[5] == 3
    assert 3 + 500 * 10**12 < there.err_ns[6] < 3 + 510 * 10**12


def test_a_step_back_whose_time_is_still_to_come_again() -> None:
    """The second answer is not seen yet: the bound is that of the one that is less certain."""
    history = History.from_rows(rows([0, 3000 * 10**9], [WALL, WALL - 3600 * 10**9], err=3))
    back = history.to_boot(np.array([WALL + 2000 * 10**9]))
    assert (back.state[0], back.ns[0], back.alt_ns[0]) == (AMBIGUOUS, 2000 * 10**9, 5600 * 10**9)
    assert back.err_ns[0] > 10**9


def test_rows_without_offsets_are_left_out_and_an_empty_history_reports_it() -> None:
    history = History.from_rows(TABLES["clock_offset"].empty(3))
    assert len(history) == 0
    with pytest.raises(ValueError, match="empty"):
        history.to_wall(np.array([1]))


def test_shapes_and_empty_input() -> None:
    for history in (History.from_rows(rows([0], [WALL])), History.from_rows(rows([0, 9], [WALL, WALL - 5]))):
        assert history.to_wall(np.empty(0, np.int64)).ns.shape == (0,)
        assert history.to_boot(np.zeros((2, 3), np.int64)).state.shape == (2, 3)
