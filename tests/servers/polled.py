"""What a queue reports when it is polled, and waiting until it reports something."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from agent.common.clocks import boot_ns
from agent.queues.catalogue import Broker
from agent.queues.judged import Judged
from agent.queues.packing import TABLE, pack
from agent.queues.poller_process import BrokerPoller
from agent.queues.queue import Queue
from tests.patience import until

FAILURES = TABLE.by_name["failure"].names


@contextmanager
def watched(broker: Broker, server: Any) -> Iterator[Judged]:
    """The only queue of a section of the settings."""
    (queue,) = broker.sources([server])
    try:
        yield queue
    finally:
        queue.close()


def poll(queue: Queue) -> np.ndarray:
    return np.frombuffer(pack(queue.poll()), TABLE.dtype)


def one(queue: Queue) -> Any:
    """The only row of a poll."""
    rows = poll(queue)
    assert len(rows) == 1, rows
    return rows[0]


def row_of(rows: Iterable[Any], destination: str, group: str = "*") -> Any:
    """The row of a queue, None if there is none. group: its consumer group, a pattern of ``fnmatch``."""
    found = [row for row in rows if row["destination"] == destination.encode()]
    found = [row for row in found if fnmatchcase(row["consumer_group"].decode(), group)]
    assert len(found) <= 1, rows
    return found[0] if found else None


def until_row(
    queue: Queue, destination: str, group: str, what: Callable[[Any], Any], limit_s: float = 60, each_s: float = 0.25
) -> Any:
    """The first row of that queue for which it is so."""

    def fits(rows: np.ndarray) -> bool:
        row = row_of(rows, destination, group)
        return row is not None and bool(what(row))

    return row_of(until_rows(queue, fits, limit_s, each_s), destination, group)


def until_rows(
    queue: Queue, what: Callable[[np.ndarray], Any], limit_s: float = 60, each_s: float = 0.25
) -> np.ndarray:
    """All rows of the first poll for which it is so."""
    rows: list[np.ndarray] = []

    def fits() -> bool:
        rows[:] = [poll(queue)]
        return bool(what(rows[0]))

    until(fits, limit_s, each_s, why=lambda: rows)
    return rows[0]


def until_drained(brokers: BrokerPoller, enough: Callable[[list[Any]], Any]) -> list[Any]:
    """All rows that a poller has reported of queues, once these are enough."""
    rows: list[Any] = []

    def turn() -> None:
        rows.extend(row for batch in brokers.drain(boot_ns()) if batch.table == TABLE.name for row in batch.rows)

    until(lambda: enough(rows), each_s=0.05, why=lambda: rows, turn=turn)
    return rows


def failed(row: Any) -> str:
    """Its kind of failure, empty if there is none."""
    return FAILURES[row["failure"]] if row["failure"] >= 0 else ""
