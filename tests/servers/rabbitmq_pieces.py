"""A RabbitMQ node that the tests of a file share, and what a poll reports of it.

The node makes statistics every second. A test waits until the figures are those of the script's own truth, and for long
enough beyond that a figure that passes by would show.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from agent.queues.brokers.rabbitmq import BROKER
from agent.queues.judged import Judged
from agent.queues.queue import Queue
from tests.servers.polled import poll, row_of, until_row
from tests.servers.rabbitmq import Rabbit, release_root


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


def api_problems(queue: Queue) -> list[bytes]:
    """What the rows say of the management API."""
    reasons: list[bytes] = poll(queue)["reason"].tolist()
    return [reason for reason in reasons if reason.startswith(b"management API")]


def counted(queue: Queue, name: str, ready: int, pending: int, consumers: int) -> Any:
    """The row once it has these figures, and has them still after the next statistics."""

    def same(row: Any) -> bool:
        return (row["lag_messages"], row["pending"], row["consumers"]) == (ready, pending, consumers)

    until_row(queue, name, "", same)
    time.sleep(1.5)
    row = row_of(poll(queue), name)
    assert same(row), row
    return row
