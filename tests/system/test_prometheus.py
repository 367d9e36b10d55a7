"""A real Prometheus server scrapes a real, fresh agent with our rules: the first event of a kind is seen, and the rule
fires.
"""

from __future__ import annotations

import math
import random
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dashboards.boards import dashboard
from tests.patience import until
from tests.ports import free_port
from tests.servers.prometheus import Prometheus
from tests.servers.test_boards import chosen
from tests.servers.test_redis_streams import Redis
from tests.system.agent import TICKSCOPE, Agent
from tests.system.test_notices import step

#: Boards whose panels have data on any node that has just been started, but for these panels.
_AT_ONCE = {
    "clocks": {
        "Size of jumps, p99",
        "Clock changes, by process",
        "Offset by source",
        "Answers of sources (255: all)",
        "Root distance",
        "Stratum",
        "Frequency correction, by the daemon",
    },
    "agent": {
        "Records lost",
        *("Sent over OTLP", "Rows not sent as spans"),  # no collector is configured
        *("Findings sent to receivers", "Requests with findings that failed", "Events of findings that were dropped"),
        "State of receivers",
    },
}


#: ... and those that have data beside the demo's workload and a stream of Redis, but for these.
_BESIDE_THE_DEMO: dict[str, set[str]] = {
    "overview": set(),
    "limiters": {"Wrongly refused after a jump", "Admitted too many after a jump"},
    "queues": {
        *("Out of order", "Duplicates", "Bytes behind (write-ahead logs)", "Waiting for a set time"),
        *("Time until redelivery", "Time until deleted for its age", "Time until full, or deleted unread"),
        *("Time until empty", "Consumers' capacity"),
    },
    "findings": set(),
}


@pytest.fixture
def scraped(start: Callable[..., Agent], tmp_path: Path) -> Iterator[tuple[Agent, Prometheus, int]]:
    page = free_port()
    # The steps of these tests are of 1 us: smaller ones than 128 ms are alarms only because of the threshold.
    agent = start(config=f"prometheus: 127.0.0.1:{page}\njump_threshold: 500ns\n").ready()
    with Prometheus(tmp_path, {"web1": page}) as server:
        yield agent, server, page


@pytest.mark.usefixtures("own_clock")
def test_rules_fire_at_the_first_event(scraped: tuple[Agent, Prometheus, int]) -> None:
    agent, server, page = scraped
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
    # The alert names who did it, and its command leads to the finding.
    (jump,) = until(lambda: server.query('tickscope_finding_open{tickscope_symptom="clock_jump"}'))
    assert jump["metric"]["tickscope_cause"] == "clock_step" and jump["metric"]["tickscope_culprit_comm"]
    (alert,) = (a for a in server.get("alerts")["alerts"] if a["labels"]["alertname"] == "TickscopeClockJump")
    verb, its_id = alert["annotations"]["command"].split()[1:]
    assert agent.cli(verb, its_id).stdout
    assert {(r["name"], r["health"]) for r in server.rules()} == {(r["name"], "ok") for r in server.rules()}
    # What Prometheus asks for is OpenMetrics, compressed, and it takes all of it.
    assert server.value("scrape_samples_scraped") < 5000
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        capture_output=True,
        text=True,
        input=urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics", timeout=20).read().decode(),
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("board", _AT_ONCE)
def test_panels_have_data_of_a_fresh_agent(scraped: tuple[Agent, Prometheus, int], board: str) -> None:
    _, server, _ = scraped
    until(lambda: _empty(server, board) <= _AT_ONCE[board], why=lambda: _empty(server, board))


def test_panels_have_data_beside_the_demo_and_a_queue(start: Callable[..., Agent], tmp_path: Path) -> None:
    page = free_port()
    with Redis(tmp_path) as redis, Prometheus(tmp_path, {"web1": page}) as server, queued(redis), unanswered():
        agent = start(config=f"prometheus: 127.0.0.1:{page}\nredis: [{redis.url}]\n").ready()
        without: dict[str, set[str]] = {}

        def done() -> bool:
            for board in _BESIDE_THE_DEMO:
                empty = _empty(server, board)
                without[board] = without.get(board, empty) & empty
            return all(empty <= _BESIDE_THE_DEMO[board] for board, empty in without.items())

        with subprocess.Popen(
            [TICKSCOPE, "demo", "--duration", "90s"], env=agent.env, stdout=subprocess.DEVNULL
        ) as demo:
            try:
                until(done, 90, why=lambda: without)
            finally:
                demo.send_signal(signal.SIGINT)


@contextmanager
def unanswered() -> Iterator[None]:
    """Connects that nobody accepts: their SYNs are sent again."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        clients = [socket.socket() for _ in range(8)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield
        for client in clients:
            client.close()


@contextmanager
def queued(redis: Redis) -> Iterator[None]:
    """A stream, and a group that falls behind and leaves messages unacknowledged."""
    redis.do("XGROUP", "CREATE", "orders", "billing", "0", "MKSTREAM")
    ends = threading.Event()

    def work() -> None:
        while not ends.wait(0.05):
            redis.do("XADD", "orders", "*", "k", "v")
            redis.do("XADD", "orders", "*", "k", "v")
            for _, entries in (
                redis.do("XREADGROUP", "GROUP", "billing", "c1", "COUNT", "1", "STREAMS", "orders", ">") or ()
            ):  # type: ignore[attr-defined]
                if random.random() < 0.8:
                    redis.do("XACK", "orders", "billing", entries[0][0])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def _empty(server: Prometheus, board: str) -> set[str]:
    """Panels without data."""
    panels = [p for p in dashboard(board)["panels"] if "targets" in p]
    return {p["title"] for p in panels if not _numbers(server.query(chosen(p["targets"][0]["expr"])))}


def _numbers(found: list[dict[str, Any]]) -> list[float]:
    return [n for one in found if not math.isnan(n := float(one["value"][1]))]
