"""Values of queue metrics that follow from a row's status."""

from __future__ import annotations

import numpy as np


def answered(rows: np.ndarray) -> np.ndarray:
    """Rows of ``queue_lag`` -> 1.0 where the server answered, else 0.0."""
    return np.asarray(rows["status"] != b"down", np.float64)


def stuck(rows: np.ndarray) -> np.ndarray:
    """Rows of ``queue_lag`` -> 1.0 where messages wait and nothing reads them, else 0.0; NaN where that is unknown."""
    found = np.isin(rows["status"], (b"stalled", b"stopped")).astype(np.float64)
    return np.where(np.isin(rows["status"], (b"", b"gone", b"down", b"unknown")), np.nan, found)
