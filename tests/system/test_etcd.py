"""From two real etcd clusters to `queues`, a finding and a metric: the process that copies a prefix is stopped."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_ports
from tests.servers.etcd import Etcd, client
from tests.system.agent import Agent

#: Rows of a healthy copy before its process is stopped (one a second), and of one that lacks keys.
USUAL, STOPPED = 25, 12


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[Etcd]]:
    clusters = [Etcd(tmp_path / name, name=name) for name in ("west", "east")]
    yield clusters
    for one in clusters:
        one.end()


def test_a_stopped_copier_is_a_finding_that_names_it(start: Callable[..., Agent], two: list[Etcd]) -> None:
    source, copy = (cluster.nodes[0].port for cluster in two)
    (page,) = free_ports(1)
    config = f"prometheus: 127.0.0.1:{page}\n"
    with client("write", source, "/shop/", 20), client("copy", source, copy, "/shop/") as copier:
        url = f"http://127.0.0.1:{source}?prefix=/shop/&copy=http://127.0.0.1:{copy}"
        agent = start("--etcd", url, config=config).ready()
        agent.rows("queue_lag", "destination = '/shop/' AND lag_messages IS NOT NULL", USUAL, limit_s=60)
        os.kill(copier.pid, signal.SIGSTOP)
        agent.rows("queue_lag", "destination = '/shop/' AND lag_messages > 50", STOPPED, limit_s=60)

        (queue,) = (row for row in agent.json("queues")["rows"] if row["queue"] == "/shop/")
        assert (queue["system"], queue["consumer_group"]) == ("etcd", f"copy 127.0.0.1:{copy}")
        assert queue["length"] > 50
        assert queue["peer"] == f"127.0.0.1:{source}"

        def lag() -> list[dict[str, Any]]:
            return [row for row in agent.json("findings")["rows"] if row["symptom"] == "queue_lag"]

        (finding, *_) = agent.until(lag)
        assert (finding["cause"], finding["culprit_pid"]) == ("process_stopped", copier.pid), finding
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        (metric,) = (line for line in lines if line.startswith("tickscope_queue_lag{") and 'name="/shop/"' in line)
        assert 'system="etcd"' in metric
        assert float(metric.rpartition(" ")[2]) > 50
        os.kill(copier.pid, signal.SIGCONT)
