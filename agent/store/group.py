"""Grouped queries: count, p50, p90, p99 and max of a table's measure.

Tables whose rows are histograms (tcp_rtt, syscall_latency) hold many samples a row, so their percentiles come from the
merged buckets: the bucket in which the rank falls, interpolated geometrically inside it ([2^i, 2^(i+1)); bucket 0 is
linear from 0 to 2), and never above the largest value seen. Other tables: the value of that rank (no interpolation).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from agent.columns import HIST_BUCKETS
from agent.store.names import quote
from agent.store.query import Session
from agent.tables import Table

QUANTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99}
#: The column that counts a histogram row's samples, and the one that holds its largest value.
_SAMPLES = {"tcp_rtt": ("samples", "rtt_max_us"), "syscall_latency": ("count", "max_ns")}


def how(table: Table) -> str:
    """How the percentiles are made, for the reader of a result."""
    if table.name in _SAMPLES:
        return "merged histogram buckets (powers of two), geometric interpolation inside a bucket, capped by the maximum seen"
    return "the row of that rank"


def grouped(session: Session, table: Table, by: list[str], where: str) -> list[dict[str, Any]]:
    """One dict a group: the group's columns, then count, p50, p90, p99 and max; groups in order of count, largest first.

    count is of samples as seen (rows elsewhere than in histogram tables). Raises AgentError (exit 2) for bad SQL.
    """
    keys = ", ".join(map(quote, by))
    if table.name in _SAMPLES:
        samples, largest = _SAMPLES[table.name]
        sums = ", ".join(f"coalesce(sum(hist[{i + 1}]), 0)" for i in range(HIST_BUCKETS))
        picked = f"coalesce(sum({quote(samples)}), 0)::BIGINT, max({quote(largest)}), [{sums}]"
        result = session.run(f"SELECT {keys}, {picked} FROM {table.name} WHERE {where} GROUP BY {keys}")
        rows = [_from_buckets(by, row) for row in result.rows]
    else:
        measure = quote(table.measure) if table.measure else "NULL::BIGINT"
        ranks = ", ".join(f"quantile_disc({measure}, {q}) AS {name}" for name, q in QUANTILES.items())
        result = session.run(f"SELECT {keys}, count(*) AS count, {ranks}, max({measure}) AS max "
                             f"FROM {table.name} WHERE {where} GROUP BY {keys}")
        rows = [dict(zip([*by, "count", *QUANTILES, "max"], row, strict=True)) for row in result.rows]
    return sorted(rows, key=lambda r: (-r["count"], *(str(r[k]) for k in by)))


def _from_buckets(by: list[str], row: tuple[Any, ...]) -> dict[str, Any]:
    *keys, count, largest, buckets = row
    points = quantiles(np.array([int(n) for n in buckets], np.float64), largest)
    return {**dict(zip(by, keys, strict=True)), "count": count, **dict(zip(QUANTILES, points, strict=True)), "max": largest}


def quantiles(buckets: np.ndarray, largest: int | None) -> list[int | None]:
    """p50, p90 and p99 of merged log2 buckets (shape (64,)), in the buckets' unit; None where they are empty."""
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
