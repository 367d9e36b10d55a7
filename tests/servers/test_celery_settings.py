"""Celery applications with settings that differ from the defaults, on a real redis-server."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent.errors import AgentError
from agent.queues.brokers import celery
from agent.queues.brokers.celery import BROKER, CeleryServer
from agent.queues.packing import TABLE
from agent.queues.queue import Queue
from tests.patience import until
from tests.ports import free_port
from tests.servers.celery_pieces import Worker, application
from tests.servers.certificates import certificates
from tests.servers.polled import poll
from tests.servers.test_celery import reasons, redis, row, state, watch, worker
from tests.servers.test_redis_streams import Redis

__all__ = ["redis", "worker"]

OWN_KEYS = {"sep": ":", "unacked_key": "u1", "unacked_index_key": "u2", "priority_steps": [*range(10)]}


def row_when(queue: Queue, what: Callable[[Any], bool]) -> Any:
    """The queue's row once it is so; a poll a second."""
    return until(lambda: found if what(found := row(queue)) else None, 90, 1, why=lambda: row(queue))


def test_keys_with_other_names(redis: Redis, worker: Callable[..., Worker]) -> None:
    app = application(redis.url, **OWN_KEYS)
    for priority in range(10):
        app.send_task("late", (600,), priority=priority)
    with closing(watch(redis.url, "?queues=celery")) as unaware:
        found = row(unaware)
        assert (found["status"], found["lag_messages"] < 0) == (b"unknown", True)
        assert b"?sep=" in found["reason"]
    with closing(watch(redis.url, "?sep=:&unacked_key=u1&unacked_index_key=u2")) as queue:
        assert state(row(queue)) == (10, 0, 0)
        worker(options=OWN_KEYS)
        until(lambda: redis.do("ZCARD", "u2") == 1)
        until(lambda: state(row(queue)) == (9, 1, 0))


def test_workers_that_end_with_all_messages(redis: Redis, worker: Callable[..., Worker]) -> None:
    """None waits in the queue, yet nothing is done before the visibility timeout."""
    app = application(redis.url)
    app.send_task("late", (600,))
    its = worker()
    until(lambda: its.did("begin"))
    with closing(watch(redis.url, "?workers=true&visibility_timeout=3600")) as queue:
        row_when(queue, lambda found: found["consumers"] == 1)
        its.signal(signal.SIGKILL)
        found = row_when(queue, lambda found: found["status"] == b"stopped")
        assert state(found) == (0, 1, 0)
        assert found["reason"].endswith(b"0 undelivered, 1 pending")


def test_workers_without_remote_control_are_not_counted(redis: Redis, worker: Callable[..., Worker]) -> None:
    app = application(redis.url)
    its = worker(settings={"worker_enable_remote_control": False})
    with closing(watch(redis.url, "?workers=true")) as queue:

        def known(found: Any) -> bool:
            app.send_task("early", (0,))
            return b"control bus" in reasons(queue)

        row_when(queue, known)
        found = row(queue)
        assert its.did("end")
        assert found["consumers"] < 0
        assert found["status"] == b"ok"


@pytest.mark.parametrize(
    ("options", "settings", "query"),
    [
        ({"fanout_prefix": "/mine/{db}."}, {}, "&fanout_prefix=/mine/{db}."),
        ({"fanout_prefix": False}, {}, "&fanout_prefix=false"),
        ({"fanout_patterns": False}, {}, ""),
        ({}, {"control_exchange": "shop"}, "&control_exchange=shop"),
    ],
)
def test_workers_with_another_control_bus(
    redis: Redis, worker: Callable[..., Worker], options: Any, settings: Any, query: str
) -> None:
    its = worker(options=options, settings=settings)
    with closing(watch(redis.url, f"?workers=true{query}")) as queue:
        found = row_when(queue, lambda found: found["consumers"] == 1)
        assert found["workers"] == f"{its.name} {its.process.pid}".encode()


def test_workers_that_reply_in_pickle_are_not_read(
    redis: Redis, worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("C_FORCE_ROOT", "1")
    worker(settings={"task_serializer": "pickle", "accept_content": ["json", "pickle"]})
    with closing(watch(redis.url, "?workers=true")) as queue:
        until(lambda: b"1 workers replied in application/x-python-serialize" in reasons(queue))
        assert row(queue)["consumers"] < 0


def test_a_queue_with_messages_and_without_a_binding(redis: Redis) -> None:
    """A producer of the default exchange goes on after the keys were flushed, and declares nothing."""
    app = application(redis.url)
    with closing(watch(redis.url)) as queue:
        app.send_task("early", (0,))
        assert state(row(queue)) == (1, 0, 0)
        redis.do("DEL", "_kombu.binding.celery")
        app.send_task("early", (0,))
        assert state(row(queue)) == (2, 0, 0)
        redis.do("DEL", "celery")
        assert state(row(queue)) == (0, 0, 0)
        (alone,) = poll(queue)
        assert alone["destination"] == b""


def bind(redis: Redis, exchange: str, key: str, pattern: str, queue: str) -> None:
    redis.do("SADD", f"_kombu.binding.{exchange}", f"{key}\x06\x16{pattern}\x06\x16{queue}")


def hold(redis: Redis, tag: str, exchange: str, key: str) -> None:
    """A message that a worker has taken."""
    redis.do("HSET", "unacked", tag, json.dumps([{"headers": {}, "properties": {}}, exchange, key]))
    redis.do("ZADD", "unacked_index", f"{time.time()}", tag)


def test_more_queues_than_are_watched_are_reported_whatever_their_exchanges(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each queue has an exchange of its own, as Celery makes them."""
    monkeypatch.setattr(celery, "MAX_QUEUES", 3)
    for name in "abc":
        bind(redis, name, name, "", name)
    with closing(watch(redis.url)) as queue:
        assert b"more than 3" not in reasons(queue)
        bind(redis, "d", "d", "", "d")
        assert b"more than 3 queues" in reasons(queue)


def test_a_message_of_which_several_queues_got_a_copy_is_counted_for_none(redis: Redis) -> None:
    """A topic exchange. Both copies have the same exchange and routing key."""
    bind(redis, "news", "news.*", r"^news\.[^\.]+$", "all")
    bind(redis, "news", "news.eu", r"^news\.eu$", "eu")
    for tag in "12":
        hold(redis, tag, "news", "news.eu")
    hold(redis, "3", "news", "news.us")
    with closing(watch(redis.url)) as queue:
        assert {name: row(queue, name)["pending"] for name in ("all", "eu")} == {"all": 1, "eu": 0}
        assert all(
            b"queue of some messages is not known" in row(queue, name)["inexact_reason"] for name in ("all", "eu")
        )


def test_a_time_of_delivery_that_is_none_spoils_no_other(redis: Redis) -> None:
    bind(redis, "celery", "celery", "", "celery")
    for tag in "12":
        hold(redis, tag, "celery", "celery")
    redis.do("ZADD", "unacked_index", "1e300", "2")
    with closing(watch(redis.url, "?visibility_timeout=60")) as queue:
        found = row(queue)
        assert (state(found), found["inexact_reason"]) == ((0, 1, 0), b"pending: 1 of 2 unacknowledged not read")


def test_a_task_that_is_broadcast_to_all_workers_lacks_no_queue(redis: Redis) -> None:
    bind(redis, "celery", "celery", "", "celery")
    bind(redis, "everyone", "", "", "bcast.5ad0")
    hold(redis, "1", "everyone", "")
    with closing(watch(redis.url)) as queue:
        for _ in range(2):
            assert b"belong to no queue" not in reasons(queue)
        hold(redis, "2", "celery", "gone")
        reasons(queue)
        assert b"1 unacknowledged messages belong to no queue" in reasons(queue)


def denied(redis: Redis) -> int:
    """How many commands the server has refused."""
    return sum(one[1] for one in redis.do("ACL", "LOG"))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("refused", "rule", "column"),
    [
        (["-llen"], b"+llen", "lag_messages"),
        (["-zrange"], b"+zrange", "pending"),
        (["-publish"], b"+publish", "consumers"),
        (["resetchannels"], b"&/0.celery.pidbox", "consumers"),
    ],
)
def test_a_refused_command_names_the_rule(redis: Redis, refused: list[str], rule: bytes, column: str) -> None:
    application(redis.url).send_task("early", (0,))
    redis.do("ACL", "SETUSER", "mon", "on", ">pw", "allkeys", "allchannels", "+@all", *refused)
    with closing(watch(redis.url.replace("//", "//mon:pw@"), "?workers=true")) as queue:
        poll(queue)
        refusals = denied(redis)
        rows = [poll(queue) for _ in range(4)][-1]
        (found,) = [one for one in rows if one["destination"] == b"celery"]
        (row,) = [one for one in rows if one["reason"].startswith(b"refused by the ACL")]
        assert (found[column] < 0, row["reason"]) == (True, b"refused by the ACL; ACL SETUSER mon " + rule)
        assert (row["status"], TABLE.by_name["failure"].names[row["failure"]]) == (b"unknown", "permission")
        assert denied(redis) == refusals > 0


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[str]:
    """The address of a server with a certificate of a private authority, ``ca.pem``."""
    certificates(tmp_path)
    port = free_port()
    files = {"cert": "server.pem", "key": "server.key", "ca-cert": "ca.pem"}
    options = [part for name, file in files.items() for part in (f"--tls-{name}-file", str(tmp_path / file))]
    with Redis(tmp_path, "--tls-port", str(port), "--tls-auth-clients", "no", *options):
        yield f"rediss://127.0.0.1:{port}/0"


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ("?ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs={0}/ca.pem", b"ok", b""),
        ("", b"down", b"verify failed: set `ssl_ca_certs=` to its authority ("),
        ("?ssl_ca_certs={0}/other.pem", b"down", b"verify failed: set `ssl_ca_certs=` to its authority ("),
        ("?ssl_ca_certs={0}/none", b"down", b"ssl_ca_certs"),
    ],
)
def test_a_private_authority(secure: str, tmp_path: Path, options: str, status: bytes, words: bytes) -> None:
    with closing(watch(secure, options.format(tmp_path))) as queue:
        (found,) = poll(queue)
    assert found["status"] == status
    assert words in found["reason"]


@pytest.mark.parametrize(
    ("url", "path", "db"),
    [
        ("redis+socket:///run/redis.sock", "/run/redis.sock", 0),
        ("redis+socket://:pw@/run/redis.sock?virtual_host=3&queues=a", "/run/redis.sock", 3),
    ],
)
def test_a_socket_as_celery_writes_it(url: str, path: str, db: int) -> None:
    server = CeleryServer.parse(url)
    assert (server.redis.path, server.redis.db) == (path, db)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("sentinel://:pw@a:26379;sentinel://:pw@b:26379", "redis+sentinel://HOST:26379,HOST2:26379/SERVICE/DB"),
        ("redis://:pw@a:6379/0;redis://:pw@b:6379/0", "list of brokers: name each server by itself"),
        ("rediss://:pw@host/0?ssl_cert_reqs=none", "always verified"),
        ("redis://:pw@host/0?ssl_ca_certs=/ca.pem", "unknown option 'ssl_ca_certs'"),
    ],
)
def test_what_is_written_for_celery_and_cannot_be_used_is_refused(url: str, why: str) -> None:
    with pytest.raises(AgentError) as error:
        BROKER.sources([url])
    assert why in str(error.value.why)
    assert "pw" not in f"{error.value} {error.value.why}"
