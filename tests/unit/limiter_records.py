"""Records of the kernel's limiter probes, made by hand."""

from __future__ import annotations

import numpy as np

from agent.kernel.loaded_families import BPF_DIR
from agent.kernel.wire_structs import Wire


def records(**words: list[int]) -> np.ndarray:
    """``struct limiter_decision``, all of whose other words are unknown."""
    wire = Wire.read(BPF_DIR / "events.h", BPF_DIR / "tickscope.h", BPF_DIR / "limiter_decision.h")
    out = np.full(len(next(iter(words.values()))) * wire.dtype("limiter_decision").itemsize, 0xFF, np.uint8).view(
        wire.dtype("limiter_decision")
    )
    for name, values in words.items():
        out[name] = np.array([value % (1 << 64) for value in values], np.uint64)
    return out
