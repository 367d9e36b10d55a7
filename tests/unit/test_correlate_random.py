"""Rows that no program should send: whatever they hold, no rule raises, and what the correlator keeps is bounded."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from agent.batch import Batch
from agent.columns import NULL_I64, Column
from agent.correlate.catalogue import causes, kept, symptoms
from agent.correlate.correlator import Correlator
from agent.correlate.thresholds import CorrelatorConfig
from agent.tables import TABLES
from tests.unit.correlate_scenarios import APP_PID, MS, REDIS, REDIS_PID, START, T0, WEB_PID, Host, S, peer

BATCHES, SECONDS = 200, 60
ANY = np.array([0, 1, -1, 2, 7, 100, MS, 30 * MS, S, 90 * S, 2**31, 2**53, 2**62, 2**63 - 1, -(2**62), -S, NULL_I64])
FLOATS = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, 1.0, 40.0, 1e9, -3.0, 1e300, 5e-324])
TEXTS = (
    b"",
    b"api",
    b"down",
    b"ok",
    b"stalled",
    b"OOM 3, x, BUSY -1",
    b"\xff\xfe\x80",
    b"{name}",
    b"python3",
    b"redis",
    b"workers",
    b"x" * 255,
)
PIDS = np.array([APP_PID, REDIS_PID, WEB_PID, 0, -1, 1, NULL_I64, 2**40])
PEERS = (
    REDIS,
    bytes(18),
    peer("10.0.0.9", 53),
    peer("127.0.0.1", 40000),
    b"\x20\x01" + bytes(14) + b"\x50\0",
    b"\xff" * 18,
)
#: What is as it should be in most rows, so that they are about the same processes and limiters.
USUAL = {
    "pid": APP_PID,
    "tid": APP_PID,
    "proc_start_ns": START,
    "comm": b"python3",
    "limiter_id": b"api",
    "peer": np.frombuffer(REDIS, "V18")[0],
    "netns": 7,
    "system": b"redis",
    "destination": b"orders",
    "consumer_group": b"workers",
}


def values(column: Column, n: int, rng: np.random.Generator) -> np.ndarray:
    if column.kind in ("bool", "enum"):
        return rng.integers(-1, max(2, len(column.names)) + 1, n).astype("i1")  # and one that nobody has named
    if column.kind in ("addr", "peer"):
        return np.array([end[: column.dtype.itemsize] for end in PEERS], column.dtype)[rng.integers(0, len(PEERS), n)]
    if column.kind == "i64":
        pool = PIDS if column.name.endswith("pid") or column.name == "tid" else ANY
        return pool[rng.integers(0, len(pool), n)]
    if column.kind == "f64":
        return FLOATS[rng.integers(0, len(FLOATS), n)]
    names = [name.encode() for name in column.names] or TEXTS
    return np.array([text[: column.width] for text in names], column.dtype)[rng.integers(0, len(names), n)]


def batch(table: str, second: int, rng: np.random.Generator) -> Batch:
    n = int(rng.integers(0, 60))
    rows = TABLES[table].empty(n)
    for column in TABLES[table].columns:
        if column.kind != "hist":
            rows[column.name] = values(column, n, rng)
        if column.name in USUAL:
            rows[column.name][rng.random(n) < 0.7] = USUAL[column.name]
    odd = rng.random(n) < 0.05
    rows["t_ns"] = np.where(odd, ANY[rng.integers(0, len(ANY), n)], T0 + second * S + rng.integers(-3 * S, 2 * S, n))
    return Batch(table, rows)


@pytest.mark.parametrize("seed", range(3))
def test_no_row_makes_a_rule_raise(seed: int) -> None:
    rng = np.random.default_rng(seed)
    config = CorrelatorConfig(pending_rows=4000, keep_rows=500, subjects=16, servers=32, max_findings=8)
    correlator, host = Correlator(config), Host(seed).healthy(0, SECONDS)
    tables = sorted(kept())
    reported = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of sums and means of what is not known
        for made in host.made:
            correlator.feed(made)
        for i in range(BATCHES):
            second = 15 + i * (SECONDS - 15) // BATCHES
            correlator.feed(batch(tables[int(rng.integers(0, len(tables)))], second, rng))
            reported += correlator.advance(T0 + second * S)
        reported += correlator.advance(T0 + 3 * SECONDS * S)
    assert not correlator.guard.failures
    assert {b.table for b in reported} == {"finding", "verdict", "evidence", "limiter_jump"}
    asked = {row["rule"] for row in correlator.guard.state()}
    assert len(asked) > len(symptoms()) + len(causes()), asked
