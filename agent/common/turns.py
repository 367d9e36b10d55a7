"""Rows of many keys, taken in turn, so that none with many rows leaves no room for the others."""

from __future__ import annotations

import numpy as np


def turns(keys: np.ndarray) -> np.ndarray:
    """How many rows before each one have the same key; shape as ``keys``, (n,)."""
    _, of = np.unique(keys, return_inverse=True)
    order = np.argsort(of.reshape(-1), kind="stable")
    of = of.reshape(-1)[order]
    out = np.empty(len(keys), np.int64)
    out[order] = np.arange(len(keys)) - np.searchsorted(of, of)
    return out
