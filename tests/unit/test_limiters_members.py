"""``tickscope limiters`` of one place that asks limiters with different limits: one for all, and one a customer."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from agent.batch import make
from agent.common.host import boot_id as this_boot
from agent.store.hot import HotStore
from agent.tables import TABLES
from tests.unit.test_limiters_cli import tickscope

RESULT = TABLES["limiter_decision"].by_name["result"]


def stored(
    where: Path,
    limits: list[float],
    bursts: list[float],
    members: list[int],
    *places: str,
    cost: float = 0.1,
) -> None:
    """100 decisions of a tenth of a unit in 9.9 s, all allowed, of each place; a limit of 0 is none."""
    ids = np.array([f"shop:rate.Limiter@main.{place}".encode() for place in places or ("pay",)])
    n = 100
    limit = np.repeat(np.resize(limits, n), len(ids))
    rows = make(
        "limiter_decision",
        n * len(ids),
        t_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        - 10_000_000_000
        + np.repeat(np.arange(n), len(ids)) * 100_000_000,
        pid=4_100_000,
        proc_start_ns=5,
        limiter_id=np.tile(ids, n),
        library=b"golang.org/x/time/rate",
        cost=cost,
        sample_rate=1.0,
        source=0,
        result=RESULT.code("allowed"),
        limit_per_s=np.where(limit == 0, np.nan, limit),
        unlimited=limit == 0,
        burst=np.repeat(np.resize(bursts, n), len(ids)),
        member=np.repeat(np.resize(members, n), len(ids)),
    )
    hot = HotStore(where, this_boot(), "host-a", seal_command=())
    hot.append([rows])
    hot.close()


@pytest.mark.parametrize(
    ("limits", "bursts", "members", "declarations", "used", "drawn"),
    [
        ([40, 3, 3, 3], [10, 5, 5, 5], [1, 2, 3, 4], "3/s to 40/s, burst 5 to 10, among 4 members", 49, 49.0),
        ([3, 3], [5, 100], [1, 2], "3/s, burst 5 to 100, among 2 members", 6, 6.0),
        ([3, 0], [5, 5], [1, 2], "3/s or none, burst 5, among 2 members", None, None),
        ([3, 3], [5, 5], [1, 2], "3/s, burst 5, for each of 2 members", 6, 6.0),
        ([2, 8], [5, 9], [1, 1], "8/s, burst 9", 8, None),  # one, whose limit was set
    ],
)
def test_members_with_limits_of_their_own(
    tmp_path: Path,
    limits: list[float],
    bursts: list[float],
    members: list[int],
    declarations: str,
    used: float | None,
    drawn: float | None,
) -> None:
    stored(tmp_path, limits, bursts, members)
    (row,) = json.loads(tickscope(tmp_path, "-o", "json").stdout)["rows"]
    together = sum(dict(zip(members, bursts, strict=True)).values())
    assert row["limit_use"] == (pytest.approx(10 / (used * 9.9 + together), rel=0.01) if used else None)
    shown = tickscope(tmp_path, "show", "shop")
    assert f"  limit         {declarations}" in shown.stdout, shown.stdout
    if len(set(members)) > 1:
        pieces = json.loads(tickscope(tmp_path, "show", "shop", "-o", "json").stdout)["rows"]
        assert {piece["limit"] for piece in pieces} == {drawn}


def test_a_limiter_that_is_asked_at_two_places_is_one_whose_use_is_that_of_both(tmp_path: Path) -> None:
    """It lets through 30 times its limit: that is what is shown."""
    stored(tmp_path, [2.0], [1.0], [7], "pay", "refund", cost=3.0)
    rows = json.loads(tickscope(tmp_path, "-o", "json").stdout)["rows"]
    assert [row["limiter_id"].rpartition(".")[2] for row in rows] == ["pay", "refund"]
    for row, other in zip(rows, reversed(rows), strict=True):
        assert row["also_asked_by"] == [other["limiter_id"]]
        assert row["limit_use"] == pytest.approx(2 * 100 * 3 / (2 * 9.9 + 1), rel=0.01)
