"""``limiters replay`` on a terminal of 80 columns: what was counted can be read there."""

from __future__ import annotations

from agent.cli import layout
from agent.cli.cells import cell
from agent.cli.limiters_screen import LIMITER_COLUMN, jumped, split
from agent.limiters.replay.outcome import TwoClocks

JUMP = TwoClocks(
    "checkout:rate.Limiter@checkout/api.(*Handler).Pay",
    0xC000012340,
    "golang.org/x/time/rate",
    "v0.9.0",
    4711,
    "checkout",
    "token bucket",
    "caller",
    5 * 10**9,
    -500_000_000,
    5 * 10**9,
    9 * 10**9,
    1234567,
    "bounded",
    "rows do not go back far enough",
    1000000,
    234567,
    1000001,
    234566,
    412,
    20,
    430,
    20,
    392,
)


def on_screen(rows: list[dict[str, object]], columns: tuple[str, ...]) -> list[str]:
    beside = {name: [cell(name, row[name]) for row in rows] for name in columns if name != LIMITER_COLUMN}
    return list(layout.widths(beside, [], 80, keep_all=False))


def test_of_a_jump() -> None:
    rows, columns = jumped([{**JUMP.as_row(), "wall_ns": 1_700_000_000_000_000_000}])
    assert {"decisions", "admitted", "true_time", "over_admitted", "wrongly_refused", "quality"} <= set(
        on_screen(rows, columns)
    )
    assert rows[0]["over_admitted"] == "412 to 430" and rows[0]["wrongly_refused"] == 20
    assert (
        rows[0][LIMITER_COLUMN]
        == "checkout:rate.Limiter@checkout/api.(*Handler).Pay, pid 4711, member 0xc000012340, -500ms at"
        " 2023-11-14T22:13:20.000000Z, token bucket: rows do not go back far enough"
    )
    (forward,), _ = jumped([{**JUMP.as_row(), "size_ns": 2 * 10**9, "wall_ns": None, "member": None, "reason": ""}])
    assert "pid 4711, +2s at boot+5.000000, token bucket" in forward[LIMITER_COLUMN]


def test_of_a_split() -> None:
    row = {
        "limiter_id": "redis_rate@127.0.0.1:6379 rate:",
        "window_ns": 100_000_000,
        "skew_ns": 63_000_000,
        "limit": 20.0,
        "decisions": 18943,
        "in_other_window": 11797,
        "admitted_same": 7202,
        "admitted_apart": 7205,
        "over_admitted": 3071,
        "wrongly_refused": 3068,
        "most_same": 20,
        "most_apart": 40,
        "replicas": "its processes",
        "algorithm": "fixed window",
        "reason": "",
    }
    rows, columns = split([row])
    assert {"over_admitted", "wrongly_refused", "most_same", "most_apart"} <= set(on_screen(rows, columns))
    assert (
        rows[0][LIMITER_COLUMN]
        == "redis_rate@127.0.0.1:6379 rate:, windows of 100ms, 63ms apart for its processes, fixed window"
    )
