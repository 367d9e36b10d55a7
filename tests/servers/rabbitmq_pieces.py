"""A RabbitMQ node that the tests of a file share, and what a poll reports of it.

The node makes statistics every second. A test waits until the figures are those of the script's own truth, and for long
enough beyond that a figure that passes by would show.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from agent.queues.brokers.rabbitmq import BROKER
from agent.queues.judged import Judged
from agent.queues.packing import TABLE, pack
from agent.queues.queue import Queue
from tests.patience import PATIENCE
from tests.servers.rabbitmq import Rabbit, release_root

FAILURES = TABLE.by_name["failure"].names


@pytest.fixture(scope="module", params=["own", "trixie"])
def rabbit(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rabbit]:
    """This host's release (Debian 12: RabbitMQ 3.10), and Debian 13's (4.0)."""
    root = None if request.param == "own" else release_root(request.param)
    server = Rabbit(tmp_path_factory.mktemp("rabbit"), root=root)
    yield server
    server.end()


def source(url: str) -> Judged:
    (queue,) = BROKER.sources([url])
    return queue


def poll(queue: Queue) -> np.ndarray:
    return np.frombuffer(pack(queue.poll()), TABLE.dtype)


def row_of(rows: np.ndarray, name: str) -> Any:
    found = rows[rows["destination"] == name.encode()]
    assert len(found) <= 1
    return found[0] if len(found) else None


def api_problems(queue: Queue) -> list[bytes]:
    """What the rows say of the management API."""
    reasons: list[bytes] = poll(queue)["reason"].tolist()
    return [reason for reason in reasons if reason.startswith(b"management API")]


def until(queue: Queue, name: str, what: Callable[[Any], bool], limit_s: float = 30) -> Any:
    """The first row of that queue for which it is so; polls twice a second."""
    end = time.monotonic() + limit_s * PATIENCE
    while True:
        rows = poll(queue)
        row = row_of(rows, name)
        if row is not None and what(row):
            return row
        assert time.monotonic() < end, rows
        time.sleep(0.5)


def counted(queue: Queue, name: str, ready: int, pending: int, consumers: int) -> Any:
    """The row once it has these figures, and has them still after the next statistics."""

    def same(row: Any) -> bool:
        return (row["lag_messages"], row["pending"], row["consumers"]) == (ready, pending, consumers)

    until(queue, name, same)
    time.sleep(1.5)
    row = row_of(poll(queue), name)
    assert same(row), row
    return row
