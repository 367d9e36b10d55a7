"""Columns that files of earlier versions do not have, filled from the words that these have instead. Goes with the next
format.
"""

from __future__ import annotations

import numpy as np

from agent.columns import NULL_I64
from agent.tables import TABLES

_FAILURE = TABLES["queue_lag"].by_name["failure"]
_NO_ANSWER = ("timed out", "timeout", "no answer", "did not answer")


def fill(table: str, stored: set[str], rows: np.ndarray) -> None:
    """rows: in today's dtype; stored: the columns that the file has."""
    if table == "queue_lag" and "failure" not in stored:
        down = np.flatnonzero(rows["status"] == b"down")
        rows["failure"][down] = [
            _FAILURE.code("no_answer" if _unanswered(reason) else "other") for reason in rows["reason"][down].tolist()
        ]
    elif table == "clock_change" and "unwatched_ns" not in stored:
        rows["unwatched_ns"] = [unwatched_ns(modes) for modes in rows["modes"].tolist()]


def _unanswered(reason: bytes) -> bool:
    return any(phrase in reason.decode("utf-8", "replace").lower() for phrase in _NO_ANSWER)


def unwatched_ns(modes: bytes) -> int:
    """Of ``unwatched=42.0s``."""
    key, _, span = modes.decode("utf-8", "replace").partition("=")
    try:
        ns = round(float(span.removesuffix("s")) * 1e9) if key == "unwatched" else NULL_I64
    except (ValueError, OverflowError):
        return NULL_I64
    return ns if abs(ns) < 2**63 else NULL_I64
