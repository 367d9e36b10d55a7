"""A batch: what every source produces and every sink takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np

from agent.tables import TABLES


class Batch(NamedTuple):
    """Rows of one table: a numpy array of dtype ``TABLES[table].dtype``, shape (n,), not necessarily in time order."""

    table: str
    rows: np.ndarray


def make(table: str, n: int, **columns: object) -> Batch:
    """A batch of n rows with the given columns set and all others unknown."""
    rows = TABLES[table].empty(n)
    for name, value in columns.items():
        rows[name] = value
    return Batch(table, rows)


class Source(Protocol):
    """Produces batches; knows nothing of what follows. Called on the agent's one thread and must not block."""

    name: str

    def fds(self) -> list[int]:
        """Descriptors that make the agent's loop wake at once when readable; may be empty."""
        ...

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """What has arrived since the last call; ``now_ns`` is CLOCK_BOOTTIME."""
        ...

    def close(self) -> None: ...


class Sink(Protocol):
    """Takes batches; must not block and must count what it drops."""

    name: str

    def offer(self, batch: Batch) -> None: ...

    def losses(self) -> dict[str, int]:
        """Records dropped so far, by reason."""
        ...

    def close(self) -> None: ...
