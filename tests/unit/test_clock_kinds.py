"""Kinds of clock change that no call explains, told apart by rule, each one row. Pure, from made-up readings."""

from __future__ import annotations

import pytest

from agent.clock.change import Change
from agent.clock.join import SETTLE_NS, Join
from agent.clock.sample import Reading
from agent.clock.timex import STA_INS, STA_UNSYNC, Timex, flag_names
from tests.unit.test_clock_join import ASK, LIBC, REAL, TAI, WOKE, record

SECOND = 1_000_000_000
STILL = Timex(0, 10_000, 0, 500, 0, 37, 0)


def reading(t: int, real: int = 0, tai: int | None = None, slept: int = 0) -> Reading:
    """REALTIME - BOOTTIME is REAL + real; TAI moves with it unless ``tai`` says where that is; MONOTONIC slept."""
    return Reading(t, REAL + real + slept, slept, 0, REAL + slept + TAI + (real if tai is None else tai), 20)


def seen(join: Join, reading: Reading, state: Timex = STILL) -> list[Change]:
    """The rows of what is, once it has settled, and that no more come."""
    out = []
    for _ in range(5):
        out += join.settle(reading, state)
        reading = reading._replace(t_ns=reading.t_ns + SETTLE_NS)
    assert not join.pending
    return out


@pytest.mark.parametrize("by", [SECOND, -SECOND])
def test_a_leap_second_is_no_step(by: int) -> None:
    join = Join(reading(0), STILL._replace(status=STA_INS))
    join.hint(SECOND - 5, REAL + by)
    (row,) = seen(join, reading(SECOND, by, tai=0), STILL._replace(status=STA_INS, tai_s=37 - by // SECOND))
    assert (row.kind, row.size_ns, row.via, row.record, row.t_ns) == ("leap", by, "none", None, SECOND - 5)
    assert seen(join, reading(3 * SECOND, by, tai=0), STILL._replace(status=STA_INS, tai_s=37 - by // SECOND)) == []


@pytest.mark.parametrize("views", [(ASK,), (ASK, WOKE), (ASK, WOKE, LIBC)])
def test_a_call_that_steps_by_a_second_is_no_leap(views: tuple[int, ...]) -> None:
    join = Join(reading(0), STILL)
    fields = {"modes": 0x2100, "asked_s": -1, "asked_part": 0}
    made = {
        ASK: record(ASK, 100, before=0, **fields),
        WOKE: record(WOKE, 120, after=-SECOND, **fields),
        LIBC: record(LIBC, 130, start_ns=90, before=0, after=-SECOND, **fields),
    }
    for view in views:
        join.feed(made[view])
    assert [(r.kind, r.size_ns) for r in seen(join, reading(SECOND, -SECOND))] == [("step", -SECOND)]


def test_a_tai_offset_set_and_a_step_back_by_as_much_are_two() -> None:
    """TAI ends where it was, as after a leap second; but there were calls."""
    join = Join(reading(0), STILL)
    join.feed(record(ASK, 100, before=0, modes=0x80, constant=38))
    join.feed(record(ASK, 200, before=SECOND, modes=0x2100, asked_s=-1, asked_part=0))
    join.feed(record(ASK, 201, before=SECOND, modes=0x2100, asked_s=-1, asked_part=0))
    rows = seen(join, reading(SECOND, -SECOND, tai=0), STILL._replace(tai_s=38))
    assert [r.kind for r in rows] == ["tai", "step"]


def test_a_leap_second_while_a_daemon_corrects_the_frequency() -> None:
    join = Join(reading(0), STILL)
    join.feed(record(ASK, SECOND, before=0, modes=2, freq=65536))
    rows = seen(join, reading(SECOND + SETTLE_NS, -SECOND, tai=0), STILL._replace(freq_scaled=65536, tai_s=38))
    assert sorted((r.kind, r.size_ns) for r in rows) == [("frequency", 0), ("leap", -SECOND)]


def test_a_suspend_is_no_step_although_realtime_moves_against_monotonic() -> None:
    join = Join(reading(0), STILL)
    (row,) = seen(join, reading(90 * SECOND, slept=60 * SECOND))
    assert (row.kind, row.size_ns, row.real_mono_before_ns, row.real_mono_after_ns) == (
        "suspend",
        60 * SECOND,
        REAL,
        REAL + 60 * SECOND,
    )
    rows = seen(join, reading(99 * SECOND, 7_000, slept=60 * SECOND))
    assert [(r.kind, r.size_ns, r.real_mono_before_ns) for r in rows] == [("step", 7_000, REAL + 60 * SECOND)]


def test_a_step_during_a_suspend_is_distinguished_from_it() -> None:
    """As the clock chip's idea of the time is taken over at waking up."""
    rows = seen(Join(reading(0), STILL), reading(90 * SECOND, -3_000_000, slept=60 * SECOND))
    assert [(r.kind, r.size_ns) for r in rows] == [("suspend", 60 * SECOND), ("step", -3_000_000)]


def test_a_synchronisation_flag_is_one_row_each_way() -> None:
    join = Join(reading(0), STILL)
    lost = STILL._replace(status=STA_UNSYNC, maxerror_us=16_000_000)
    assert [(r.kind, r.modes) for r in seen(join, reading(SECOND), lost)] == [("unsync", "+UNSYNC")]
    assert seen(join, reading(9 * SECOND), lost._replace(maxerror_us=15_000_000)) == []
    assert [(r.kind, r.modes) for r in seen(join, reading(20 * SECOND), STILL)] == [("unsync", "-UNSYNC")]


def test_a_step_that_clears_synchronisation_is_one_row() -> None:
    join = Join(reading(0), STILL)
    fields = {"modes": 0x2100, "asked_s": 0, "asked_part": 5_000}
    for t in (100, 200):
        join.feed(record(WOKE, t, after=5_000 * t // 100, **fields))
    rows = seen(join, reading(SECOND, 10_000), STILL._replace(status=STA_UNSYNC))
    assert [r.kind for r in rows] == ["step", "step"]


@pytest.mark.parametrize(("first", "second"), [("adjust_ns", "adjust_ns"), ("offset_ns", "offset_ns")])
def test_a_slew_that_nobody_was_seen_to_ask_for(first: str, second: str) -> None:
    join = Join(reading(0), STILL)
    assert [(r.kind, r.requested_ns) for r in seen(join, reading(SECOND), STILL._replace(**{first: 400_000}))] == [
        ("slew", 400_000)
    ]
    for left in (300_000, 100_000, 0):  # it goes by itself
        assert seen(join, reading(2 * SECOND), STILL._replace(**{first: left})) == []
    assert [r.kind for r in seen(join, reading(9 * SECOND), STILL._replace(**{second: -5_000}))] == ["slew"]


@pytest.mark.parametrize(
    ("tick", "kind"), [(10_000, "frequency"), (10_005, "frequency"), (10_006, "slew"), (9_167, "slew")]
)
def test_more_than_a_frequency_correction_may_be_is_a_slew(tick: int, kind: str) -> None:
    join = Join(reading(0), STILL)
    (row,) = seen(join, reading(SECOND), STILL._replace(tick_us=tick, freq_scaled=-1))
    assert (row.kind, row.freq_after_ppb) == (kind, (tick - 10_000) * 100_000)
    assert [r.kind for r in seen(join, reading(9 * SECOND), STILL)] == [kind]  # and back


def test_tai_by_itself() -> None:
    (row,) = seen(Join(reading(0), STILL), reading(SECOND, 0, tai=SECOND), STILL._replace(tai_s=38))
    assert (row.kind, row.size_ns, row.requested_ns) == ("tai", 0, 38 * SECOND)


def test_names_of_flags() -> None:
    assert flag_names(STA_UNSYNC, STA_INS) == "+INS -UNSYNC"
    assert flag_names(STA_INS, STA_INS | 0x2000) == ""
