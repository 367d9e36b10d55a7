"""From a real PostgreSQL to `queues`, a finding and a metric: the worker of a job table is stopped, and jobs arrive."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.ports import free_ports
from tests.servers.postgresql import QUERY, TABLE, Postgres, client
from tests.system.agent import Agent

#: Rows of a healthy queue before its worker is stopped (one a second).
USUAL = 25


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    server.do(TABLE)
    yield server
    server.end()


def test_a_stopped_worker_is_a_finding_that_names_it(start: Callable[..., Agent], postgres: Postgres) -> None:
    (page,) = free_ports(1)
    query = " ".join(QUERY.split())
    config = f'prometheus: 127.0.0.1:{page}\npostgresql:\n  - url: {postgres.url}\n    query: "{query}"\n'
    with client("produce", postgres.port, 40), client("work", postgres.port, 0.001) as worker:
        agent = start(config=config).ready()
        agent.rows("queue_lag", "destination = 'mail' AND lag_messages IS NOT NULL", USUAL, limit_s=60)
        os.kill(worker.pid, signal.SIGSTOP)

        def stalled() -> Any:
            rows = [row for row in agent.json("queues")["rows"] if row["system"] == "postgresql"]
            return next((row for row in rows if row["status"] == "stalled"), None)

        queue = agent.until(stalled)
        assert (queue["queue"], queue["peer"]) == ("mail", f"127.0.0.1:{postgres.port}")
        assert queue["length"] > 100

        def lag() -> list[dict[str, Any]]:
            return [row for row in agent.json("findings")["rows"] if row["symptom"] == "queue_lag"]

        (finding, *_) = agent.until(lag)
        assert (finding["cause"], finding["culprit_pid"]) == ("process_stopped", worker.pid), finding
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        found = (line for line in lines if line.startswith("tickscope_queue_lag{") and 'system="postgresql"' in line)
        (metric,) = found
        assert 'name="mail"' in metric
        assert float(metric.rpartition(" ")[2]) > 100
        os.kill(worker.pid, signal.SIGCONT)
