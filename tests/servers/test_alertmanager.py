"""Findings as alerts of a real Alertmanager: they fire, notify, and end, also while the node's clock is wrong."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from agent.common.places import PLACE
from exporters import alertmanager, lane
from tests.found import HOSTILE, PLACES, finding, hostile
from tests.patience import until
from tests.servers.alertmanager import PROGRAM, Alertmanager, Receiver, notifying, one_route

pytestmark = [
    pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"{PROGRAM} is not installed"),
    pytest.mark.usefixtures("own_clock"),
]


@pytest.mark.parametrize("prefix", ["", "/am"])
def test_an_open_finding_fires_and_a_closed_one_is_resolved(tmp_path: Path, receiver: Receiver, prefix: str) -> None:
    with Alertmanager(tmp_path, one_route(receiver), prefix) as server:
        with notifying(server.url, labels={"cluster": "eu-1"}, runbook_url="https://wiki.example/{alert}") as sink:
            sink.offer(finding("n", severity="notice"))
            sink.offer(finding("a", culprit_pid=7, **PLACES))
            until(receiver.to)
            (alert,) = server.alerts()
            assert alert["labels"] == {
                "alertname": "TickscopeFinding",
                "instance": "node-7",
                "host_name": "node-7",
                "severity": "warning",
                "incident": "process_stopped redis-server on node-7",
                "cluster": "eu-1",
                "k8s_namespace_name": "shop",
                "k8s_pod_name": "api-7c9d",
                "k8s_container_name": "api",
                "container_image_name": "shop:1.4",
                "container_id": "c" * 64,
                "tickscope_finding_id": "a",
                "tickscope_symptom": "decision_latency",
                "tickscope_cause": "process_stopped",
                "tickscope_culprit_comm": "redis-server",
                "tickscope_culprit_unit": "redis.service",
            }
            assert alert["annotations"]["summary"] == "Decisions of limiter shop:api took up to 2 s"
            assert alert["annotations"]["command"] == "tickscope explain a"
            assert alert["annotations"]["runbook_url"] == "https://wiki.example/TickscopeFinding"
            assert alert["generatorURL"] == "https://link.example/a"
            started = datetime.fromisoformat(alert["startsAt"]).timestamp()
            assert 2.5 < time.time() - started < 30
            assert receiver.to()[0]["status"] == "firing"
            sink.offer(finding("a", "closed"))
            until(lambda: receiver.to()[-1]["status"] == "resolved")
            assert server.alerts() == []
            assert sink.state()["endpoint"] == f"http://127.0.0.1:{server.port}"
        assert sum(sink.losses().values()) == 0


def test_a_short_finding_notifies_too(tmp_path: Path, receiver: Receiver) -> None:
    with Alertmanager(tmp_path, one_route(receiver)) as server, notifying(server.url, hold_s=3) as sink:
        sink.offer(finding("a", "closed"))
        until(receiver.to)
        assert receiver.to()[0]["status"] == "firing"
        until(lambda: receiver.to()[-1]["status"] == "resolved")


def test_a_cause_that_becomes_clearer_replaces_the_alert(tmp_path: Path, receiver: Receiver) -> None:
    with Alertmanager(tmp_path, one_route(receiver)) as server, notifying(server.url) as sink:
        sink.offer(finding("a", cause="unknown", culprit_comm=""))
        until(server.alerts)
        sink.offer(finding("a"))
        until(lambda: [one["labels"]["tickscope_cause"] for one in server.alerts()] == ["process_stopped"])


def test_harm_that_lasts_becomes_critical(tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by the rule TickscopeFinding."""
    monkeypatch.setattr(alertmanager, "CRITICAL_AFTER_S", 3)
    with Alertmanager(tmp_path, one_route(receiver)) as server, notifying(server.url, resend_s=0.5) as sink:
        sink.offer(finding("slow"))
        sink.offer(finding("harm", symptom="service_errors"))
        sink.offer(finding("meant", symptom="refusals", cause="load"))

        def severities() -> set[tuple[str, str]]:
            labels = [one["labels"] for one in server.alerts()]
            return {(one["tickscope_finding_id"], one["severity"]) for one in labels}

        others = {("slow", "warning"), ("meant", "warning")}
        until(lambda: severities() == {*others, ("harm", "warning")})
        until(lambda: severities() == {*others, ("harm", "critical")})
        sink.offer(finding("harm", symptom="service_errors"))
        until(lambda: not sink.waiting())
        assert severities() == {*others, ("harm", "critical")}
        sink.offer(finding("harm", "closed", symptom="service_errors"))
        until(lambda: severities() == others)


@pytest.mark.parametrize("by_s", [3600.0, -3600.0])
def test_the_alert_of_a_clock_that_jumped_fires_and_ends(tmp_path: Path, receiver: Receiver, by_s: float) -> None:
    """By the node's clock it would begin in Alertmanager's future, or have ended long ago."""
    with Alertmanager(tmp_path, one_route(receiver)) as server, notifying(server.url, 3, by_s) as sink:
        until(lambda: sink._webhook.server_time)
        sink.offer(finding("a", cause="clock_step", symptom="clock_jump"))
        until(receiver.to)
        (alert,) = server.alerts()
        assert (alert["labels"]["incident"], alert["labels"]["alertname"]) == ("clock", "TickscopeClockJump")
        assert abs(datetime.fromisoformat(alert["startsAt"]).timestamp() - time.time()) < 30
        sink.offer(finding("a", "closed", cause="clock_step", symptom="clock_jump"))
        until(lambda: receiver.to()[-1]["status"] == "resolved")
        assert sink.losses()["rejected"] == 0


def test_open_alerts_are_sent_again_and_end_with_the_agent(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "_BACKOFF_S", (0.05, 0.2))
    with Alertmanager(tmp_path, one_route(receiver, "3s")) as server:
        with notifying(server.url, resend_s=0.5) as sink:
            sink.offer(finding("a"))
            until(receiver.to)
            time.sleep(4)  # longer than resolve_timeout
            assert [page["status"] for page in receiver.to()] == ["firing"]
            server.end()
            shutil.rmtree(tmp_path / "alertmanager")
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
        of_impacted = ("k8s_namespace_name", "k8s_pod_name", "k8s_container_name", "systemd_unit_name")
        assert alert["labels"]["severity"] == "warning"
        assert all(value.isprintable() for value in alert["labels"].values())
        assert alert["annotations"]["summary"].isprintable()
        assert set(alert["labels"]) == {
            "alertname",
            "instance",
            "host_name",
            "severity",
            "incident",
            *(f"tickscope_{one}" for one in ("finding_id", "symptom", "cause", "culprit_comm", "culprit_object")),
            *of_impacted,
            "container_image_name",
            "container_id",
            *(f"tickscope_culprit_{one}" for one in PLACE),
        }


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alertmanager]:
    with closing(Receiver()) as made, Alertmanager(tmp_path_factory.mktemp("am"), one_route(made)) as server:
        yield server
