"""From a real program's page to `queues` and a metric."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Callable

from tests.ports import free_ports
from tests.servers.test_queues_from import PYTHON, Program
from tests.system.agent import Agent


def test_a_queue_inside_a_program(start: Callable[..., Agent]) -> None:
    port, page = free_ports(2)
    program = Program(sys.executable, "-c", PYTHON, str(port))
    try:
        program.do('waiting.labels("mail", "a").set(101)')
        url = f"http://127.0.0.1:{port}/metrics#name={{queue}}&length=shop_queue_waiting"
        agent = start("--queues-from", url, config=f"prometheus: 127.0.0.1:{page}\n").ready()
        agent.rows("queue_lag", "destination = 'mail' AND lag_messages = 101", 2, limit_s=60)
        (queue,) = (row for row in agent.json("queues")["rows"] if row["system"] == "http")
        assert (queue["queue"], queue["length"], queue["peer"]) == ("mail", 101, f"127.0.0.1:{port}")
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        (metric,) = (line for line in lines if line.startswith("tickscope_queue_lag{") and 'system="http"' in line)
        assert 'name="mail"' in metric and float(metric.rpartition(" ")[2]) == 101
    finally:
        program.end()
