"""Findings as alerts of a real Alertmanager: they fire, notify, and end, also while the node's clock is wrong."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.common.clocks import boot_ns
from agent.common.sentence import ToWall
from exporters import lane
from exporters.alertmanager import AlertmanagerNotifier
from exporters.notify_settings import AlertmanagerSettings
from tests.found import HOSTILE, PLACES, events, finding, hostile
from tests.patience import until
from tests.servers.alertmanager import PROGRAM, Alertmanager, pager

pytestmark = [
    pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"{PROGRAM} is not installed"),
    pytest.mark.usefixtures("own_clock"),
]


def wall_ahead(by_s: float = 0.0) -> ToWall:
    """The wall clock of a node, ahead of ours."""
    return lambda t_ns: t_ns + np.int64(time.time_ns() - boot_ns() + by_s * 1e9)


@contextlib.contextmanager
def notifying(
    url: str, hold_s: float = 0.0, by_s: float = 0.0, resend_s: float = 60.0, **settings: Any
) -> Iterator[AlertmanagerNotifier]:
    sink = AlertmanagerNotifier(
        "alertmanager",
        AlertmanagerSettings(hold_s=hold_s, **settings),
        events(wall_ahead(by_s)),
        wall_ahead(by_s),
        read_url=lambda: url,
        instance="node-7",
        link=lambda one: f"https://link.example/{one.text('finding_id')}",
        resend_s=resend_s,
    )
    sink.start()
    try:
        yield sink
    finally:
        sink.close()


@pytest.mark.parametrize("prefix", ["", "/am"])
def test_an_open_finding_fires_and_a_closed_one_is_resolved(tmp_path: Path, prefix: str) -> None:
    with pager() as (port, pages), Alertmanager(tmp_path, port, prefix=prefix) as server:
        with notifying(server.url, labels={"cluster": "eu-1"}) as sink:
            sink.offer(finding("n", severity="notice"))
            sink.offer(finding("a", culprit_pid=7, **PLACES))
            until(lambda: pages)
            (alert,) = server.alerts()
            assert alert["labels"] == {
                "alertname": "TickscopeFinding",
                "instance": "node-7",
                "severity": "warning",
                "incident": "process_stopped redis-server on node-7",
                "cluster": "eu-1",
                "namespace": "shop",
                "pod": "api-7c9d",
                "container": "api",
                "image": "shop:1.4",
                "container_id": "c" * 64,
                "tickscope_finding_id": "a",
                "tickscope_symptom": "decision_latency",
                "tickscope_cause": "process_stopped",
                "tickscope_culprit_comm": "redis-server",
                "tickscope_culprit_unit": "redis.service",
            }
            assert alert["annotations"]["summary"] == "Decisions of limiter shop:api took up to 2 s"
            assert alert["annotations"]["description"].endswith(": tickscope explain a")
            assert alert["generatorURL"] == "https://link.example/a"
            started = datetime.fromisoformat(alert["startsAt"]).timestamp()
            assert 2.5 < time.time() - started < 30
            assert pages[0]["status"] == "firing"
            sink.offer(finding("a", "closed"))
            until(lambda: pages[-1]["status"] == "resolved")
            assert server.alerts() == []
            assert sink.state()["endpoint"] == f"http://127.0.0.1:{server.port}"
        assert sum(sink.losses().values()) == 0


def test_a_short_finding_notifies_too(tmp_path: Path) -> None:
    with pager() as (port, pages), Alertmanager(tmp_path, port) as server, notifying(server.url, hold_s=3) as sink:
        sink.offer(finding("a", "closed"))
        until(lambda: pages)
        assert pages[0]["status"] == "firing"
        until(lambda: pages[-1]["status"] == "resolved")


def test_a_cause_that_becomes_clearer_replaces_the_alert(tmp_path: Path) -> None:
    with pager() as (port, _), Alertmanager(tmp_path, port) as server, notifying(server.url) as sink:
        sink.offer(finding("a", cause="unknown", culprit_comm=""))
        until(server.alerts)
        sink.offer(finding("a"))
        until(lambda: [one["labels"]["tickscope_cause"] for one in server.alerts()] == ["process_stopped"])


@pytest.mark.parametrize("by_s", [3600.0, -3600.0])
def test_the_alert_of_a_clock_that_jumped_fires_and_ends(tmp_path: Path, by_s: float) -> None:
    """By the node's clock it would begin in Alertmanager's future, or have ended long ago."""
    with pager() as (port, pages), Alertmanager(tmp_path, port) as server, notifying(server.url, 3, by_s) as sink:
        until(lambda: sink._webhook.server_time)
        sink.offer(finding("a", cause="clock_step", symptom="clock_jump"))
        until(lambda: pages)
        (alert,) = server.alerts()
        assert alert["labels"]["incident"] == "clock"
        assert abs(datetime.fromisoformat(alert["startsAt"]).timestamp() - time.time()) < 30
        sink.offer(finding("a", "closed", cause="clock_step", symptom="clock_jump"))
        until(lambda: pages[-1]["status"] == "resolved")
        assert sink.losses()["rejected"] == 0


def test_open_alerts_are_sent_again_and_end_with_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "_BACKOFF_S", (0.05, 0.2))
    with pager() as (port, pages), Alertmanager(tmp_path, port, "3s") as server:
        with notifying(server.url, resend_s=0.5) as sink:
            sink.offer(finding("a"))
            until(lambda: pages)
            time.sleep(4)  # longer than resolve_timeout
            assert [page["status"] for page in pages] == ["firing"]
            server.end()
            shutil.rmtree(tmp_path / "data")
            until(lambda: sink.state()["state"] == "down")
            server.begin()
            until(server.alerts)
            until(lambda: sink.state()["state"] == "ok")
        until(lambda: not server.alerts())  # nobody repeats it


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_a_value_and_nothing_else(shared: Alertmanager, name: str) -> None:
    with notifying(shared.url, hold_s=60) as sink:
        sink.offer(hostile(name, HOSTILE[name]))
        until(lambda: not sink.waiting())
        (alert,) = (one for one in shared.alerts() if one["labels"]["tickscope_finding_id"] == name)
        places = ("namespace", "pod", "container", "image", "unit", "container_id")
        assert alert["labels"]["severity"] == "warning"
        assert all(value.isprintable() for value in alert["labels"].values())
        assert alert["annotations"]["summary"].isprintable()
        assert set(alert["labels"]) == {
            "alertname",
            "instance",
            "severity",
            "incident",
            *(f"tickscope_{one}" for one in ("finding_id", "symptom", "cause", "culprit_comm", "culprit_object")),
            *places,
            *(f"tickscope_culprit_{one}" for one in places),
        }


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alertmanager]:
    with pager() as (port, _), Alertmanager(tmp_path_factory.mktemp("am"), port) as server:
        yield server
