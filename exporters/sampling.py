"""Selects the plain decisions that become spans, by the trace id's own randomness, so that all samplers of a trace
agree.

https://opentelemetry.io/docs/specs/otel/trace/tracestate-probability-sampling/: the last 56 bits of the trace id are
compared with a threshold. A decision without a trace gets bits that are hashed from its row, so they are always the
same.
"""

from __future__ import annotations

import numpy as np

_BITS = 56
_MASK = np.uint64((1 << _BITS) - 1)
_DIGITS = 14
#: Odd numbers that spread each column over all bits, before splitmix64's last steps.
_FACTORS = {
    "t_ns": np.uint64(0x9E3779B97F4A7C15),
    "pid": np.uint64(0xC2B2AE3D27D4EB4F),
    "tid": np.uint64(0x165667B19E3779F9),
    "goroutine": np.uint64(0xD6E8FEB86659FD93),
    "duration_ns": np.uint64(0xFF51AFD7ED558CCD),
}


def threshold(probability: float) -> int:
    """From 0 (all) to 2^56 (none)."""
    return round((1 - probability) * (1 << _BITS))


def tracestate(probability: float) -> str:
    """The tracestate of a span that stands for 1 / probability of its kind."""
    return f"ot=th:{f'{threshold(probability):014x}'.rstrip('0') or '0'}"


def randomness(rows: np.ndarray) -> np.ndarray:
    """Shape (n,) u64 below 2^56: of the row's own trace id, else a hash (splitmix64) of its time and place."""
    digits = np.ascontiguousarray(rows["trace_id"]).view(np.uint8).reshape(len(rows), rows.dtype["trace_id"].itemsize)
    value = np.zeros(len(rows), np.uint64)
    whole = digits[:, -1] != 0
    if not whole.any():
        return _hashed(rows) & _MASK
    for column in range(digits.shape[1] - _DIGITS, digits.shape[1]):
        digit = digits[:, column]
        letter = (digit | 0x20) - np.uint8(ord("a"))
        number = digit - np.uint8(ord("0"))
        whole &= (number < 10) | (letter < 6)
        value = value << np.uint64(4) | np.where(number < 10, number, letter + np.uint8(10)).astype(np.uint64)
    return np.where(whole, value, _hashed(rows)) & _MASK


def _hashed(rows: np.ndarray) -> np.ndarray:
    value = np.zeros(len(rows), np.uint64)
    for column, factor in _FACTORS.items():
        value ^= rows[column].astype(np.int64).view(np.uint64) * factor
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(value ^ (value >> np.uint64(31)))
