"""Nothing wrong, no finding; and the same rows in any order give the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.batch import Batch, make
from agent.correlate.correlator import Correlator
from agent.correlate.inbox import compact
from agent.correlate.rows import in_order
from agent.correlate.thresholds import CorrelatorConfig
from tests.unit.correlate_scenarios import ALL, MS, T0, Host, S, latest, run


def sentences(host: Host, until: float) -> list[object]:
    return [f["sentence"] for f in latest(run(host, until))]


@pytest.mark.parametrize("seed", range(6))
def test_five_healthy_minutes_are_silent(seed: int) -> None:
    assert sentences(Host(seed).healthy(0, 300), 300) == []


@pytest.mark.parametrize("seed", range(3))
def test_load_that_starts_changes_and_ends_is_silent(seed: int) -> None:
    host = Host(seed)
    host.queue(0, 20, incoming=1, lag=0, age=np.nan)
    host.queue(20, 120, incoming=500, poll_ms=4)
    host.queue(120, 300, incoming=60)
    host.decisions(20, 60, rate=20)
    host.decisions(60, 120, rate=800, ms=2.5)
    host.decisions(90, 200, limiter=b"late", pid=77, rate=30, ms=5)
    host.decisions(150, 300, rate=5)
    host.accept(20, 300, queue=host.rng.poisson(30, 280))
    host.web(20, 150)
    assert sentences(host, 300) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_limiter_that_always_refuses_some_is_silent(seed: int) -> None:
    host = Host(seed)
    host.decisions(0, 300, rate=40, refused=0.35)
    for start in range(0, 300, 10):  # a fixed window that is spent for a part of each ten seconds
        host.decisions(start, start + 6, limiter=b"window", window_ns=10 * S)
        host.decisions(start + 6, start + 10, limiter=b"window", refused=1.0, window_ns=10 * S)
    assert sentences(host, 300) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_consumer_that_works_in_batches_is_silent(seed: int) -> None:
    host = Host(seed)
    saw = np.arange(300) % 15
    host.queue(0, 300, lag=saw * 100, age=saw * 1.0, out=100)
    assert sentences(host, 300) == []


def test_small_hiccups_are_silent() -> None:
    host = Host(5).healthy(0, 120)
    for at in (31.2, 50.1, 80.7):
        host.stalled_decision(at, 0.12)
    host.queue(60, 61, poll_ms=150)
    assert sentences(host, 120) == []


def test_a_nearly_full_accept_queue_that_drops_nothing_is_silent_while_another_overflows() -> None:
    host = Host()
    host.accept(0, 60, queue=409 - np.arange(60) % 2)
    for rows in (rows for table, rows in host.made if table == "socket_queue"):
        rows["overflows"] = np.arange(len(rows)) * 7
    assert sentences(host, 60) == []


def test_an_imposed_delay_is_no_latency() -> None:
    host = Host()
    host.decisions(0, 30)
    host.decisions(30, 60, result=2, wait_ns=900 * MS, duration_ns=901 * MS)
    assert sentences(host, 60) == []


@cache
def usual(scenario: Callable[[], Host]) -> list[dict[str, object]]:
    return latest(run(scenario(), 75))


@settings(max_examples=4, deadline=None)
@given(scenario=st.sampled_from(ALL), seed=st.integers(0, 2**31))
def test_order_of_arrival_leaves_no_trace(scenario: object, seed: int) -> None:
    host = scenario()  # type: ignore[operator]
    plain, shuffled = (b"".join(b.rows.tobytes() for b in run(host, 60, every_ms=100, shuffle=s)) for s in (None, seed))
    assert plain == shuffled


@pytest.mark.parametrize("every_ms", [100, 300, 700])
def test_findings_do_not_depend_on_how_often_the_watermark_moves(every_ms: int) -> None:
    for scenario in ALL:
        other = latest(run(scenario(), 75, every_ms=every_ms))
        assert [f | {"t_ns": 0} for f in usual(scenario)] == [f | {"t_ns": 0} for f in other]
        assert all(f["state"] == "closed" for f in other)


def test_one_big_advance_equals_many_small_ones() -> None:
    for scenario in ALL:
        correlator = Correlator()
        for batch in scenario().made:
            correlator.feed(batch)
        once = latest(correlator.advance(T0 + 75 * S))
        assert [(f["finding_id"], f["cause"]) for f in once] == [(f["finding_id"], f["cause"]) for f in usual(scenario)]


def test_rows_wait_for_the_watermark_and_late_ones_are_counted() -> None:
    host = Host()
    host.step(5, 7 * MS)
    correlator = Correlator()
    correlator.feed(host.made[0])
    assert correlator.advance(T0 + 4 * S) == []
    assert [b.table for b in correlator.advance(T0 + 5 * S)] == ["verdict", "evidence", "finding"]
    assert correlator.advance(T0 + 5 * S) == []
    correlator.advance(T0 + 8 * S)
    late = Host()
    late.decisions(2, 3, rate=17)
    correlator.feed(late.made[0])
    correlator.advance(T0 + 9 * S)
    assert correlator.losses()["late"] == len(late.made[0].rows) > 0


def test_memory_is_bounded_and_what_is_dropped_is_counted() -> None:
    correlator = Correlator(CorrelatorConfig(pending_rows=100, subjects=8))
    correlator.feed(
        make("limiter_decision", 131, t_ns=T0 + np.arange(131), pid=np.arange(131), limiter_id=b"a", duration_ns=1)
    )
    assert correlator.losses()["pending"] == 31
    correlator.advance(T0 + 2 * S)
    assert correlator.losses()["subjects"] == 2 * 92  # as limiters, and as processes


def test_a_batch_is_not_kept() -> None:
    rows = Host().healthy(0, 1).made[0].rows
    correlator = Correlator()
    correlator.feed(Batch("limiter_decision", rows))
    rows["duration_ns"] = 10**12
    assert correlator.advance(T0 + 3 * S) == []


def test_hours_without_rows_pass_at_once() -> None:
    correlator = Correlator()
    host = Host().healthy(0, 2)
    for batch in host.made:
        correlator.feed(batch)
    assert correlator.advance(T0 + 10**9 * S) == []


def test_rows_of_one_instant_are_taken_in_an_order_of_their_own() -> None:
    rows = compact("queue_lag", make("queue_lag", 7, t_ns=T0, system=b"redis", lag_messages=np.arange(7)).rows)
    want = in_order(rows)
    assert all(
        np.array_equal(in_order(np.random.default_rng(seed).permutation(rows))["lag_messages"], want["lag_messages"])
        for seed in range(5)
    )
