"""Instants in a finding's sentence as wall time. The correlator reads no clock: what it says has CLOCK_BOOTTIME."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import numpy as np

from agent.columns import NULL_I64


def dated(said: Sequence[str | int], to_wall: Callable[[np.ndarray], np.ndarray], utc: bool = False) -> str:
    """Pieces of ``finding.said`` as one text with ISO 8601 times, to the millisecond, local ones with their zone unless ``utc``; an instant whose
    wall time is not known as ``boot+SECONDS``.

    to_wall: CLOCK_BOOTTIME ns -> Unix ns, arrays of shape (n,); NULL_I64 where not known.
    """
    instants = [part for part in said if isinstance(part, int)]
    walls = iter(to_wall(np.array(instants, np.int64)).tolist() if instants else ())
    return "".join(part if isinstance(part, str) else _told(part, next(walls), utc) for part in said)


def _told(t_ns: int, wall_ns: int, utc: bool) -> str:
    return f"boot+{t_ns / 1e9:.3f}" if wall_ns == NULL_I64 else iso(wall_ns + 500_000, 3, utc)


def iso(wall_ns: int, digits: int = 6, utc: bool = False) -> str:
    """ISO 8601 with so many digits of a second, rounded down, local unless ``utc``, always with its zone: ``--since`` and ``clock convert`` take it back."""
    seconds, rest = divmod(wall_ns, 10**9)
    at = datetime.fromtimestamp(seconds, UTC).astimezone(UTC if utc else None)
    zone = f"{at:%z}"
    below = f".{rest // 10 ** (9 - digits):0{digits}d}" if digits else ""
    return f"{at:%Y-%m-%dT%H:%M:%S}{below}{'Z' if zone == '+0000' else f'{zone[:3]}:{zone[3:]}'}"
