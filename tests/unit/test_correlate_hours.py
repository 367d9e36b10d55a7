"""Limiters and services that are silent at an hour at which they never are; and those that are silent at this hour each
day, of which nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from agent.batch import Batch, make
from agent.correlate.catalogue import symptoms
from agent.correlate.correlator import Correlator
from agent.correlate.episode import Episode
from agent.correlate.guard import Guard
from agent.correlate.hours import HourWatch
from agent.correlate.inbox import compact
from agent.correlate.rows import OfSecond
from agent.correlate.thresholds import CorrelatorConfig
from tests.unit.correlate_scenarios import APP_PID, START, S, latest

HOUR, DAY, STEP = 3600, 86_400, 10
SINCE = 100 * DAY
Works = Callable[[int], bool]
#: What the host tells all the time.
BESIDE = OfSecond({"tcp_rtt": make("tcp_rtt", 1, t_ns=SINCE * S).rows})


def decision(second: int, limiter: bytes = b"api", comm: bytes = b"shop", start_ns: int = START) -> np.ndarray:
    return make(
        "limiter_decision",
        1,
        t_ns=second * S,
        pid=APP_PID,
        proc_start_ns=start_ns,
        comm=comm,
        limiter_id=limiter,
        library=b"own",
        result=0,
        duration_ns=500_000,
        cost=1.0,
    ).rows


def rows_of(rows: np.ndarray, table: str = "limiter_decision") -> OfSecond:
    return OfSecond({table: compact(table, rows)})


def answer(second: int) -> np.ndarray:
    return make(
        "service_latency",
        1,
        t_ns=second * S,
        pid=APP_PID,
        proc_start_ns=START,
        comm=b"shop",
        sport=8080,
        netns=7,
        requests=3,
        waiting=0,
        interval_ns=S,
    ).rows


def silences(
    works: Works,
    until: int,
    table: str = "limiter_decision",
    more: Iterable[tuple[int, str, np.ndarray]] = (),
    seed: int = 0,
) -> list[Episode]:
    """What the watch opens in so many seconds; works: whether there is something to do then, two requests a minute at
    random.
    """
    watch, found = HourWatch(CorrelatorConfig()).judged_by([symptoms()["quiet_hour"]], Guard()), []
    row = compact(table, (decision if table == "limiter_decision" else answer)(SINCE))
    asked = np.random.default_rng(seed).random(until // STEP) < STEP / 30
    others = {second: {of: compact(of, rows)} for second, of, rows in more}
    for n, there in enumerate(asked):
        rows = {table: row} if there and works(n * STEP) else BESIDE
        found += watch.step(SINCE + n * STEP, OfSecond(rows | others.get(n * STEP, {})))
    return found


def hour(t: int) -> int:
    return t % DAY // HOUR


def office(t: int) -> bool:
    return 8 <= hour(t) < 18 and t // DAY % 7 < 5


@pytest.mark.parametrize("table", ["limiter_decision", "service_latency"])
def test_silence_at_an_hour_that_is_always_busy_is_reported(table: str) -> None:
    cut = 3 * DAY + 11 * HOUR + 700
    (one,) = silences(lambda t: office(t) and t < cut, cut + 8 * HOUR, table)
    assert cut - 120 < one.start_ns // S - SINCE <= cut
    assert 60 < one.value / S < 3 * 400
    assert one.facts["n_base"] == pytest.approx(120 if table == "limiter_decision" else 360, rel=0.3)


def test_silence_at_an_hour_that_is_usually_silent_is_not_reported() -> None:
    assert silences(office, 15 * DAY) == []  # nights, weekends, and mornings after them


def test_one_that_does_not_begin_at_its_hour_is_reported_once_its_week_is_known() -> None:
    def begins(t: int) -> bool:
        return office(t) and t < 8 * DAY

    (one,) = silences(begins, 8 * DAY + 12 * HOUR)  # a Tuesday: the hour in which it was seen first is not known whole
    assert hour(one.start_ns // S) == 9  # the hour before and after must be busy, too


def test_two_days_are_too_few() -> None:
    assert silences(lambda t: t < 3 * DAY + 2 * HOUR, 3 * DAY + 5 * HOUR)
    assert silences(lambda t: t < 2 * DAY + 2 * HOUR, 2 * DAY + 5 * HOUR) == []


def test_who_goes_home_an_hour_earlier_is_not_silent() -> None:
    def works(t: int) -> bool:
        return 8 <= hour(t) < (17 if t > 8 * DAY else 18)

    assert silences(works, 12 * DAY) == []


def test_of_one_whose_process_ended_others_report() -> None:
    cut = 3 * DAY + 11 * HOUR
    gone = make("process_event", 1, t_ns=(SINCE + cut) * S, pid=APP_PID, proc_start_ns=START, kind=3).rows
    assert silences(lambda t: t < cut, cut + 8 * HOUR, more=[(cut, "process_event", gone)]) == []


@pytest.mark.parametrize("followed", [False, True])
def test_time_in_which_nobody_looked_is_no_silence(followed: bool) -> None:
    """followed: a finding is open meanwhile, and so each second is looked at once the host is awake."""
    watch = HourWatch(CorrelatorConfig()).judged_by([symptoms()["quiet_hour"]], Guard())
    row = rows_of(decision(SINCE))
    reported = []
    for n in range(0, 4 * DAY, STEP):
        if not 3 * DAY + 11 * HOUR < n < 3 * DAY + 11 * HOUR + 1200:  # suspended
            reported += watch.step(SINCE + n, row if n % 30 == 0 else BESIDE)
        elif followed:
            reported += [one for second in range(n, n + STEP) for one in watch.step(SINCE + second, OfSecond({}))]
    assert reported == []


@pytest.mark.parametrize("seed", range(3))
def test_random_requests_are_no_silence(seed: int) -> None:
    assert silences(lambda _: True, 8 * DAY, seed=seed) == []


def test_it_is_a_finding_without_a_cause_and_alike_in_each_replay() -> None:
    cut = 3 * DAY + 11 * HOUR
    row = rows_of(decision(SINCE))

    def findings() -> list[Batch]:
        correlator, out = Correlator(), []
        (watch,) = (one for one in correlator._watches if isinstance(one, HourWatch))
        for n in range(0, cut, STEP):
            watch.step(SINCE + n, row if n % 30 == 0 else BESIDE)
        for n in range(cut, cut + 300, STEP):  # the host tells something all the time
            correlator.feed(Batch("limiter_decision", decision(SINCE + n, b"other", b"web")))
            out += correlator.advance((SINCE + n + STEP) * S - 1)
        return out

    first, again = findings(), findings()
    assert [b.rows.tobytes() for b in first] == [b.rows.tobytes() for b in again]
    (found,) = latest(first)
    assert (found["symptom"], found["cause"], found["state"]) == ("quiet_hour", "unknown", "open")
    assert str(found["sentence"]).startswith("Limiter api (shop pid 4242) made no decision for ")
    assert "(usually 120 decisions in this hour of the day, with pauses of at most 30 s)" in str(found["sentence"])


@pytest.mark.parametrize(("start_ns", "reported"), [(START + DAY * S, 0), (START, 1)])
def test_a_limiter_that_has_another_name_after_each_start_is_replaced(start_ns: int, reported: int) -> None:
    """But not by one that the same process begins with only then."""
    cut = 3 * DAY + 11 * HOUR
    new = decision(SINCE + cut, b"rate.Limiter@0xc0", start_ns=start_ns)
    assert len(silences(lambda t: t < cut, cut + HOUR, more=[(cut + 20, "limiter_decision", new)])) == reported


def test_any_number_of_strangers_takes_nobodys_place() -> None:
    """Each night so many limiters come and go as there is room for."""
    cut = 3 * DAY + 11 * HOUR
    strangers = [
        (
            day * DAY + n * STEP,
            "limiter_decision",
            decision(SINCE + day * DAY + n * STEP, b"%d" % (n + day * 600), b"other"),
        )
        for day in range(4)
        for n in range(600)
    ]
    (one,) = silences(lambda t: office(t) and t < cut, 4 * DAY, more=strangers)
    assert one.key == ("api", "shop")


@pytest.mark.parametrize(
    ("days", "after_s", "kept"), [(1, DAY - HOUR, True), (1, DAY + HOUR, False), (3, 3 * DAY, True)]
)
def test_who_was_busy_once_keeps_its_place_for_a_day(days: int, after_s: int, kept: bool) -> None:
    """Ports of containers come and go, with a minute's work each; on three days, an hour may be told of it."""
    watch = HourWatch(CorrelatorConfig()).judged_by([symptoms()["quiet_hour"]], Guard())
    room = 2 * CorrelatorConfig().subjects
    busy = np.concatenate([answer(SINCE)] * room)
    busy["sport"], busy["requests"] = np.arange(room) + 10_000, 60
    for second in (SINCE + day * DAY + HOUR + at for day in range(days) for at in (-10, 0)):
        watch.step(second, rows_of(busy, "service_latency"))
    watch.step(second + after_s, rows_of(answer(SINCE), "service_latency"))
    assert (watch.series.slot((7, 8080), second + after_s) < 0) == kept


def test_memory_is_bounded() -> None:
    watch = HourWatch(CorrelatorConfig(subjects=4)).judged_by([symptoms()["quiet_hour"]], Guard())
    for n in range(100):
        watch.step(SINCE + n, rows_of(decision(SINCE + n, b"%d" % n)))
    assert len(watch._who) <= 8


def one_after_the_other(ends: int, starts: int, until: int, works: Works = lambda _: True) -> list[Episode]:
    """An agent from the beginning to ``ends``, and another one from ``starts`` on, which is told what that one knew."""
    reported: list[Episode] = []
    kept, row = b"", rows_of(decision(SINCE))
    for begin, end in ((0, ends), (starts, until)):
        watch = HourWatch(CorrelatorConfig()).judged_by([symptoms()["quiet_hour"]], Guard())
        watch.recall(kept)
        for n in range(begin, end, STEP):
            reported += watch.step(SINCE + n, row if n % 30 == 0 and works(n) else BESIDE)
        kept = watch.remember()
    return reported


NINE = 3 * DAY + 9 * HOUR


def test_an_agent_that_starts_anew_knows_the_hours_of_the_one_before() -> None:
    """Its first hour is cut short, and told by the days before all the same."""
    cut = NINE + 2 * HOUR
    (one,) = one_after_the_other(NINE, NINE + 100, cut + HOUR, lambda t: t < cut)
    assert cut - 60 < one.start_ns // S - SINCE <= cut
    assert one_after_the_other(NINE, NINE + 100, NINE + HOUR, lambda t: t < NINE) == []  # it has not been seen since


def test_hours_in_which_no_agent_ran_are_not_known() -> None:
    """Of nine days ago, in the same places, are those that were known."""
    cut = NINE + 8 * DAY + 2 * HOUR
    assert one_after_the_other(NINE, NINE + 8 * DAY, cut + HOUR, lambda t: t < cut) == []


def test_what_was_not_seen_yet_is_asked_to_the_next_one_too() -> None:
    first, second, third = (HourWatch(CorrelatorConfig(subjects=4)) for _ in range(3))
    for n in range(0, 3 * HOUR, STEP):
        first.step(SINCE + n, rows_of(decision(SINCE + n, b"\xff\x1b")))
    second.recall(first.remember())
    second.step(SINCE + 4 * HOUR, rows_of(decision(SINCE, b"other")))
    third.recall(second.remember())
    ((key, hours),) = third._before[1].items()
    assert key == ("\\xff\x1b", "shop") and np.count_nonzero(hours.pause) == 2


@pytest.mark.parametrize("cut", [0, 1, 7, 40, -1])
def test_what_was_kept_and_is_damaged_is_nothing(cut: int) -> None:
    watch = HourWatch(CorrelatorConfig(subjects=4))
    for n in range(0, 3 * HOUR, STEP):
        watch.step(SINCE + n, rows_of(decision(SINCE + n)))
    kept = watch.remember()
    assert len(kept) < 2000
    for damaged in (kept[:cut], kept[:cut] + b"\0" + kept[cut:][1:]):
        watch.recall(damaged)
        assert watch._before[1] == {} or damaged == kept
