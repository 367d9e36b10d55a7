"""Refusals of which it is seen what they come from are reported sooner."""

from __future__ import annotations

import pytest

from tests.unit.correlate_scenarios import T0, UNTIL, Host, S, read, run


def first(host: Host) -> dict[str, object] | None:
    rows = [read(row) for batch in run(host, UNTIL, tables=("finding",)) for row in batch.rows]
    return min(rows, key=lambda row: int(str(row["t_ns"])), default=None)


@pytest.mark.parametrize(("rate", "limit", "cause"), [(120, 60.0, "load"), (50, 20.0, "config"), (50, 60.0, "unknown")])
def test_more_that_is_asked_and_a_limit_that_is_lower_need_two_seconds_and_others_five(
    rate: float, limit: float, cause: str
) -> None:
    host = Host()
    host.decisions(0, 30, limit_per_s=60.0)
    host.decisions(30, 40, rate=rate, refused=0.5, limit_per_s=limit)
    host.decisions(40, UNTIL, limit_per_s=60.0)
    reported = first(host)
    assert reported is not None
    assert reported["cause"] == cause
    after_s = (int(str(reported["t_ns"])) - T0) / S - 30
    assert after_s < 3.2 if cause != "unknown" else after_s > 4.5


@pytest.mark.parametrize("same", [True, False], ids=["one limiter", "two limiters"])
def test_what_another_place_takes_of_the_same_limiter_is_its_load(same: bool) -> None:
    """As in one program: main.rpc asks for a unit at a time, main.bulk for 500 at once; a limiter is one member."""
    host = Host()
    host.decisions(0, 30, limiter=b"main.rpc", limit_per_s=100.0, burst=500.0, member=7)
    host.decisions(30, 40, limiter=b"main.rpc", refused=0.5, limit_per_s=100.0, burst=500.0, member=7)
    host.decisions(40, UNTIL, limiter=b"main.rpc", limit_per_s=100.0, burst=500.0, member=7)
    for at in (30, 35, 39):
        host.decisions(at, at + 1, limiter=b"main.bulk", rate=3, cost=500.0, limit_per_s=100.0, member=7 if same else 8)
    reported = [read(row) for batch in run(host, UNTIL, tables=("finding",)) for row in batch.rows]
    mine = [row for row in reported if "main.rpc" in str(row["subject"]) and row["symptom"] == "refusals"]
    assert mine and mine[-1]["cause"] == ("load" if same else "unknown")
    assert ("main.bulk" in str(mine[-1]["sentence"])) == same
