"""Instants in a finding's sentence as wall time. The correlator reads no clock: its sentences tell CLOCK_BOOTTIME."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np

from agent.columns import NULL_I64

#: As ``agent.correlate.words.instant`` writes them.
_INSTANT = re.compile(r"boot\+(\d{1,9})\.(\d{3})(?!\d)")


def dated(sentence: str, to_wall: Callable[[np.ndarray], np.ndarray], utc: bool = False) -> str:
    """The sentence with ISO 8601 times, to the millisecond, local ones unless ``utc``; an instant that has none known stays.

    to_wall: CLOCK_BOOTTIME ns -> Unix ns, arrays of shape (n,); NULL_I64 where not known.
    """
    instants = [int(s) * 10**9 + int(ms) * 10**6 for s, ms in _INSTANT.findall(sentence)]
    walls = iter(to_wall(np.array(instants, np.int64)).tolist() if instants else ())
    return _INSTANT.sub(lambda found: found[0] if (wall := next(walls)) == NULL_I64 else _iso(wall, utc), sentence)


def _iso(wall_ns: int, utc: bool) -> str:
    ms = (wall_ns + 500_000) // 10**6
    at = datetime.fromtimestamp(ms // 1000, UTC if utc else None)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}{'Z' if utc else ''}"
