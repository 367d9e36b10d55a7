"""Reads parts of a Redis server's answers about streams."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import Any

from agent.columns import fitted
from agent.queues.age_bounds import age_since
from agent.tables import TABLES

Id = tuple[int, int]

_MAX_ID_BYTES = 64
_MAX_SEQ = (1 << 64) - 1


@dataclass(frozen=True)
class Stream:
    """``XINFO STREAM``. first, last: None if it is empty. last_generated: also of entries that were deleted. added,
    max_deleted (the largest id that XDEL deleted): None before Redis 7.
    """

    name: bytes
    length: int
    first: Id | None
    last: Id | None
    last_generated: Id | None
    added: int | None
    max_deleted: Id | None

    @classmethod
    def read(cls, name: bytes, reply: list[Any]) -> Stream:
        """Raises KeyError, TypeError or ValueError for a malformed reply."""
        found = fields(reply)
        length, added = int(found["length"]), found.get("entries-added")
        if length >> 63 or not (added is None or isinstance(added, int)):
            raise ValueError("no length")
        ids = [
            None if given is None else entry_id(given)
            for given in (
                found["first-entry"][0] if length else None,
                found["last-entry"][0] if length else None,
                found.get("last-generated-id"),
                found.get("max-deleted-entry-id"),
            )
        ]
        return cls(name, length, ids[0], ids[1], ids[2], added, ids[3])


def shown(name: bytes) -> bytes:
    """A name of any length and content, shortened to its column."""
    return fitted(name, TABLES["queue_lag"].by_name["destination"].width)


def age_s(entry: Id | None, server_ms: int) -> float:
    """Age of an entry by its id; NaN if there is no entry or its id is no time."""
    return nan if entry is None or entry[0] > _MAX_SEQ else age_since(entry[0] / 1000, server_ms / 1000)


def entry_id(text: bytes) -> Id:
    ms, _, seq = text.partition(b"-")
    return int(ms), int(seq)


def shown_id(entry: Id) -> str:
    return f"{entry[0]}-{entry[1]}"


def after(entry: Id) -> str:
    """The smallest id after this one. Exclusive ranges are of Redis 6.2."""
    ms, seq = entry
    return f"{ms}-{seq + 1}" if seq < _MAX_SEQ else f"{ms + 1}-0"


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
