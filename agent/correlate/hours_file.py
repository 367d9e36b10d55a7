"""What is known of hours that were before this agent started, as bytes that another one kept. Pure; what cannot be read
is nothing.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

Key = tuple[object, ...]
_SUM, _SIZE = struct.Struct("<I"), struct.Struct("<qI")
_N, _PAUSE = np.dtype("<f4"), np.dtype("<u2")


class Hours(NamedTuple):
    """Of one limiter or port, in rings of hours: how often it had something to do, and the longest pause; 0: not
    known.
    """

    n: np.ndarray
    pause: np.ndarray


def pack(hour: int, most: int, of: Iterable[tuple[Key, Hours]]) -> bytes:
    """The first ``most`` of them; hour: the first that is not over."""
    some = [one for one, _ in zip(of, range(most), strict=False)]
    keys = json.dumps([key for key, _ in some]).encode()
    rings = b"".join(its.n.astype(_N).tobytes() + its.pause.astype(_PAUSE).tobytes() for _, its in some)
    body = _SIZE.pack(hour, len(keys)) + keys + rings
    return body + _SUM.pack(zlib.crc32(body))


def unpack(raw: bytes, kept: int) -> tuple[int, dict[Key, Hours]]:
    """The hour, and rings of ``kept`` hours by key."""
    body, checksum = raw[: -_SUM.size], raw[-_SUM.size :]
    if len(body) < _SIZE.size or checksum != _SUM.pack(zlib.crc32(body)):
        return 0, {}
    hour, size = _SIZE.unpack_from(body)
    keys, at, each = [tuple(key) for key in json.loads(body[_SIZE.size :][:size])], _SIZE.size + size, 6 * kept
    if len(body) != at + each * len(keys):
        return 0, {}
    return hour, {
        key: Hours(
            np.frombuffer(body, _N, kept, at + i * each), np.frombuffer(body, _PAUSE, kept, at + i * each + 4 * kept)
        )
        for i, key in enumerate(keys)
    }


def without_gap(hours: Hours, since: int, now: int) -> Hours:
    """With nothing known of the hours in between, whose places in the rings they still have."""
    kept = len(hours.n)
    pause = hours.pause.copy()
    pause[np.arange(max(since, now - kept), now) % kept] = 0
    return Hours(hours.n, pause)


def others(earlier: Mapping[Key, Hours], known: Iterable[Key], since: int, now: int) -> Iterable[tuple[Key, Hours]]:
    """Those of whom nothing has been seen since."""
    there = set(known)
    return ((key, without_gap(its, since, now)) for key, its in earlier.items() if key not in there)
