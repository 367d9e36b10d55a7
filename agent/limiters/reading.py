"""Helpers of libraries' ``Seen.read``: converts words of ``struct limiter_decision`` to numbers and results. Pure.

An unknown word is all ones: it has no place in the declaration, or could not be read.
"""

from __future__ import annotations

import numpy as np

from agent.columns import NULL_I64
from agent.tables import TABLES

UNKNOWN = ~np.uint64(0)
ALLOWED, REFUSED, DELAYED, ERROR, CANCELLED = (
    TABLES["limiter_decision"].code("result", name) for name in ("allowed", "refused", "delayed", "error", "cancelled")
)


def whole(words: np.ndarray) -> np.ndarray:
    """Signed integers, i64 (n,); -1 and unknown are equal."""
    return np.where(words == UNKNOWN, NULL_I64, words.astype(np.int64))


def number(words: np.ndarray) -> np.ndarray:
    """Signed integers as f64 (n,); unknown and -1 become NaN."""
    return np.where(words == UNKNOWN, np.nan, words.astype(np.int64).astype(np.float64))


def per_second(units: np.ndarray | float, period_ns: np.ndarray) -> np.ndarray:
    """units, f64, per period (words, ns) as a rate, f64 (n,); NaN without a period."""
    period = number(period_ns)
    rate: np.ndarray = np.divide(units, period / 1e9, out=np.full(len(period), np.nan), where=period > 0)
    return rate


def results(allowed: np.ndarray, wait_ns: np.ndarray | None = None, error: np.ndarray | None = None) -> np.ndarray:
    """Codes of ``result``. allowed: bool. wait_ns: i64, above 0 means delayed. error: words, 0 for none."""
    delayed = allowed & (wait_ns > 0) if wait_ns is not None else np.zeros(len(allowed), np.bool_)
    failed = (error != 0) & (error != UNKNOWN) if error is not None else np.zeros(len(allowed), np.bool_)
    return np.select([failed, ~allowed, delayed], [ERROR, REFUSED, DELAYED], ALLOWED)
