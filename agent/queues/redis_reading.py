"""Reads parts of a Redis server's answers about streams."""

from __future__ import annotations

from math import nan
from typing import Any

from agent.columns import fitted
from agent.tables import TABLES

Id = tuple[int, int]

_MAX_ID_BYTES = 64
_EARLIEST_MS, _AHEAD_MS = 1_000_000_000_000, 60_000  # ids before 2001 or a minute ahead of the server are not times


def shown(name: bytes) -> bytes:
    """A name of any length and content, shortened to its column."""
    return fitted(name, TABLES["queue_lag"].by_name["destination"].width)


def age_s(entry: Id | None, server_ms: int) -> float:
    """Age of an entry by its id, never negative; NaN if there is no entry or its id is no time."""
    if entry is None or not _EARLIEST_MS <= entry[0] <= server_ms + _AHEAD_MS:
        return nan
    return max(0, server_ms - entry[0]) / 1000


def entry_id(text: bytes) -> Id:
    ms, _, seq = text.partition(b"-")
    return int(ms), int(seq)


def named(info: dict[str, Any]) -> bytes:
    """A group's name. Raises ValueError if the values that are kept between polls are malformed."""
    name, position = info["name"], info["last-delivered-id"]
    if not isinstance(name, bytes) or not isinstance(position, bytes) or len(position) > _MAX_ID_BYTES:
        raise ValueError("no group")
    if not all(isinstance(info[number], int) for number in ("pending", "consumers")):
        raise ValueError("no numbers")
    return name


def fields(flat: list[Any]) -> dict[str, Any]:
    return {k.decode(): v for k, v in zip(flat[::2], flat[1::2], strict=True)}
