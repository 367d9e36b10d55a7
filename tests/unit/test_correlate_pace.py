"""Limiters that fall silent: reported where it is known why; and how rarely a healthy one is taken for silent."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from agent.correlate.catalogue import symptoms
from agent.correlate.guard import Guard
from agent.correlate.inbox import compact
from agent.correlate.pauses import PauseWatch
from agent.correlate.rows import OfSecond
from agent.correlate.thresholds import CorrelatorConfig
from tests.unit.correlate_scenarios import APP_PID, START, T0, Host, S, latest, run
from tests.unit.test_correlate_processes import event


def arrivals(host: Host, t: np.ndarray, **columns: object) -> None:
    own = {"pid": APP_PID, "proc_start_ns": START, "limiter_id": b"api"} | columns
    host.add("limiter_decision", at=t, comm=b"python3", library=b"own", cost=1.0, result=0, duration_ns=500_000, **own)


def silences(host: Host, until: int) -> list[tuple[float, float]]:
    """Whenever the watch took it for silent, reported or not."""
    watch, found = PauseWatch(CorrelatorConfig()).judged_by([symptoms()["silence"]], Guard()), []
    rows = np.concatenate([compact("limiter_decision", b.rows) for b in host.made])
    rows = rows[np.argsort(rows["t_ns"], kind="stable")]
    edges = np.searchsorted(rows["t_ns"], T0 + np.arange(until + 1) * S)
    for n, (a, b) in enumerate(pairwise(edges)):
        found += watch.step(T0 // S + n, OfSecond({"limiter_decision": rows[a:b]}))
    return [((e.start_ns - T0) / S, (e.end_ns - e.start_ns) / S) for e in found]


@pytest.mark.parametrize(("per_s", "gap"), [(25, 1.2), (8, 4.0), (100, 1.1)])
def test_a_steady_limiter_that_falls_silent_is_seen(per_s: float, gap: float) -> None:
    host = Host(1)
    t = np.arange(0, 60, 1 / per_s)
    arrivals(host, t[(t < 40.3) | (t > 40.3 + gap)])
    ((start, took),) = silences(host, 60)
    assert start == pytest.approx(40.3, abs=1.5 / per_s)
    assert took == pytest.approx(gap, abs=3 / per_s)


@pytest.mark.parametrize(("pid", "reported"), [(APP_PID, 1), (77, 0)])
def test_a_limiter_that_another_process_begins_with_takes_its_place(pid: int, reported: int) -> None:
    """As one that is named by its address does after a start; one of the same process is just another."""
    host = Host(1)
    arrivals(host, np.arange(0, 40, 1 / 25))
    arrivals(host, np.arange(40.5, 60, 1 / 25), pid=pid, limiter_id=b"rate.Limiter@0xc0")
    assert len(silences(host, 60)) == reported


def test_one_that_works_now_and_then_may_rest_as_long() -> None:
    host = Host(1)
    t = (np.arange(0, 3600, 60)[:, None] + np.arange(5) / 10).ravel()
    arrivals(host, t[(t < 2000) | (t > 2100)])
    assert silences(host, 3600) == []  # two minutes are no more than it may
    host = Host(1)
    arrivals(host, t[(t < 2000) | (t > 2300)])
    assert len(silences(host, 3600)) == 1


@pytest.mark.parametrize("per_s", [0.5, 3, 25, 200])
def test_random_arrivals_are_hardly_ever_taken_for_silence(per_s: float) -> None:
    """Half an hour each; none came in eight hours of each, either."""
    rng = np.random.default_rng(int(per_s * 10))
    host = Host(1)
    t = np.cumsum(rng.exponential(1 / per_s, int(2000 * per_s)))
    arrivals(host, t[t < 1800])
    assert silences(host, 1800) == []


def test_what_fades_out_is_no_silence() -> None:
    rng = np.random.default_rng(4)
    for tau in (3, 10, 40):
        host = Host(1)
        t = np.cumsum(rng.exponential(1 / 50, 200_000))
        t = t[t < 300]
        keep = rng.random(len(t)) < np.exp(-np.clip(t - 60, 0, None) / tau)
        arrivals(host, t[keep])
        assert silences(host, 400) == [], tau


def test_reported_only_where_its_cause_is_known() -> None:
    def stopped(cause: bool) -> list[dict[str, object]]:
        host = Host(1)
        t = np.arange(0, 60, 1 / 25)
        arrivals(host, t[(t < 40.3) | (t > 43.6)])
        if cause:
            event(host, "stopped", 40.31, APP_PID, b"python3", signal=19)
            event(host, "continued", 43.58, APP_PID, b"python3", signal=18)
        return latest(run(host, 60))

    assert stopped(cause=False) == []
    (found,) = stopped(cause=True)
    assert (found["symptom"], found["cause"], found["culprit_pid"]) == ("silence", "process_stopped", APP_PID)
    assert 3.3 * S <= found["evidence"][0]["value"] < 3.4 * S


def test_one_that_is_asked_to_end_is_expected_to_be_silent() -> None:
    host = Host(1)
    arrivals(host, np.arange(0, 40, 1 / 25))
    event(host, "exited", 40, APP_PID, b"python3", signal=15, exit_code=0)
    host.queue(0, 80)
    assert latest(run(host, 80)) == []


def test_the_silence_of_one_that_was_killed_ends_with_the_next() -> None:
    host = Host(1)
    t = np.arange(0, 80, 1 / 25)
    arrivals(host, t[t < 40])
    event(host, "killed", 40, APP_PID, b"python3", signal=9)
    more = t[t > 45]
    host.add(
        "limiter_decision",
        at=more,
        pid=77,
        proc_start_ns=T0 + 44 * S,
        comm=b"python3",
        limiter_id=b"api",
        library=b"own",
        cost=1.0,
        result=0,
        duration_ns=500_000,
    )
    (found,) = latest(run(host, 80))
    assert (found["symptom"], found["cause"], found["state"]) == ("silence", "process_killed", "closed")
    assert 44.9 * S < int(str(found["end_ns"])) - T0 < 45.2 * S


def test_rows_of_nobody() -> None:
    """Reports without a process."""
    host = Host(1)
    host.decisions(0, 40, pid=-(2**63), proc_start_ns=-(2**63))
    assert latest(run(host, 60)) == []
