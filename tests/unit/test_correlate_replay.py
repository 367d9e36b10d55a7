"""What a finding of a step says that a limiter let through: where its algorithm and what it held are known, to the
request.
"""

from __future__ import annotations

import numpy as np
import pytest

from agent.limiters.models.catalogue import MODELS
from agent.limiters.models.model import Arrivals, Limit
from agent.limiters.replay.jump import Decisions, Jump
from agent.limiters.replay.outcome import compared, windows
from agent.tables import TABLES
from exporters.aggregate import MetricStore
from tests.unit.correlate_scenarios import APP_PID, START, T0, Host, S, latest, run

BASE = 1_790_000_000 * S
RATE = Limit(per_s=20.0, burst=30.0)


def bucket(host: Host, seconds: float, step_ns: int, **more: object) -> tuple[int, int]:
    """Decisions of a token bucket on a clock that is stepped at T0 + 30 s: (admitted, what true time would have
    admitted) from then on.
    """
    rng = np.random.default_rng(3)
    t = T0 + np.cumsum(rng.exponential(S / 40, int(seconds * 40))).astype(np.int64)
    after = t >= T0 + 30 * S
    wall = t + BASE + step_ns * after
    decide = MODELS["token bucket"].decide
    program, true = (decide(Arrivals.of(clock), RATE) for clock in (wall, t + BASE))
    names = TABLES["limiter_decision"].by_name["result"]
    columns: dict[str, object] = {
        "t_ns": t,
        "pid": APP_PID,
        "proc_start_ns": START,
        "comm": b"shop",
        "limiter_id": b"rate.Limiter@0xc0",
        "library": b"golang.org/x/time/rate",
        "library_version": b"v0.5.0",
        "cost": 1.0,
        "limit_per_s": 20.0,
        "burst": 30.0,
        "program_wall_ns": wall,
        "duration_ns": 0,
        "sample_rate": 1.0,
        "result": np.where(program, names.code("allowed"), names.code("refused")),
        "step_immune": 0,
        "unlimited": 0,
        "remaining": np.append(29.0, np.full(len(t) - 1, np.nan)),
    }
    host.add("limiter_decision", len(t), **(columns | more))
    host.step(30, step_ns)
    return int(program[after].sum()), int(true[after].sum())


@pytest.mark.parametrize(
    ("step_ns", "words"), [(2 * S, "admitted {} requests too many"), (-2 * S, "wrongly refused {} requests")]
)
def test_the_sentence_reports_what_the_bucket_let_through(step_ns: int, words: str) -> None:
    host = Host()
    admitted, true = bucket(host, 33.5, step_ns)
    (found,) = latest(run(host, 40))
    (entry,) = (e for e in found["evidence"] if "limiter_id" in e)  # type: ignore[attr-defined]
    assert entry["excess"] == admitted - true != 0
    assert words.format(abs(admitted - true)) in str(found["sentence"])


@pytest.mark.parametrize("step_ns", [2 * S, -2 * S])
def test_rows_and_metrics_report_it_too(step_ns: int) -> None:
    """Once, as ``limiters replay`` counts it until then; the other direction stays at 0."""
    host, store = Host(), MetricStore()
    admitted, true = bucket(host, 33.5, step_ns)
    declarations = run(host, 40, tables=("limiter_jump",))
    for batch in declarations:
        store.offer(batch)
    (row,) = [row for batch in declarations for row in batch.rows]
    assert (
        row["over_admitted"] - row["wrongly_refused"]
        == row["admitted_program"] - row["admitted_true"]
        == admitted - true
        != 0
    )
    rows = np.concatenate([rows for table, rows in host.made if table == "limiter_decision"])
    (one,) = Decisions(rows, 0).around(Jump(T0 + 30 * S, step_ns, 0, int(row["t_ns"])))
    assert (row["over_admitted"], row["wrongly_refused"]) == (one.over_admitted, one.wrongly_refused)
    variant = "forward" if step_ns > 0 else "backward"
    reported = {
        m.name.removeprefix("tickscope.limiter."): {dict(s.attributes)["direction"]: s.value for s in series}
        for m, series in store.collect()
        if "admitted" in m.name or "wrongly" in m.name
    }
    for name in ("over_admitted", "wrongly_refused"):
        others = {other: 0 for other in ("forward", "backward", "_OTHER") if other != variant}
        assert reported[name] == {variant: int(row[name]), **others}
        assert reported[f"{name}.by_limiter"] == {variant: int(row[name])}


@pytest.mark.parametrize(
    "more", [{"library": b"own"}, {"step_immune": 1}, {"sample_rate": 0.25}, {"limit_per_s": np.nan}]
)
def test_what_is_not_known_is_not_reported(more: dict[str, object]) -> None:
    host = Host()
    bucket(host, 33.5, 2 * S, **more)
    (found,) = latest(run(host, 40))
    assert "too many" not in str(found["sentence"])


def test_an_estimate_is_a_row_with_its_reason_and_no_metric() -> None:
    host, store = Host(), MetricStore()
    bucket(host, 33.5, 2 * S, sample_rate=0.25)
    (batch,) = run(host, 40, tables=("limiter_jump",))
    store.offer(batch)
    (row,) = batch.rows
    assert row["quality"] == TABLES["limiter_jump"].code("quality", "estimated") and b"0.25" in row["reason"]
    assert row["over_admitted"] > 0
    assert not any(s.value for m, series in store.collect() if "over_admitted" in m.name for s in series)


def test_a_level_that_nobody_reported_is_found() -> None:
    """Without ``remaining``: the levels that fit what it decided before the jump all give the same counts, or bound
    them.
    """
    host = Host()
    bucket(host, 60, -2 * S, remaining=np.nan)
    rows = np.concatenate([rows for table, rows in host.made if table == "limiter_decision"])
    (whole,) = Decisions(rows, 0).around(Jump(T0 + 30 * S, -2 * S, 0, T0 + 60 * S))
    (late,) = Decisions(rows[rows["t_ns"] > T0 + 25 * S], T0 + 25 * S).around(Jump(T0 + 30 * S, -2 * S, 0, T0 + 60 * S))
    assert whole.quality == "exact"
    assert late.quality in ("exact", "bounded")
    assert late.wrongly_refused is not None and whole.wrongly_refused is not None
    assert late.wrongly_refused <= whole.wrongly_refused <= (late.wrongly_refused_most or whole.wrongly_refused)


def test_excess_is_what_does_not_even_out() -> None:
    program = np.array([1, 1, 1, 1, 0, 1, 0, 1], bool)
    true = np.array([1, 0, 0, 1, 0, 0, 1, 0], bool)
    found = compared(program, true, np.arange(8) * 10)
    assert (found["over_admitted"], found["wrongly_refused"], found["excess"]) == (4, 1, 3)
    assert (found["excess_from_ns"], found["excess_to_ns"]) == (10, 50)
    assert [windows(S, 5 * S + 1, size) for size in (-S, -S // 2, S, 3 * S, 10)] == [
        (2, 0),
        (2, 0),
        (0, 0),
        (0, 2),
        (0, 0),
    ]
    assert windows(0, 5, -S) == (None, None)
