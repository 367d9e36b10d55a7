"""A real Prometheus server scrapes a real, fresh agent with our rules: the first event of a kind is seen, and the rule
fires.
"""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboards import alerts
from tests.patience import PATIENCE, until
from tests.ports import free_port
from tests.system.agent import Agent
from tests.system.test_notices import step

_RULES = Path(alerts.__file__).with_suffix(".yaml")


class Server:
    """Prometheus with one target."""

    def __init__(self, folder: Path, target: int) -> None:
        self.port = free_port()
        config = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(_RULES)],
            "scrape_configs": [{"job_name": "tickscope", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder}/prometheus.yml",
                    f"--storage.tsdb.path={folder}/data",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                    "--log.level=warn",
                ],
                stdout=log,
                stderr=log,
            )

    def query(self, expression: str) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{self.port}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return list(json.load(answer)["data"]["result"])
        except OSError:
            return []  # it is starting

    def value(self, expression: str) -> float:
        return sum(float(series["value"][1]) for series in self.query(expression))


@pytest.fixture
def scraped(start: Callable[..., Agent], tmp_path: Path) -> Iterator[tuple[Agent, Server, int]]:
    page = free_port()
    agent = start(config=f"prometheus: 127.0.0.1:{page}\n").ready()
    server = Server(tmp_path, page)
    yield agent, server, page
    server.process.terminate()
    server.process.wait(20 * PATIENCE)


@pytest.mark.usefixtures("own_clock")
def test_rules_fire_at_the_first_event(scraped: tuple[Agent, Server, int]) -> None:
    _, server, page = scraped
    until(lambda: server.value("sum_over_time(up[1h])") >= 3)
    for name in (
        "ntp_jump_count_total",
        "tickscope_clock_changes_total",
        "tickscope_findings_total",
        "tickscope_findings_by_cause_total",
        "tickscope_losses_total",
        "tickscope_losses_reports_total",
        "tickscope_socket_accept_overflows_total",
    ):
        assert {float(s["value"][1]) for s in server.query(name)} == {0.0}, name
    assert server.query('ALERTS{alertname=~"TickscopeClockJump|TickscopeAcceptOverflow"}') == []
    step()
    with socket.create_server(("127.0.0.1", 0), backlog=1) as full:
        clients = [socket.socket() for _ in range(6)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        for alert in ("TickscopeClockJump", "TickscopeAcceptOverflow"):
            until(lambda alert=alert: server.query(f'ALERTS{{alertname="{alert}",alertstate="firing"}}'))
        for client in clients:
            client.close()
    assert server.value("increase(ntp_jump_count_total[1m])") > 0
    assert server.value('increase(tickscope_clock_changes_total{tickscope_kind="step"}[1m])') > 0
    until(lambda: server.value('increase(tickscope_findings_total{tickscope_symptom="clock_jump"}[1m])') > 0)
    until(lambda: server.value('increase(tickscope_findings_by_cause_total{tickscope_cause="clock_step"}[1m])') > 0)
    # What Prometheus asks for is OpenMetrics, compressed, and it takes all of it.
    assert server.value("scrape_samples_scraped") < 5000
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        capture_output=True,
        text=True,
        input=urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics", timeout=20).read().decode(),
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
