"""From a real RabbitMQ to `queues`, a finding and a metric: its consumer is stopped while messages arrive."""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_ports
from tests.servers.rabbitmq import Rabbit, client
from tests.system.agent import Agent

#: Rows of a healthy queue before its consumer is stopped (one a second), and how long it then stands.
USUAL, STOPPED_S = 25, 15


@pytest.fixture
def rabbit(tmp_path: Path) -> Iterator[Rabbit]:
    server = Rabbit(tmp_path)
    yield server
    server.end()


def test_a_stopped_consumer_is_a_finding_that_names_it(start: Callable[..., Agent], rabbit: Rabbit) -> None:
    rabbit.declare("orders")
    (page,) = free_ports(1)
    config = f"prometheus: 127.0.0.1:{page}\n"
    with client("publish", rabbit.port, "orders", 40), client("consume", rabbit.port, "orders", 10) as consumer:
        agent = start("--rabbitmq", rabbit.url, config=config).ready()
        agent.rows("queue_lag", "destination = 'orders' AND lag_messages IS NOT NULL", USUAL, limit_s=60)
        os.kill(consumer.pid, signal.SIGSTOP)
        time.sleep(STOPPED_S)

        (queue,) = (row for row in agent.json("queues")["rows"] if row["system"] == "rabbitmq")
        assert (queue["queue"], queue["consumers"], queue["pending"]) == ("orders", 1, 10)
        assert queue["length"] > 100
        assert queue["peer"] == f"127.0.0.1:{rabbit.port}"

        def lag() -> list[dict[str, Any]]:
            return [row for row in agent.json("findings")["rows"] if row["symptom"] == "queue_lag"]

        (finding, *_) = agent.until(lag)
        assert (finding["cause"], finding["culprit_pid"]) == ("process_stopped", consumer.pid), finding
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        (metric,) = (line for line in lines if line.startswith("tickscope_queue_lag{") and 'system="rabbitmq"' in line)
        assert 'name="orders"' in metric
        assert float(metric.rpartition(" ")[2]) > 100
        os.kill(consumer.pid, signal.SIGCONT)
