"""One incident makes one notification: a real Prometheus with our rules, a real Alertmanager with our example of
routing, and a webhook.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent.batch import make
from agent.common.alert_labels import RUNBOOK_URL
from agent.tables import TABLES
from dashboards import alerts
from tests.found import INCIDENTS, finding
from tests.patience import PATIENCE, until
from tests.replayed import Replayed, session
from tests.servers.alertmanager import Alertmanager, Receiver, notifying
from tests.servers.prometheus import Prometheus
from tests.unit.test_alerts import jump_events

_ROUTING = Path(alerts.__file__).with_name("alertmanager.yaml")
#: Shorter than in the example: as many scrapes pass as in reality.
_WAIT_S = 5


def config(receiver: Receiver) -> str:
    text = _ROUTING.read_text().replace("127.0.0.1:9095", f"127.0.0.1:{receiver.port}")
    text = re.sub(r"group_wait: \S+", f"group_wait: {_WAIT_S}s", text)
    return re.sub(r"group_interval: \S+", f"group_interval: {_WAIT_S}s", text)


def test_amtool_reads_the_example() -> None:
    done = subprocess.run(["amtool", "check-config", str(_ROUTING)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        ({"severity": "critical"}, "pager"),
        ({"severity": "warning"}, "tickets"),
        ({"severity": "info"}, "nobody"),
        ({}, "tickets"),
    ],
)
def test_severity_chooses_the_receiver(labels: dict[str, str], receivers: str) -> None:
    pairs = [f"{k}={v}" for k, v in labels.items()]
    done = subprocess.run(
        ["amtool", "config", "routes", "test", f"--config.file={_ROUTING}", *pairs], capture_output=True, text=True
    )
    assert done.stdout.strip() == receivers, done.stderr


def test_a_jump_of_two_nodes_is_one_page_and_no_ticket(tmp_path: Path, receiver: Receiver) -> None:
    """On each, a limiter refuses because of it; the jump itself is an alert, too, and inhibited."""
    nodes = {name: Replayed(name) for name in ("web1", "web2")}
    with (
        closing(nodes["web1"].served()) as one,
        closing(nodes["web2"].served()) as two,
        Alertmanager(tmp_path, config(receiver)) as alertmanager,  # first: what fired before it is sent a minute later
        Prometheus(tmp_path, {"web1": one.port, "web2": two.port}, alertmanager.port) as prometheus,
    ):
        until(lambda: prometheus.value("sum(count_over_time(up[1h]))") >= 6)
        for node in nodes.values():
            node.play(jump_events())
        jumps = 'ALERTS{alertstate="firing",alertname="TickscopeClockJump"}'
        until(lambda: len(prometheus.query(jumps)) == 2, 90)
        (page,) = until(lambda: receiver.to("/pager"))
        time.sleep(3 * _WAIT_S * PATIENCE)  # nothing follows
        assert list(receiver.to("/pager")) == [page] and receiver.to("/tickets") == []
        assert page["groupLabels"] == {"incident": "clock"} and page["status"] == "firing"
        assert {(a["labels"]["alertname"], a["labels"]["instance"]) for a in page["alerts"]} == {
            ("TickscopeLimiterRefusesAfterJump", "web1"),
            ("TickscopeLimiterRefusesAfterJump", "web2"),
        }
        assert {a["labels"]["tickscope_culprit_comm"] for a in page["alerts"]} == {"chronyd"}
        assert all(a["annotations"]["runbook_url"].endswith(".md") for a in page["alerts"])


def test_faults_of_two_kinds_are_two_tickets(tmp_path: Path, receiver: Receiver) -> None:
    """tickscope loses records on one node, and on the other the consumers of a queue hold all they may."""
    nodes = {name: Replayed(name) for name in ("web1", "web2")}
    with (
        closing(nodes["web1"].served()) as one,
        closing(nodes["web2"].served()) as two,
        Alertmanager(tmp_path, config(receiver)) as alertmanager,
        Prometheus(tmp_path, {"web1": one.port, "web2": two.port}, alertmanager.port) as prometheus,
    ):
        until(lambda: prometheus.value("sum(count_over_time(up[1h]))") >= 6)
        nodes["web1"].offer(make("loss", 1, t_ns=1, stage=TABLES["loss"].code("stage", "ring"), source=b"tcp", count=9))
        nodes["web2"].play(session("4038-0"))
        until(lambda: len(receiver.to("/tickets")) == 2, 150)
        found = {
            n["groupLabels"]["incident"]: {a["labels"]["alertname"] for a in n["alerts"]}
            for n in receiver.to("/tickets")
        }
        assert found == {
            "tickscope": {"TickscopeLosesRecords"},
            "prefetch_full on web2": {"TickscopeFinding"},
        }
        assert receiver.to("/pager") == []


def test_alerts_of_rules_and_of_the_agent_have_the_same_incident_and_severity(
    tmp_path: Path, receiver: Receiver
) -> None:
    """However the scrape calls the node: here by the address of its page."""
    node = Replayed("node-7")
    with (
        closing(node.served()) as page,
        Alertmanager(tmp_path, config(receiver)) as alertmanager,
        Prometheus(tmp_path, {f"127.0.0.1:{page.port}": page.port}, alertmanager.port) as prometheus,
        notifying(alertmanager.url) as sink,
    ):
        until(lambda: prometheus.value("sum(count_over_time(up[1h]))") >= 2)
        for number, (cause, comm, thing, _) in enumerate(INCIDENTS):
            found = finding(f"f{number}", cause=cause, culprit_comm=comm, culprit_object=thing)
            node.offer(found)
            sink.offer(found)
        until(lambda: len(alertmanager.alerts()) == 2 * len(INCIDENTS), 90)
        labels = [alert["labels"] for alert in alertmanager.alerts()]
        names = ("tickscope_cause", "tickscope_culprit_comm", "tickscope_culprit_object", "incident", "severity")
        expected = Counter({(*one, "warning"): 2 for one in INCIDENTS})
        assert Counter(tuple(one.get(name, "") for name in names) for one in labels) == expected
        assert {(one["alertname"], one["host_name"]) for one in labels} == {("TickscopeFinding", "node-7")}
        assert {one["instance"] for one in labels} == {"node-7", f"127.0.0.1:{page.port}"}
        assert sum("tickscope_finding_id" in one for one in labels) == len(INCIDENTS)  # of the agent only
        texts = [alert["annotations"] for alert in alertmanager.alerts()]
        commands = Counter({f"tickscope explain f{number}": 2 for number in range(len(INCIDENTS))})
        assert Counter(one["command"] for one in texts) == commands
        assert {one["runbook_url"] for one in texts} == {RUNBOOK_URL.replace("{alert}", "TickscopeFinding")}


def test_a_page_of_one_way_inhibits_the_tickets_of_the_other(tmp_path: Path, receiver: Receiver) -> None:
    """A queue will overflow, says a rule; the agent itself reports the lag as a finding, on the same node only."""
    node = Replayed("node-7")
    queue: dict[str, Any] = {"system": b"celery", "destination": b"orders", "status": b"lagging", "limit_in_s": 60.0}
    with (
        closing(node.served()) as page,
        Alertmanager(tmp_path, config(receiver)) as alertmanager,
        Prometheus(tmp_path, {f"127.0.0.1:{page.port}": page.port}, alertmanager.port) as prometheus,
        notifying(alertmanager.url) as sink,
    ):
        overflows = 'ALERTS{alertstate="firing",alertname="TickscopeQueueWillOverflow",host_name="node-7"}'
        node.offer(make("queue_lag", 1, t_ns=1, **queue))
        until(lambda: prometheus.query(overflows), 150)
        until(lambda: receiver.to("/pager"))
        lag = {"symptom": "queue_lag", "subject": "celery queue orders", "cause": "consumer_slow"}
        sink.offer(finding("f", **lag, culprit_comm="worker"))
        until(lambda: any(alert["status"]["inhibitedBy"] for alert in alertmanager.alerts()))
        assert receiver.to("/tickets") == []
