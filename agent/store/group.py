"""Grouped queries: count, p50, p90, p99 and max of a table's measure.

Tables with histograms (tcp_rtt, syscall_latency, service_latency) have many samples per row, so their percentiles come
from the merged buckets: the rank's bucket, interpolated geometrically inside it ([2^i, 2^(i+1)); bucket 0 is linear
from 0 to 2), and never above the largest value. Other tables: the value of that rank (no interpolation).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agent.ask.names import quote
from agent.ask.question import Question, Spread
from agent.ask.row_source import Result
from agent.ask.sql import conditions
from agent.ask.window import Window
from agent.columns import HIST_BUCKETS
from agent.store import cells, duck
from agent.tables import TABLES

QUANTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99}
#: The columns with a histogram row's number of samples and with its largest value.
_SAMPLES = {
    "tcp_rtt": ("samples", "rtt_max_us"),
    "syscall_latency": ("count", "max_ns"),
    "service_latency": ("requests", "max_ns"),
}
_BUCKETS = (
    "merged histogram buckets (powers of two), geometric interpolation inside a bucket, capped by the maximum seen"
)


def spread(run: Callable[[str], Result], question: Question, window: Window) -> Spread:
    """count is the number of observed samples in histogram tables, of rows in others. run: SQL -> its rows. Raises
    AgentError (exit 2) for bad SQL.
    """
    table, by = TABLES[question.table], question.group
    keys, where = ", ".join(map(quote, by)), conditions(question, window)
    if table.name in _SAMPLES:
        samples, largest = _SAMPLES[table.name]
        sums = ", ".join(f"coalesce(sum(hist[{i + 1}]), 0)" for i in range(HIST_BUCKETS))
        picked = f"coalesce(sum({quote(samples)}), 0)::BIGINT, max({quote(largest)}), [{sums}]"
        result = run(f"SELECT {keys}, {picked} FROM {table.name} WHERE {where} GROUP BY {keys}")
        return _sorted(by, [_from_buckets(by, row) for row in result.rows], _BUCKETS, None)
    measure = quote(table.measure) if table.measure else "NULL::BIGINT"
    result = run(
        f"SELECT {keys}, count(*), quantile_disc({measure}, {list(QUANTILES.values())}), max({measure}) "
        f"FROM {table.name} WHERE {where} GROUP BY {keys}"
    )  # one list: their values are gathered once
    none = [None] * len(QUANTILES)
    rows = [
        dict(zip([*by, "count", *QUANTILES, "max"], (*key, count, *(points or none), most), strict=True))
        for *key, count, points, most in result.rows
    ]
    return _sorted(by, rows, "the row of that rank", 0.0)


def counted(db: Any, question: Question, files: Sequence[str], rest: str, window: Window) -> Spread | None:
    """The same from the cells in ``files`` (agent/store/cells.py) and the rows of query ``rest`` (empty: none). None if
    that fails.

    Percentiles are the middles of buckets; count and max are exact.
    """
    import duckdb

    by, measure = question.group, TABLES[question.table].measure
    others = cells.rest_sql(by, measure, f"({rest})", conditions(question, window)) if rest else ""
    try:
        found = db.execute(
            cells.spread_sql(by, list(map(duck.text, files)), others, list(QUANTILES.values()))
        ).fetchall()
    except duckdb.Error:  # a file is damaged or was removed: the caller uses the rows
        return None
    rows = [
        {
            **dict(zip(by, key, strict=True)),
            "count": count,
            **dict(zip(QUANTILES, (_within(b, most) for b in points), strict=True)),
            "max": most,
        }
        for *key, count, points, most in found
    ]
    return _sorted(by, rows, f"counted in buckets when rows were sealed: at most {cells.ERROR:.1%} off", cells.ERROR)


def _within(bucket: int | None, most: int) -> int | None:
    return None if bucket is None else min(cells.middle(bucket), most)


def _sorted(by: Sequence[str], rows: list[dict[str, Any]], how: str, error: float | None) -> Spread:
    return Spread(sorted(rows, key=lambda r: (-r["count"], *(str(r[k]) for k in by))), how, error)


def _from_buckets(by: Sequence[str], row: tuple[Any, ...]) -> dict[str, Any]:
    *keys, count, largest, buckets = row
    points = quantiles(np.array([int(n) for n in buckets], np.float64), largest)
    return {
        **dict(zip(by, keys, strict=True)),
        "count": count,
        **dict(zip(QUANTILES, points, strict=True)),
        "max": largest,
    }


def quantiles(buckets: np.ndarray, largest: int | None) -> list[int | None]:
    """p50, p90 and p99 of merged log2 buckets (shape (64,)), in the buckets' unit; None if they are empty."""
    total = buckets.sum()
    if not total:
        return [None] * len(QUANTILES)
    upto = np.cumsum(buckets)
    points: list[int | None] = []
    for q in QUANTILES.values():
        rank = q * total
        i = int(np.searchsorted(upto, rank))
        share = (rank - (upto[i] - buckets[i])) / buckets[i]
        value = 2 * share if i == 0 else 2.0**i * 2.0**share
        points.append(round(min(value, largest) if largest is not None else value))
    return points
