"""Settings of receivers of findings: what is refused, and that no message has a URL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.config import Config, resolve
from agent.errors import AgentError
from exporters.notify import _url, start
from exporters.notify_settings import NotifySettings

SECRET = "https://hooks.example/services/T0/B0/hunter2"


def settings(tmp_path: Path, given: dict[str, Any], env: dict[str, str] | None = None) -> NotifySettings:
    file = tmp_path / "t.yaml"
    file.write_text(f"poll_s: 2\nnotify: {json.dumps(given)}\n")
    config = resolve({}, env or {}, str(file))
    assert Config.from_json(json.loads(json.dumps(config.to_json()))).notify == config.notify
    return config.notify


def test_all_is_off_by_default() -> None:
    off = NotifySettings()
    assert (off.journal, off.alertmanager.enabled, off.slack.enabled) == ("off", False, False)
    assert start(off, {}, "", lambda t: t) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"slack": {"url": "hunter2"}}, "must be a URL"),
        ({"slack": {"url": f"{SECRET}\nX: y"}}, "must be a URL"),
        ({"slack": {"url": SECRET, "url_file": "/hunter2"}}, "url and one of url_file"),
        ({"slack": {"url_variable": "hunter2", "url_file": "/hunter2"}}, "url_file and url_variable"),
        ({"slack": {"url_file": "hunter2"}}, "absolute path"),
        ({"alertmanager": {"url": ["http://am:9093", "hunter2"]}}, "must be a URL"),
        ({"alertmanager": {"url": "http://am", "labels": {"a-b": "c"}}}, "is no name of a label"),
        ({"alertmanager": {"url": "http://am", "hold": "later"}}, "must be a time"),
        ({"alertmanager": {"url": "http://am", "runbook_url": "https://x/{name}"}}, "has {name}: known are {alert}"),
        ({"alertmanager": {"url": "http://am", "runbook_url": "/docs"}}, "must be a URL"),
        ({"slack": {"severity": "page"}}, "must be one of notice, alarm"),
        ({"link": "https://x/{pid}"}, "has {pid}"),
        ({"journal": "warning"}, "must be one of off, notice, alarm"),
    ],
)
def test_a_message_names_the_key_and_no_url(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises(AgentError) as error:
        settings(tmp_path, given)
    text = f"{error.value} {error.value.why}"
    assert words in text
    assert "t.yaml:2: " in text
    assert "hunter2" not in text


def test_variables_name_the_receivers(tmp_path: Path) -> None:
    env = {"TICKSCOPE_SLACK_URL": SECRET, "TICKSCOPE_ALERTMANAGER_URL": "http://a:9093, http://b:9093"}
    found = settings(tmp_path, {"journal": False, "slack": {"severity": "notice"}}, env)
    assert (found.slack.url, found.slack.severity) == (SECRET, "notice")
    assert found.alertmanager.url == ("http://a:9093", "http://b:9093")


def test_a_file_is_read_at_each_use(tmp_path: Path) -> None:
    file = tmp_path / "url"
    slack = settings(tmp_path, {"slack": {"url_file": str(file)}}).slack
    for text, wrong in (
        (None, "url_file: No such file"),
        ("", "url_file: it is empty"),
        ("hunter2", "of slack: must be a URL"),
    ):
        if text is not None:
            file.write_text(text)
        with pytest.raises(ValueError, match=wrong) as error:
            _url(slack, "")
        assert "hunter2" not in str(error.value)
    for url in (SECRET, f"{SECRET}3"):
        file.write_text(f"{url}\n")
        assert _url(slack, "") == url


def test_each_receiver_is_a_sink_of_its_own(tmp_path: Path) -> None:
    given = {"journal": "notice", "alertmanager": {"url": ["http://127.0.0.1:9", "http://127.0.0.1:9/am/"]}}
    sinks = start(settings(tmp_path, given), {}, "boot", lambda t: t)
    try:
        assert [sink.name for sink in sinks] == ["journal", "alertmanager_1", "alertmanager_2"]
    finally:
        for sink in sinks:
            sink.close()
