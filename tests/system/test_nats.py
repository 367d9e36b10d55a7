"""From a real NATS server to `queues`, a finding and a metric: its consumer is stopped while messages arrive."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_ports
from tests.servers.nats import Nats, client
from tests.system.agent import Agent

#: Rows of a healthy queue before its consumer is stopped (one a second), and of one whose consumer stands.
USUAL, STOPPED = 25, 12


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[Nats]:
    server = Nats(tmp_path)
    yield server
    server.end()


def test_a_stopped_consumer_is_a_finding_that_names_it(start: Callable[..., Agent], nats: Nats) -> None:
    js = nats.client()
    js.stream("orders")
    js.consumer("orders", "billing")
    js.close()
    (page,) = free_ports(1)
    config = f"prometheus: 127.0.0.1:{page}\n"
    with (
        client("publish", nats.port, "orders.a", 40),
        client("consume", nats.port, "orders", "billing", 10) as consumer,
    ):
        agent = start("--nats", nats.url, config=config).ready()
        agent.rows("queue_lag", "destination = 'orders' AND lag_messages IS NOT NULL", USUAL, limit_s=60)
        os.kill(consumer.pid, signal.SIGSTOP)
        agent.rows("queue_lag", "destination = 'orders' AND lag_messages > 100", STOPPED, limit_s=60)

        (queue,) = (row for row in agent.json("queues")["rows"] if row["system"] == "nats")
        assert (queue["queue"], queue["consumer_group"]) == ("orders", "billing")
        assert queue["length"] > 100 and 0 < queue["pending"] <= 10
        assert queue["peer"] == f"127.0.0.1:{nats.port}"

        def lag() -> list[dict[str, Any]]:
            return [row for row in agent.json("findings")["rows"] if row["symptom"] == "queue_lag"]

        (finding, *_) = agent.until(lag)
        assert (finding["cause"], finding["culprit_pid"]) == ("process_stopped", consumer.pid), finding
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        (metric,) = (line for line in lines if line.startswith("tickscope_queue_lag{") and 'system="nats"' in line)
        assert 'name="orders"' in metric
        assert float(metric.rpartition(" ")[2]) > 100
        os.kill(consumer.pid, signal.SIGCONT)
