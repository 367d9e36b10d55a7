"""When a file system counts as full: a write fails although a little is free, and large ones are not full at 99 %."""

from __future__ import annotations

import numpy as np

#: Of its bytes or files; but not more than so many bytes.
SHARE, BYTES = 0.005, 64 << 20
#: A small one is full when a usual write fails, but not with this share free.
_WRITE, _SMALL_SHARE = 1 << 20, 0.05


def full_below(size: int | np.ndarray) -> np.ndarray:
    """The free bytes below which a file system of ``size`` bytes is full."""
    return np.minimum(np.maximum(SHARE * np.asarray(size), np.minimum(_WRITE, _SMALL_SHARE * np.asarray(size))), BYTES)
