"""Short lists of names in a text column of ``queue_lag``."""

from __future__ import annotations

from collections.abc import Iterable

from agent.tables import TABLES

_COLUMNS = TABLES["queue_lag"].by_name


def listed(texts: Iterable[str], column: str) -> bytes:
    """As many as the column has room for, and the number of the others: ``a, b, and 7 more``."""
    some = [" ".join(one.split()).encode(errors="replace") for one in texts]
    width, kept = _COLUMNS[column].width, list[bytes]()
    for at, one in enumerate(some):
        left = len(some) - at - 1
        more = b", and %d more" % left if left else b""
        if len(b", ".join([*kept, one])) + len(more) > width:
            return b", ".join([*kept, b"and %d more" % (left + 1)])[:width]
        kept.append(one)
    return b", ".join(kept)
