"""Joining records to rows: pure, from made-up records in the kernel's wire format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.clock.calls import ASK, LIBC, WOKE, group
from agent.clock.change import Change
from agent.clock.join import SETTLE_NS, Join
from agent.clock.sample import Reading, drift_ppb
from agent.clock.timex import Timex, freq_ppb, mode_names
from agent.kernel.loaded_families import BPF_DIR
from agent.kernel.wire_structs import Wire

REAL = 1_800_000_000_000_000_000
TAI = 37_000_000_000
STILL = Timex(0, 10_000, 0, 500, 0, 37, 0)
EVENT = Wire.read(*(Path(BPF_DIR) / n for n in ("events.h", "tickscope.h", "clock_call.h"))).dtype("clock_event")


def record(source: int, t: int, **fields: object) -> np.ndarray:
    """One record of thread 7 at t; ``before`` and ``after`` are REALTIME - MONOTONIC above REAL."""
    out = np.zeros(1, EVENT)
    for name in ("tai_boot_before_ns", "tai_boot_after_ns", "asked_s", "asked_part", "freq_after", "tick_after"):
        out[name] = -1
    out["status_after"] = 0xFFFFFFFF
    out["t_ns"] = out["start_ns"] = t
    out["source"], out["nr"] = source, 305
    out["proc"]["tid"] = fields.pop("tid", 7)
    for side in ("before", "after"):
        if side in fields:
            out[f"tai_boot_{side}_ns"] = REAL + TAI + int(fields.pop(side))  # type: ignore[call-overload]
            out[f"{side}_err_ns"] = 20
    for name, value in fields.items():
        out[name] = value
    return out


def reading(t: int, offset: int = 0) -> Reading:
    return Reading(t, REAL + offset, 0, 0, REAL + offset + TAI, 20)


def joined(records: list[np.ndarray], end: Reading, state: Timex = STILL) -> list[Change]:
    """All rows of these records, the clocks being as ``end`` says afterwards."""
    join = Join(reading(0), STILL)
    for one in records:
        join.feed(one)
    out = []
    for _ in range(3):
        out += join.settle(end, state)
        end = end._replace(t_ns=end.t_ns + SETTLE_NS)
    assert not join.pending
    return out


LATER = 10_000_000_000


@pytest.mark.parametrize("views", [(ASK, WOKE, LIBC), (ASK, WOKE), (ASK, LIBC), (WOKE, LIBC), (ASK,), (WOKE,), (LIBC,)])
def test_a_step_is_one_row_whichever_views_there_are(views: tuple[int, ...]) -> None:
    fields = {"modes": 0x2100, "asked_s": 0, "asked_part": 5_000}
    seen = {
        ASK: [record(ASK, 1_000_010, before=0, **fields), record(ASK, 1_000_012, before=0, **fields)],
        WOKE: [record(WOKE, 1_000_020, after=5_000, **fields)],
        LIBC: [record(LIBC, 1_000_030, start_ns=1_000_000, before=0, after=5_000, **fields)],
    }
    rows = joined([r for view in views for r in seen[view]], reading(LATER, 5_000))
    assert [(r.kind, r.size_ns, r.requested_ns) for r in rows] == [("step", 5_000, 5_000)]
    assert rows[0].record is not None
    assert rows[0].err_ns == 40
    assert 1_000_000 <= rows[0].t_ns <= 1_000_030


@given(st.lists(st.integers(-500_000, 500_000).filter(lambda s: abs(s) >= 1000), min_size=1, max_size=30), st.data())
def test_steps_whose_wakes_were_missed_are_still_distinguished(sizes: list[int], data: st.DataObject) -> None:
    """Each is asked for; only some are seen to wake the watch, and some calls are interrupted by a wake before they
    step. Sizes come from what the next call finds.
    """
    at, records = 0, []
    for i, size in enumerate(sizes):
        fields = {
            "modes": 0x2100,
            "asked_s": size // 10**9,
            "asked_part": size % 10**9,
            "tid": data.draw(st.integers(1, 3)),
        }
        records += [record(ASK, 1000 * i + j, before=at, **fields) for j in (10, 13)]
        if data.draw(st.booleans()):
            records.append(record(WOKE, 1000 * i + data.draw(st.sampled_from((11, 14))), after=at, **fields))
        at += size
        if data.draw(st.booleans()):
            records.append(record(WOKE, 1000 * i + 20, after=at, **fields))
    rows = joined(records, reading(LATER, at))
    assert [r.size_ns for r in rows] == sizes
    assert [r.requested_ns for r in rows] == sizes


def test_a_step_by_nothing_moved_nothing() -> None:
    call = record(
        LIBC,
        30,
        start_ns=10,
        modes=0x2100,
        asked_s=0,
        asked_part=0,
        before=0,
        after=35,
        freq_after=0,
        tick_after=10_000,
        status_after=0x40,
    )
    assert [
        (r.kind, r.size_ns, r.requested_ns, r.ret)
        for r in joined([call], reading(LATER, 40), STILL._replace(status=0x40))
    ] == [("step", 0, 0, 0)]


def test_without_tai_sizes_come_from_what_was_asked() -> None:
    records = [record(WOKE, 1_000 * i, modes=0x2100, asked_s=0, asked_part=2_000) for i in range(1, 6)]
    assert [r.size_ns for r in joined(records, reading(LATER, 10_000))] == [2_000] * 5


@pytest.mark.parametrize("views", [(ASK,), (ASK, WOKE)])
def test_without_tai_steps_that_are_undone_while_rows_come_are_each_a_row(views: tuple[int, ...]) -> None:
    """What a call that waits has been seen to do stays together, whenever the calls before it are reported."""
    join, rows, at, apart, size = Join(reading(0), STILL), [], 0, 22_000_000, 2_000_000
    for now in range(1_000_000, 24 * apart + 4 * SETTLE_NS, 1_000_000):
        nth, into = divmod(now, apart)
        if into == 0 and nth <= 23:
            by = size if nth % 2 else -size
            fields = {"modes": 0x2100, "asked_s": by // 10**9, "asked_part": by % 10**9}
            for i, view in enumerate(v for v in views for _ in range(2 if v == ASK else 1)):
                join.feed(record(view, now - 900_000 + i * 50_000, **fields))
            at += by
        rows += join.settle(reading(now, at), STILL)
    assert [(r.kind, r.size_ns, r.ret) for r in rows] == [("step", size if i % 2 == 0 else -size, 0) for i in range(23)]


def test_without_tai_a_step_is_not_also_that_of_the_calls_before_it() -> None:
    rates = [record(ASK, 1_000 * i, modes=0x4002, freq=0, tick=10_000) for i in (1, 2)]
    refused = record(ASK, 3_000, modes=0x2100, asked_s=0, asked_part=7, tid=8, ret=-1)
    step = [
        record(source, t, modes=0x2100, asked_s=0, asked_part=2_000)
        for source, t in ((ASK, 4_000), (ASK, 4_001), (WOKE, 4_002))
    ]
    after = record(ASK, 5_000, modes=0x4002, freq=0, tick=10_000)
    rows = joined([*rates, refused, *step, after], reading(LATER, 2_000))
    assert [(r.kind, r.size_ns) for r in rows] == [
        ("frequency", 0),
        ("frequency", 0),
        ("step", 0),
        ("step", 2_000),
        ("frequency", 0),
    ]


def test_a_step_without_a_call_has_no_actor_and_the_watch_dates_it() -> None:
    join = Join(reading(0), STILL)
    join.hint(LATER - 7, REAL - 9_000)
    assert join.settle(reading(LATER, -9_000), STILL) == []
    rows = join.settle(reading(LATER + SETTLE_NS, -9_000), STILL)
    assert [(r.kind, r.size_ns, r.record, r.via, r.t_ns) for r in rows] == [("step", -9_000, None, "none", LATER - 7)]


def test_a_step_before_a_call_that_explains_only_its_own() -> None:
    rows = joined(
        [record(ASK, 1000, before=4_000, modes=2, freq=65536)], reading(LATER, 4_000), STILL._replace(freq_scaled=65536)
    )
    assert [(r.kind, r.size_ns, r.record is None) for r in rows] == [("step", 4_000, True), ("frequency", 0, False)]
    assert (rows[1].freq_before_ppb, rows[1].freq_after_ppb) == (0, 1000)


def test_two_equal_steps_in_one_breath_are_two() -> None:
    fields = {"modes": 0x2100, "asked_s": 0, "asked_part": 5_000}
    records = [record(ASK, t, before=b, **fields) for t, b in ((10, 0), (11, 0), (20, 5_000), (21, 5_000))]
    assert [r.size_ns for r in joined(records, reading(LATER, 10_000))] == [5_000, 5_000]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"modes": 0x2100, "asked_s": 0, "asked_part": -5}, "step"),
        ({"modes": 0x100, "asked_s": 0, "asked_part": 1_000_000}, "step"),
        ({"modes": 0x100, "asked_s": 3600, "asked_part": 0}, "step"),
        ({"nr": 227, "asked_s": 5, "asked_part": 0}, "step"),
        ({"modes": 0x4000, "tick": 5}, "frequency"),
        ({"modes": 2, "freq": 1 << 60, "tick": 0}, "frequency"),
    ],
)
def test_what_the_kernel_does_not_do_for_the_privileged_failed_though_no_return_was_seen(
    fields: dict[str, int], kind: str
) -> None:
    requested_times = [
        record(ASK, t, before=0, **fields) for t in ((10, 12) if fields.get("modes", 0) & 0x100 else (10,))
    ]
    rows = joined(requested_times, reading(LATER, 15))
    assert [(r.kind, r.ret, r.size_ns, r.freq_after_ppb) for r in rows] == [(kind, -22, 0, 0)]


@pytest.mark.parametrize(
    "fields",
    [
        {"nr": 227, "asked_s": 5, "asked_part": 7},
        {"nr": 227, "asked_s": 8_277_292_036, "asked_part": 0},
        {"modes": 0x2100, "asked_s": -REAL // 10**9 - 1, "asked_part": 0},
        {"modes": 0x2100, "asked_s": 8 * 10**9, "asked_part": 0},
    ],
)
@pytest.mark.parametrize("wakes", [False, True])
def test_a_time_that_nobody_can_set_was_refused_also_where_the_kernel_cannot_read_tai(
    fields: dict[str, int], wakes: bool
) -> None:
    """And where another call follows, so that no reading tells."""
    t = 2 * LATER
    first = [record(ASK, t + i, **fields) for i in range(2 if "modes" in fields else 1)] + [
        record(WOKE, t + 5, **fields)
    ] * wakes
    rows = joined([*first, record(ASK, t + 20_000, nr=227, asked_s=5, asked_part=7, tid=8)], reading(3 * LATER))
    assert [(r.kind, r.ret, r.size_ns, r.real_mono_after_ns) for r in rows] == [("step", -22, 0, REAL)] * 2


def test_what_was_asked_is_unknown_where_it_could_not_be_read() -> None:
    rows = joined([record(ASK, 10, before=0, nr=227), record(WOKE, 20, after=5_000, nr=227)], reading(LATER, 5_000))
    assert [(r.kind, r.size_ns, r.requested_ns, r.ret) for r in rows] == [("step", 5_000, None, 0)]


def test_a_clock_set_to_what_it_is_was_set() -> None:
    rows = joined([record(ASK, 10, before=0, nr=227, asked_s=REAL // 10**9, asked_part=5_000)], reading(LATER, 15))
    assert [(r.kind, r.ret) for r in rows] == [("step", 0)]


def test_a_refused_call_is_a_row_that_moved_nothing() -> None:
    refused = record(ASK, 10, before=0, nr=227, asked_s=1, asked_part=2, ret=-1)
    assert [(r.kind, r.via, r.ret, r.size_ns, r.requested_ns) for r in joined([refused], reading(LATER))] == [
        ("step", "clock_settime", -1, 0, 1_000_000_002)
    ]


def test_a_return_that_comes_after_its_row_adds_none() -> None:
    join = Join(reading(0), STILL)
    join.feed(record(ASK, 10, before=0, modes=2, freq=65536))
    fast = STILL._replace(freq_scaled=65536)
    assert len(join.settle(reading(LATER), fast)) == 1
    join.feed(
        record(LIBC, LATER, start_ns=5, before=0, after=0, modes=2, freq=65536, freq_after=65536, tick_after=10_000)
    )
    assert join.settle(reading(2 * LATER), fast) == []
    assert join.late == 1


@pytest.mark.parametrize("moved", [0, 5_000])
def test_a_thread_that_loses_the_processor_inside_a_step_makes_one_row(moved: int) -> None:
    """For longer than records take to settle: between the check and the step, or between the step and the wake of the
    watch.
    """
    fields = {"modes": 0x2100, "asked_s": 0, "asked_part": 5_000}
    join, reported = Join(reading(0), STILL), []
    for t in (10, 11):
        join.feed(record(ASK, t, **fields))
    reported += join.settle(reading(2 * SETTLE_NS, moved), STILL)
    join.feed(record(WOKE, 2 * SETTLE_NS + 1, **fields))
    for t in (3, 4, 5):
        reported += join.settle(reading(t * SETTLE_NS, 5_000), STILL)
    assert [(r.kind, r.size_ns) for r in reported] == [("step", 5_000)]
    assert not join.pending


def test_a_step_that_the_kernel_refuses_after_its_check_is_reported_in_a_second() -> None:
    join = Join(reading(0), STILL)
    join.feed(record(ASK, 10, before=0, modes=0x2100, asked_s=2, asked_part=0))
    assert join.settle(reading(LATER // 20), STILL) == []
    assert [(r.kind, r.size_ns, r.ret) for r in join.settle(reading(LATER // 5), STILL)] == [("step", 0, -22)]


def test_status_written_as_it_was_is_no_row_but_a_flag_is() -> None:
    assert joined([record(ASK, 10, before=0, modes=0x10, status=0)], reading(LATER)) == []
    lost = STILL._replace(status=0x40)
    assert [r.kind for r in joined([record(ASK, 10, before=0, modes=0x10, status=0x40)], reading(LATER), lost)] == [
        "unsync"
    ]


def test_a_tai_change_is_no_step() -> None:
    call = record(
        LIBC,
        30,
        start_ns=10,
        modes=0x80,
        constant=38,
        before=0,
        after=1_000_000_000,
        freq_after=0,
        tick_after=10_000,
        status_after=0,
    )
    end = Reading(LATER, REAL, 0, 0, REAL + 38_000_000_000, 20)
    assert [(r.kind, r.size_ns, r.requested_ns) for r in joined([call], end, STILL._replace(tai_s=38))] == [
        ("tai", 0, 38_000_000_000)
    ]


def test_nothing_moved_is_nothing() -> None:
    join = Join(reading(0), STILL)
    for t in range(1, 100):
        assert join.settle(reading(t * SETTLE_NS, (-1) ** t * 100), STILL) == []


def test_records_of_threads_that_overlap() -> None:
    fields = {"modes": 2, "freq": 0}
    mixed = np.concatenate(
        [record(ASK, t, tid=tid, before=0, **fields) for t, tid in ((10, 1), (11, 2))]
        + [record(LIBC, t, start_ns=9, tid=tid, before=0, after=0, **fields) for t, tid in ((20, 2), (21, 1))]
    )
    assert [(int(c.record["proc"]["tid"]), c.libc, c.requested_times) for c in group(mixed)] == [
        (1, True, 1),
        (2, True, 1),
    ]


def test_tick_and_frequency_make_one_rate() -> None:
    assert freq_ppb(65536, 10_000) == 1_000
    assert freq_ppb(-65536 * 100, 10_833) == 83_300_000 - 100_000
    assert mode_names(0x4002) == "FREQUENCY|TICK"


def test_drift_is_the_slope_and_ignores_bad_readings() -> None:
    t = np.arange(60) * 1_000_000_000
    raw = t * 25 // 1_000_000_000 * 1000
    raw[7] += 5_000_000
    assert drift_ppb(t, raw) == pytest.approx(25_000, abs=1)
    assert np.isnan(drift_ppb(t[:1], raw[:1]))
