"""Alerts for Alertmanager, as far as no server is needed: tests/servers/test_alertmanager.py has a real one."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from agent.common.alert_labels import RUNBOOK_URL, incident
from exporters import notifier
from exporters.alertmanager import AlertmanagerNotifier, api_url
from exporters.notify_settings import AlertmanagerSettings
from tests.found import INCIDENTS, events, finding
from tests.hostile import serving
from tests.patience import until


@contextlib.contextmanager
def notifying(url: str, **settings: Any) -> Iterator[AlertmanagerNotifier]:
    sink = AlertmanagerNotifier(
        "alertmanager",
        AlertmanagerSettings(**settings),
        events(),
        lambda t_ns: t_ns,
        read_url=lambda: url,
        node={"instance": "node-7:1", "host_name": "node-7"},
        link=lambda _: "",
    )
    sink.start()
    try:
        yield sink
    finally:
        sink.close()


@pytest.mark.parametrize(("cause", "comm", "thing", "words"), INCIDENTS)
def test_alerts_of_one_fault_have_one_incident(cause: str, comm: str, thing: str, words: str) -> None:
    assert incident(cause, comm, thing, "node-7") == words


@pytest.mark.parametrize(
    ("runbook_url", "runbook"),
    [
        (RUNBOOK_URL, "file:///opt/tickscope/docs/runbooks/TickscopeClockJump.md"),
        ("https://wiki.example/{alert}", "https://wiki.example/TickscopeClockJump"),
        ("", None),
    ],
)
def test_an_alert_has_the_name_the_command_and_the_runbook_of_the_rule(runbook_url: str, runbook: str | None) -> None:
    with notifying("http://127.0.0.1:1", runbook_url=runbook_url) as sink:
        sink.offer(finding("a", symptom="clock_jump", subject="wall clock"))
        (alert,) = sink._open.values()
    assert alert.labels["alertname"] == "TickscopeClockJump"
    assert (alert.labels["instance"], alert.labels["host_name"]) == ("node-7:1", "node-7")
    assert alert.annotations["command"] == "tickscope explain a"
    assert alert.annotations["description"] == "clock_jump of wall clock on node-7"
    assert alert.annotations.get("runbook_url") == runbook


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("http://am:9093", "http://am:9093/api/v2/alerts"),
        ("https://u:p@am/prefix/", "https://u:p@am/prefix/api/v2/alerts"),
        ("http://am/api/v2/alerts", "http://am/api/v2/alerts"),
    ],
)
def test_the_api_is_below_the_url(url: str, whole: str) -> None:
    assert api_url(url) == whole


def test_findings_that_cannot_be_sent_are_bounded() -> None:
    with notifying("http://127.0.0.1:1") as sink:
        for n in range(notifier.MOST_WAITING + 50):
            sink.offer(finding(str(n)))
            if n < 100:
                sink.offer(finding(str(n), "closed"))
        assert sink.losses()["queue_full"] == 50
        assert sink.waiting() == notifier.MOST_WAITING
        assert len(sink._open) == notifier.MOST_WAITING - 50  # the ends are dropped first
    assert sink.losses()["shutdown"] == notifier.MOST_WAITING


def test_a_server_that_answers_anything_with_a_page_is_no_alertmanager_and_a_login_is_never_shown() -> None:
    page = b"<html>hello</html>"
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(page)
    requests = list[bytes]()

    def answers(connection: socket.socket) -> None:
        requests.append(connection.recv(65536))
        connection.sendall(head + page)

    with serving(answers) as port, notifying(f"http://user:hunter2@127.0.0.1:{port}") as sink:
        until(lambda: "web page" in str(sink.state()["last_error"]))
        assert sink.state()["endpoint"] == f"http://127.0.0.1:{port}"
        assert "hunter2" not in str(sink.state())
    assert b"authorization: Basic dXNlcjpodW50ZXIy" in requests[0]
