"""Bytes with what is known of past hours, from one agent to a later one. Pure; unreadable bytes count as nothing."""

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
    """For one limiter or port, in rings of hours: the number of requests, and the longest pause; 0: not known."""

    n: np.ndarray
    pause: np.ndarray


def pack(hour: int, most: int, of: Iterable[tuple[Key, Hours]]) -> bytes:
    """The first ``most`` of them; hour: the first that is not over."""
    chosen = [one for one, _ in zip(of, range(most), strict=False)]
    keys = json.dumps([key for key, _ in chosen]).encode()
    rings = b"".join(its.n.astype(_N).tobytes() + its.pause.astype(_PAUSE).tobytes() for _, its in chosen)
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
    """The same with the hours in between unknown: their places in the rings still have old values."""
    kept = len(hours.n)
    pause = hours.pause.copy()
    pause[np.arange(max(since, now - kept), now) % kept] = 0
    return Hours(hours.n, pause)


def others(earlier: Mapping[Key, Hours], known: Iterable[Key], since: int, now: int) -> Iterable[tuple[Key, Hours]]:
    """The subjects that have not been seen since."""
    there = set(known)
    return ((key, without_gap(hours, since, now)) for key, hours in earlier.items() if key not in there)
