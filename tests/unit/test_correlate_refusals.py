"""Refusals of which it is seen what they come from are told sooner."""

from __future__ import annotations

import pytest

from tests.unit.correlate_scenarios import T0, UNTIL, Host, S, read, run


def first(host: Host) -> dict[str, object] | None:
    rows = [read(row) for batch in run(host, UNTIL) for row in batch.rows]
    return min(rows, key=lambda row: int(str(row["t_ns"])), default=None)


@pytest.mark.parametrize(("rate", "limit", "cause"), [(120, 60.0, "load"), (50, 20.0, "config"), (50, 60.0, "unknown")])
def test_more_that_is_asked_and_a_limit_that_is_lower_need_two_seconds_and_others_five(
    rate: float, limit: float, cause: str
) -> None:
    host = Host()
    host.decisions(0, 30, limit_per_s=60.0)
    host.decisions(30, 40, rate=rate, refused=0.5, limit_per_s=limit)
    host.decisions(40, UNTIL, limit_per_s=60.0)
    told = first(host)
    assert told is not None
    assert told["cause"] == cause
    after_s = (int(str(told["t_ns"])) - T0) / S - 30
    assert after_s < 3.2 if cause != "unknown" else after_s > 4.5
