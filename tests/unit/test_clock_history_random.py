"""Whole lives of a machine: boots with steps (seen and unseen), slews, suspends, restarts of the agent. No answer is
off by more than it says.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.clock.history import AMBIGUOUS, EXACT, SKIPPED, History
from agent.columns import NULL_I64
from agent.tables import TABLES

WALL = 1_800_000_000_000_000_000
SECOND = 1_000_000_000


@dataclass
class Boot:
    """One boot as it really was (steps: BOOTTIME and the REALTIME - BOOTTIME from then on) and as it was recorded
    (rows).
    """

    steps: list[tuple[int, int]]
    end: int = 0
    rows: list[tuple[int, int, int, int, bool]] = field(default_factory=list)

    def wall(self, t: int) -> int:
        return t + next((o for s, o in reversed(self.steps) if s <= t), self.steps[0][1])

    def instants(self, wall: int) -> list[int]:
        ends = [*(s for s, _ in self.steps[1:]), 1 << 62]
        return [wall - o for (s, o), e in zip(self.steps, ends, strict=True) if s <= wall - o < e]

    def history(self) -> History:
        out = TABLES["clock_offset"].empty(len(self.rows))
        for name, values in zip(
            ("t_ns", "real_mono_ns", "boot_mono_ns", "err_ns", "cut"), zip(*self.rows, strict=True), strict=True
        ):
            out[name] = values
        found = History.from_rows(out)
        found.watched(1 << 59)
        return found


@st.composite
def boots(draw: st.DrawFn) -> Boot:
    t, asleep, offset = 0, 0, WALL + draw(st.integers(-(10**15), 10**15))
    boot = Boot([(0, offset)])

    def sample(cut: bool) -> None:
        err = draw(st.integers(0, 2_000))
        boot.rows.append((t, offset + asleep + draw(st.integers(-err, err)), asleep, err, cut))

    sample(False)
    for what in draw(st.lists(st.sampled_from(["seen", "unseen", "slew", "suspend", "restart", "wait"]), max_size=15)):
        t += draw(st.integers(10_000, 10 * SECOND))
        if what in ("seen", "unseen"):
            least = (
                5_000 if what == "seen" else 8_001
            )  # one that nobody saw shows where the samples around it contradict one another
            offset += draw(st.integers(least, 4_000 * SECOND)) * draw(st.sampled_from([1, -1]))
            boot.steps.append((t, offset))
            if what == "seen":
                sample(True)
            t += 5_000
            sample(False)
        elif what == "suspend":  # MONOTONIC stands still
            slept = draw(st.integers(SECOND, 3_600 * SECOND))
            t, asleep = t + slept, asleep + slept
            sample(False)
        elif what in (
            "restart",
            "slew",
        ):  # a slew moves REALTIME, MONOTONIC and BOOTTIME together; an agent begins with a sample
            sample(False)
    boot.end = t + SECOND
    return boot


@given(boots(), st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_no_answer_is_off_by_more_than_its_bound(boot: Boot, places: list[float]) -> None:
    history = boot.history()
    t = np.array([int(p * (boot.end - 1)) for p in places] + [s + d for s, _ in boot.steps for d in (0, 3_000)])
    there = history.to_wall(t)
    truth = [boot.wall(x) for x in t.tolist()]
    assert (there.err_ns != NULL_I64).all()
    assert (np.abs(there.ns - truth) <= there.err_ns).all()
    back = history.to_boot(np.array(truth))
    for x, wall, ns, err, alt, state in zip(
        t.tolist(),
        truth,
        back.ns.tolist(),
        back.err_ns.tolist(),
        back.alt_ns.tolist(),
        back.state.tolist(),
        strict=True,
    ):
        instants = boot.instants(wall)
        assert x in instants
        for answer in (
            (ns, *([alt] if state == AMBIGUOUS else [])) if err != NULL_I64 else ()
        ):  # unknown: before the first sample
            assert min(abs(answer - i) for i in (*instants, *(s for s, _ in boot.steps))) <= err, (
                answer,
                instants,
                err,
            )


@given(boots())
def test_wall_times_that_never_were(boot: Boot) -> None:
    """In the middle of what a forward step left out, if nothing else held it; where every step was seen."""
    history = boot.history()
    seen = len(boot.steps) - 1 == sum(row[4] for row in boot.rows)
    for (_, before), (start, after) in zip(boot.steps, boot.steps[1:], strict=False):
        wall = start + (before + after) // 2
        if seen and after - before > 20_000 and not any(boot.instants(wall + d) for d in (-5_000, 0, 5_000)):
            got = history.to_boot(np.array([wall]))
            assert got.state[0] == SKIPPED
            assert min(abs(int(got.ns[0]) - s) for s, _ in boot.steps) <= got.err_ns[0]


def test_a_clock_that_was_ahead_at_boot_makes_no_later_time_ambiguous() -> None:
    """One step back by an hour, half a minute after the boot: what came then comes once, and the hour before is not
    what the first offset would say.
    """
    hour = 3_600 * SECOND
    boot = Boot(
        [(0, WALL), (30 * SECOND, WALL - hour)],
        100 * SECOND,
        [
            (20 * SECOND, WALL, 0, 50, False),
            (30 * SECOND, WALL - hour, 0, 50, True),
            (31 * SECOND, WALL - hour, 0, 50, False),
        ],
    )
    history, t = boot.history(), np.array([40, 900, 3_000]) * SECOND
    there, back = history.to_wall(t), history.to_boot(np.array([boot.wall(int(x)) for x in t]))
    assert there.state.tolist() == back.state.tolist() == [EXACT] * 3
    assert back.ns.tolist() == t.tolist()
    assert (back.err_ns == 50).all()
    before = history.to_boot(np.array([WALL - 2 * hour]))
    assert (before.ns[0] < 0, before.err_ns[0]) == (True, NULL_I64)


@given(st.lists(boots(), min_size=1, max_size=3))
def test_boots_are_kept_apart(several: list[Boot]) -> None:
    for boot, history in [(b, b.history()) for b in several]:
        t = np.arange(0, boot.end, max(boot.end // 11, 1))
        assert (np.abs(history.to_wall(t).ns - [boot.wall(x) for x in t.tolist()]) <= history.to_wall(t).err_ns).all()


@pytest.mark.parametrize("pieces", [1, 2, 7, 1_000])
def test_order_and_size_do_not_matter(pieces: int) -> None:
    """All ways through the look-up: one piece, few, many; sorted, shuffled; edges in one spot and far apart; beyond
    both ends.
    """
    rng = np.random.default_rng(pieces)
    starts = np.unique(
        np.concatenate([rng.integers(0, 10**6, pieces // 2 + 1), rng.integers(0, 10**14, pieces // 2 + 1)])
    )
    offsets = WALL + np.cumsum(rng.integers(-(10**9), 10**9, len(starts)))
    boot = Boot(list(zip(starts.tolist(), offsets.tolist(), strict=True)), 1 << 58)
    boot.rows = [(s, o, 0, 0, True) for s, o in boot.steps]
    history = boot.history()
    t = np.concatenate(
        [starts, starts - 1, starts + 1, rng.integers(0, 10**6, 9_973), rng.integers(-(10**15), 2 * 10**14, 30_011)]
    )
    wanted = t + offsets[np.maximum(np.searchsorted(starts, t, "right") - 1, 0)]
    for order in (np.argsort(t), rng.permutation(len(t))):
        there = history.to_wall(t[order])
        assert (there.ns == wanted[order]).all()
        alone = [history.to_wall(t[order][i : i + 1]) for i in range(0, len(t), 997)]
        assert [int(a.state[0]) for a in alone] == there.state[::997].tolist()
        assert [int(a.alt_ns[0]) for a in alone] == there.alt_ns[::997].tolist()
        back = history.to_boot(there.ns)
        ours = (back.ns == t[order]) | (back.alt_ns == t[order])
        assert ours[back.state == EXACT].all()
        assert (history.to_wall(back.ns).ns == there.ns)[back.state != SKIPPED].all()


@pytest.mark.filterwarnings("error")
def test_the_latest_time_that_a_kernel_accepts() -> None:
    """settimeofday(2) takes up to 2^63 ns less 30 years; and back to 1970."""
    latest = 2**63 - 30 * 366 * 86_400 * SECOND
    boot = Boot([(0, WALL), (SECOND, latest), (2 * SECOND, 0), (3 * SECOND, WALL)], 4 * SECOND)
    boot.rows = [(s, o, 0, 10, True) for s, o in boot.steps]
    t = np.arange(0, 4 * SECOND, SECOND // 3)
    there = boot.history().to_wall(t)
    assert there.ns.tolist() == [boot.wall(x) for x in t.tolist()]
    assert (there.err_ns == 10).all()
    assert (boot.history().to_boot(there.ns).ns <= t).all()
