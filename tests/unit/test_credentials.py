"""Passwords in sections of the settings and in flags: what is refused, and that no message has them."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent.common.credentials import has_password
from agent.config import resolve
from agent.errors import AgentError
from agent.limiters.redis_settings import broker_ports
from agent.queues import catalogue

ROOT = Path(__file__).parents[2]
ADDRESSES = {
    "celery": {"url": "redis://h"},
    "etcd": {"url": "http://h"},
    "kafka": {"servers": "h:1", "user": "u"},
    "nats": {"url": "http://h"},
    "postgresql": {"url": "postgresql://h"},
    "queues_from": {"url": "http://h", "queues": [{"name": "a", "length": "b"}]},
    "rabbitmq": {"url": "http://h"},
    "redis": {"url": "redis://h"},
}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"password": "hunter2"}, "there is no setting"),
    ({"password_variable": "hunter2"}, "password_variable cannot be used"),
    ({"password_file": "hunter2"}, "password_file cannot be used"),
    ({"password_credential": "/hunter2"}, "password_credential cannot be used"),
    ({"password_file": ["hunter2"]}, "password_file cannot be used"),
    ({"password_file": "/hunter2", "password_credential": "c"}, "password_file and password_credential"),
    ({"url": ["redis://:hunter2@h"]}, "url"),
    ({"servers": ["u:hunter2@h"]}, "servers"),
]


def test_each_kind_has_a_section_with_the_same_keys() -> None:
    assert set(catalogue.names()) == set(ADDRESSES)


@pytest.mark.parametrize("kind", ADDRESSES)
@pytest.mark.parametrize(("more", "words"), WRONG)
def test_a_message_names_the_key_and_no_value(kind: str, more: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    given = {**ADDRESSES[kind], **more}
    file.write_text("poll_s: 2\n" + f"{kind}: [{given}]\n")
    with pytest.raises(AgentError) as error:
        resolve({}, {}, str(file))
    text = f"{error.value} {error.value.why}"
    assert words in text
    assert "t.yaml:2" in text
    assert "hunter2" not in text


@pytest.mark.parametrize("kind", sorted(set(ADDRESSES) - {"kafka"}))  # Kafka's own id is always known
def test_a_section_may_name_the_cluster(kind: str) -> None:
    given = {**ADDRESSES[kind], "cluster": "shop"}
    (source,) = catalogue.broker(kind).sources([{**given, "url": given["url"].replace("//h", "//127.0.0.1:1")}])
    with closing(source):
        assert {row["cluster"] for row in source.poll()} == {"shop"}


@pytest.mark.parametrize("kind", ["celery", "redis"])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "it has no url"),
        ({"url": "redis://:hunter2@h", "user": "u"}, "a password in its url and a login in the section"),
        ({"url": "redis://:hunter2@h", "password_file": "/p"}, "a password in its url and a login in the section"),
        ({"url": "redis://:hunter2@h:x"}, "cannot be read"),
        ({"url": "redis://h", "user": "u"}, "a user but no password"),
        ({"url": "redis://h", "ca_file": "/ca.pem"}, "its url does not begin with rediss://"),
        ({"url": "rediss://h", "key_file": "/key.pem"}, "a key_file but no certificate_file"),
    ],
)
def test_keys_that_do_not_fit_together(kind: str, given: dict[str, str], words: str) -> None:
    with pytest.raises(AgentError) as error:
        catalogue.broker(kind).server(given)
    text = f"{error.value} {error.value.why}"
    assert words in text
    assert "hunter2" not in text


def test_ports_of_sections_are_ports_of_redis() -> None:
    servers = {
        "redis": [{"url": "redis://h:7001"}, "redis://h:7002"],
        "celery": [{"url": "rediss://h:7003/0?queues=a"}],
    }
    assert broker_ports(servers) == {7001, 7002, 7003}


@pytest.mark.parametrize(
    ("server", "has"),
    [
        ("redis://:pw@h", True),
        ("redis+sentinel://a,b/s?sentinel_password=pw", True),
        ("http://u:pw@h:1,h2:2?copy=http://h3", True),
        ("http://h?copy=http://u:pw@h3", True),
        ("redis://u@h:6379/0?streams=a:b@c", False),
        ("kafka://h:1,h:2", False),
        ("redis://h", False),
    ],
)
def test_a_url_with_a_password(server: str, has: bool) -> None:
    assert has_password(server) is has


def test_a_password_in_a_flag_is_warned_about_and_not_shown() -> None:
    flags = ["--redis", "redis://u:hunter2@h", "--celery", "redis://h", "--config", "/nonexistent"]
    done = subprocess.run(
        [sys.executable, "-c", "from agent.cli import main; main()", "run", *flags],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd="/",
        check=False,
    )
    warnings = [line for line in done.stderr.splitlines() if "has a password" in line]
    assert len(warnings) == 1
    assert warnings[0].startswith("tickscope: --redis has a password: it is visible in ps")
    assert "hunter2" not in done.stdout + done.stderr
