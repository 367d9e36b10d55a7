"""Servers in the settings that cannot be used: each kind of broker refuses them, and no message has the password."""

from __future__ import annotations

from typing import Any

import pytest

from agent.errors import AgentError
from agent.queues.catalogue import broker

REFUSED: dict[str, list[Any]] = {
    "etcd": [
        "etcd://u:pw@h",
        "http://u:pw@",
        "http://u:pw@h,",
        "http://u:pw@h:0",
        "http://u:pw@h?copy=x:pw@y",
        "http://u:pw@h?keys=a",
    ],
    "nats": [
        "nats://u:pw@h:4222",
        "http://u:pw@",
        "http://u:pw@h:0",
        "http://u:pw@h?stream=a",
        "http://u:pw@h?client=x",
        {"url": "http://u:pw@h", "user": "u"},
        {"url": "http://h", "password_variable": "NATS_pw"},
    ],
    "postgresql": [
        "mysql://u:pw@h",
        "postgresql://u:pw@",
        "postgresql://u:pw@h:0",
        "postgresql://u:pw@h:99999/d",
        "postgresql://u:pw@h/d?sslmode=maybe",
        "postgresql://u:pw@h/d?application_name=x",
        "postgresql://u:pw@h/d/e",
        "postgresql:///d?host=relative",
        {},
        {"url": "postgresql://u:pw@h", "password_file": "/a"},
        {"url": "postgresql://h", "password_file": "/a", "password_variable": "TICKSCOPE_POSTGRESQL_PW"},
        {"url": "postgresql://h", "password_variable": "PW"},
        {"url": "postgresql://h", "key_file": "/a"},
        {"url": "postgresql://h", "ca_file": "relative"},
        {"url": "postgresql://h", "slots": False},
        {"url": "postgresql://h", "jobs": "nothing"},
    ],
    "queues_from": [
        "ftp://u:pw@h/#name=a&length=b",
        "http://u:pw@h:99999/#name=a&length=b",
        "http://u:pw@h/metrics",
        "http://u:pw@h/metrics#length=b",
        "http://u:pw@h/metrics#name=a",
        "http://u:pw@h/metrics#name=a&length=b&other=c",
        "http://u:pw@h/metrics#name=a&length=b{c}",
        {"url": "http://u:pw@h/metrics", "queues": []},
        {"url": "http://u:pw@h/metrics", "queues": [{"name": "a", "length": "b", "pending": "/c"}]},
        {"url": "http://u:pw@h", "queues": [{"name": "a", "length": "b"}, {"name": "a", "length": "/c"}]},
        {"url": "http://u:pw@h", "queues": [{"name": "a", "length": "b", "oldest_s": "c", "oldest_at_s": "d"}]},
        {"url": "http://h", "queues": [{"name": "a", "length": "b"}], "password_variable": "PW"},
        {"queues": [{"name": "a", "length": "b"}]},
    ],
    "rabbitmq": [
        "redis://h",
        "http://:pw@",
        "http://u:pw@h:0",
        "http://u:pw@h:99999",
        "http://u:pw@h?queue=a",
        "http://u:pw@h?amqp=x",
        "http://u:pw@h/metrics",
        "http://u:pw@h?management=0",
    ],
    "redis": [
        "http://x",
        "redis://h:nan/0",
        "redis://h/zero",
        "redis://:pw@h/0?stream=a",
        "unix://",
    ],
}


@pytest.mark.parametrize(("kind", "server"), [(kind, one) for kind, those in REFUSED.items() for one in those])
def test_a_server_that_cannot_be_used_is_refused_without_its_password(kind: str, server: Any) -> None:
    with pytest.raises(AgentError) as error:
        broker(kind).sources([server])
    assert "pw" not in str(error.value)
