"""The brokers of a node are found by their sockets and processes, and none is asked anything."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent import doctor
from agent.queues.catalogue import Broker, broker, names
from agent.queues.discover import KINDS, FoundBroker, _hosts, _kind, _same, _server, discover
from tests.commands import tickscope_text
from tests.patience import until
from tests.ports import free_ports
from tests.servers.test_redis_streams import Redis


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with Redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


def here(port: int, **servers: tuple[object, ...]) -> FoundBroker:
    (found,) = (one for one in discover(servers) if one.port == port)
    return found


def test_a_broker_is_known_by_its_process_whatever_its_port(redis: Redis) -> None:
    found = here(redis.port)
    assert (found.system, found.address, found.how, found.by) == (
        "redis",
        f"127.0.0.1:{redis.port}",
        "listens",
        "process",
    )
    assert [one.pid for one in found.processes] == [redis.process.pid]
    assert found.setting == f"redis: ['redis://127.0.0.1:{redis.port}']"
    assert str(redis.do("INFO", "stats")).count("total_connections_received:2") == 1  # Redis.start's, and this one


@pytest.mark.parametrize(
    ("server", "configured"),
    [
        ("redis://127.0.0.1:{}/0", True),
        ("redis://:secret@localhost:{}/0?streams=a,b", True),
        ({"url": "redis://127.0.0.2:{}"}, True),
        ("redis://192.0.2.1:{}", False),
        ("redis://127.0.0.1:1", False),
    ],
)
def test_what_the_settings_name_is_configured(redis: Redis, server: object, configured: bool) -> None:
    filled = (
        {k: v.format(redis.port) for k, v in server.items()}
        if isinstance(server, dict)
        else str(server).format(redis.port)
    )
    assert here(redis.port, redis=(filled,)).configured is configured
    assert not here(redis.port, kafka=(filled,)).configured


@pytest.mark.parametrize(("port", "system"), [(4222, "nats"), (5671, "rabbitmq")])
def test_a_broker_elsewhere_is_known_by_its_port_and_a_listener_without_a_known_process_too(
    port: int, system: str
) -> None:
    with socket.create_server(("127.0.0.9", port)) as server, socket.create_connection(("127.0.0.9", port)):
        found = [one for one in discover({}) if one.address == f"127.0.0.9:{port}"]
        assert [(one.system, one.how, one.by, one.supported) for one in found] == [
            (system, "listens", "port", system in names())
        ]
        server.accept()[0].close()


def test_the_verb_and_doctor_print_the_setting(redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.yaml").write_text("poll_s: 2\n")
    line = f"redis: ['redis://127.0.0.1:{redis.port}']"
    config = str(tmp_path / "t.yaml")
    done = tickscope_text("queues", "discover", "-o", "json", TICKSCOPE_CONFIG=config)
    (row,) = (row for row in json.loads(done.stdout)["rows"] if row["address"] == f"127.0.0.1:{redis.port}")
    assert (row["setting"], row["configured"], row["process"]) == (line, False, "redis-server")
    shown = tickscope_text("queues", "discover", TICKSCOPE_CONFIG=config)
    assert line in shown.stdout and "add its setting to the settings file" in shown.stderr
    configured = {"TICKSCOPE_CONFIG": config, "TICKSCOPE_REDIS_URL": f"redis://:secret@127.0.0.1:{redis.port}"}
    done = tickscope_text("queues", "discover", "-o", "json", **configured)
    (row,) = (row for row in json.loads(done.stdout)["rows"] if row["address"] == f"127.0.0.1:{redis.port}")
    assert row["configured"] and row["setting"] is None and "secret" not in done.stdout
    monkeypatch.setenv("TICKSCOPE_CONFIG", config)
    assert [one.remedy for one in doctor.unwatched_brokers() if f":{redis.port}:" in one.found] == [
        f"to watch its queues: {line}"
    ]
    monkeypatch.setenv("TICKSCOPE_REDIS_URL", configured["TICKSCOPE_REDIS_URL"])
    assert not [one for one in doctor.unwatched_brokers() if f":{redis.port}:" in one.found]


@pytest.mark.parametrize(
    ("command", "setting"),
    [
        ("nats-server -a 127.0.0.1 -p {0} -m {1}", "nats: ['http://127.0.0.1:{1}']"),
        ("nats-server -a ::1 -p {0} --http_port={1}", "nats: ['http://[::1]:{1}']"),
        ("nats-server -c nats.conf", "nats: ['http://127.0.0.1:{1}']"),
        ("nats-server -a 127.0.0.1 -p {0}", None),
        (
            (
                "etcd --data-dir {2}/a --listen-peer-urls http://127.0.0.1:{0} --listen-client-urls"
                " http://127.0.0.1:{1} --advertise-client-urls http://127.0.0.1:{1}"
            ),
            "etcd: ['http://127.0.0.1:{1}']",
        ),
        ("etcd --config-file {2}/etcd.yml", "etcd: ['http://[::1]:{1}']"),
        ("redis-server --port {1} --bind ::1", "redis: ['redis://[::1]:{1}']"),
    ],
)
def test_the_setting_names_the_port_that_is_asked(tmp_path: Path, command: str, setting: str | None) -> None:
    """Which is not the lowest one, and not the usual one."""
    first, second = sorted(free_ports(2))
    (tmp_path / "nats.conf").write_text(f"listen: 127.0.0.1:{first}\n  http: 127.0.0.1:{second}\n")
    (tmp_path / "etcd.yml").write_text(
        f"data-dir: {tmp_path}/b\nlisten-peer-urls: http://127.0.0.1:{first}\n"
        f"listen-client-urls: 'http://[::1]:{second}'\nadvertise-client-urls: 'http://[::1]:{second}'\n"
    )
    words = command.format(first, second, tmp_path).split()
    server = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ports = {second} if words[0] == "redis-server" else {first} if setting is None else {first, second}

        def seen() -> list[Any]:
            assert server.poll() is None
            found = [one for one in discover({}) if server.pid in [process.pid for process in one.processes]]
            return found if found and ports <= found[0].ports else []

        found = until(seen)
        assert len(found) == 1
        assert found[0].setting == (setting and setting.format(first, second))
        assert bool(found[0].lacks) is (setting is None)
    finally:
        server.kill()
        server.wait()


def test_the_broker_of_a_celery_worker_is_named_too(redis: Redis) -> None:
    code = f"import socket; s = socket.create_connection(('127.0.0.1', {redis.port})); print(flush=True); s.recv(1)"
    worker = [sys.executable, "-c", code, "celery", "-A", "shop", "worker"]
    with subprocess.Popen(worker, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = [one for one in discover({}) if one.port == redis.port]
        process.kill()
    assert [(one.system, one.how) for one in found] == [("celery", "connects"), ("redis", "listens")]
    assert [one.pid for one in found[0].processes] == [process.pid]


@pytest.mark.parametrize("name", [name for name in names() if name == "celery" or name in {k.name for k in KINDS}])
def test_the_setting_of_each_kind_that_is_known_is_read_by_it(name: str) -> None:
    port = 6379 if name == "celery" else _kind(name).ports[0]
    found = FoundBroker(name, f"192.0.2.7:{port}", port, "connects", "port")
    server = _server(found)
    assert server is not None
    broker(name).parse(server)
    ((host, at),) = _hosts(server, _kind(name))
    assert host == "192.0.2.7" and _same(found, host, at, set())


@pytest.mark.parametrize(
    ("form", "port", "server"),
    [
        ("redis://[user:password@]host:port/db?streams=orders,mails", 7000, "redis://192.0.2.7:7000"),
        ("kafka://host:9092,host:9092?groups=orders*", 9095, "kafka://192.0.2.7:9095"),
        ("http://[user:password@]host:15692?queues=orders,mail*&management=15672", 5672, "http://192.0.2.7:15692"),
        ("/var/spool/mail", 1, None),
    ],
)
def test_the_setting_is_made_from_the_example(
    form: str, port: int, server: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = {"k": "kafka", "h": "rabbitmq"}.get(form[0], "redis")
    kind = Broker(system, "", "", form, "", str, lambda _: None)  # type: ignore[arg-type, return-value]
    monkeypatch.setattr("agent.queues.discover.broker", lambda _: kind)
    assert _server(FoundBroker(system, f"192.0.2.7:{port}", port, "listens", "process")) == server


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("/usr/bin/redis-server 127.0.0.1:6379", "redis"),
        ("valkey-server *:7000 [cluster]", "redis"),
        ("/usr/lib/jvm/bin/java -Xmx1G -cp /x/libs/* kafka.Kafka server.properties", "kafka"),
        ("/usr/lib/erlang/erts-13/bin/beam.smp -W w -- -noshell -s rabbit boot", "rabbitmq"),
        ("/usr/sbin/nats-server -js", "nats"),
        ("etcd --data-dir /var/lib/etcd", "etcd"),
        ("postgres: 15/main: checkpointer", "postgresql"),
        ("kube-apiserver --etcd-cafile=/etc/kubernetes/pki/etcd/ca.crt", None),
        ("java -jar app.jar --broker redis-server", None),
        ("vi /usr/bin/redis-server", None),
        ("/usr/bin/redis-server *:26379 [sentinel]", None),
        ("redis-server /etc/redis/sentinel.conf --sentinel", None),
    ],
)
def test_a_command_line_says_which_broker_it_is(line: str, name: str | None) -> None:
    assert next((kind.name for kind in KINDS if kind.process.match(line)), None) == name
