"""Settings: precedence, and mistakes that name their line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.config import Config, read_file, resolve
from agent.errors import AgentError


def write(path: Path, text: str) -> Path:
    file = path / "t.yaml"
    file.write_bytes(text.encode("latin-1" if text.endswith("\xff") else "utf-8"))
    return file


def test_flag_beats_environment_beats_file(tmp_path: Path) -> None:
    file = str(write(tmp_path, "store: /file\nrun_dir: /file-run\nsyscalls: full\n"))
    config = resolve({"store": None, "syscalls": "blocked"}, {"TICKSCOPE_STORE": "/env", "TICKSCOPE_CONFIG": file})
    assert (config.store.store, config.service.run_dir, config.probes.syscalls) == ("/env", "/file-run", "blocked")
    assert resolve({"store": "/flag"}, {"TICKSCOPE_STORE": "/env"}, file).store.store == "/flag"


@pytest.mark.parametrize(
    ("given", "env", "begins"),
    [
        ({}, {"TICKSCOPE_NATS_URL": "h:8222", "TICKSCOPE_STORE": "/a"}, "TICKSCOPE_NATS_URL: a URL of NATS"),
        ({}, {"TICKSCOPE_KAFKA_URL": "kafka://a kafka://b:0"}, "TICKSCOPE_KAFKA_URL: a Kafka server"),
        ({}, {"TICKSCOPE_QUEUES_FROM_URL": "http://h/metrics"}, "TICKSCOPE_QUEUES_FROM_URL: a server of queues_from"),
        ({}, {"TICKSCOPE_STORE": "", "TICKSCOPE_RUN_DIR": "/" + "x" * 100}, "TICKSCOPE_RUN_DIR: run_dir cannot be"),
        ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[x"}, "OTEL_EXPORTER_OTLP_ENDPOINT: otlp.endpoint cannot be"),
        ({"poll_s": 0}, {"TICKSCOPE_NATS_URL": "http://h"}, "--poll-s: poll_s cannot be"),
        ({"queues_from": ["http://h"]}, {"TICKSCOPE_QUEUES_FROM_URL": "x"}, "--queues-from: a server of queues_from"),
    ],
)
def test_a_mistake_of_a_variable_or_a_flag_names_it(
    tmp_path: Path, given: dict[str, object], env: dict[str, str], begins: str
) -> None:
    file = str(write(tmp_path, "store: /file\nnats: ['http://ok:8222']\n"))
    with pytest.raises(AgentError) as raised:
        resolve(given, env, file)
    assert str(raised.value).startswith(begins)


def test_it_survives_the_way_to_the_agent() -> None:
    given = {
        "redis": ["redis://a", "redis://b"],
        "otlp": {"endpoint": "http://c:4318", "headers": {"a": "b"}, "traces": False},
        "otlp_receiver": {"http": "127.0.0.1:24318"},
        "ntp": {"servers": ["10.0.0.1"], "interval": "64s"},
        "notices": {"exec": "/bin/a b"},
        "limiter_names": {"a*": "b"},
        "redis_limiter_scripts": {"a": {"command": "INCR", "limit": 3}},
        "without": ["tls"],
        "live": True,
    }
    config = resolve(given, {})
    assert Config.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert config.with_values(Config().values()).values() == Config().values()


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("store: /a\nsyscals: full\n", 2, "syscalls"),
        ("# x\n\npoll_s: fast\n", 3, "poll_s"),
        ("redis: [1]\n", 1, "redis"),
        ("ntp: []\n", 1, "ntp"),
        ("live: true\n", 1, "live"),
        ("max_bytes: yes\n", 1, "max_bytes"),
        ("store: /a\nmax_bytes: .inf\n", 2, "max_bytes"),
        ("store: /a\nmax_bytes: .nan\n", 2, "max_bytes"),
        ("poll_s: " + "9" * 500, 1, "poll_s"),
        ("store: /a\npoll_s: -3\n", 2, "between 0.1 and 3600"),
        ("syscalls: full\n\nsyscalls: blocked\n", 3, "first on line 1"),
        ('store: "/tmp/a\\0b"\n', 1, "store"),
        ('store: "/tmp/\\uD800"\n', 1, "store"),
        ("store: ''\n", 1, "store"),
        ("run_dir: /" + "x" * 100, 1, "run_dir"),
        ('prometheus: "127.0.0.1:\u00b2"\n', 1, "prometheus"),
        ("prometheus: 94690\n", 1, "must be address:port"),
        ("prometheus: true\n", 1, "must be address:port"),
        ("store: /a\notlp:\n  endpont: x\n", 3, "endpont"),
        ("otlp: {1: x, endpont: x}\n", 1, "there is no setting otlp.1"),
        ("otlp: {endpoint: 'http://[x'}\n", 1, "otlp.endpoint cannot be 'http://[x'"),
        ("store: /a\notlp:\n  headers: {a b: x}\n", 3, "otlp.headers"),
        ("otlp: 5\n", 1, "otlp"),
        ("redis: ['http://x']\n", 1, "Redis URL"),
        ("without: [tsl]\n", 1, "tls"),
        ("store: &a /x\nrun_dir: *a\n", 2, "aliases"),
        ("# x\n\xff", 2, "UTF-8"),
    ],
)
def test_a_mistake_names_its_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    with pytest.raises(AgentError) as raised:
        read_file(write(tmp_path, text), required=True)
    assert f"t.yaml:{line}:" in str(raised.value)
    assert words in str(raised.value)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("9469", ("127.0.0.1", 9469)),
        ("'9469'", ("127.0.0.1", 9469)),
        ("0.0.0.0:9469", ("0.0.0.0", 9469)),
        ("':9469'", ("", 9469)),
        ("'[::1]:9469'", ("::1", 9469)),
        ("localhost:9469", ("localhost", 9469)),
    ],
)
def test_a_port_alone_is_one_of_loopback(tmp_path: Path, given: str, address: tuple[str, int]) -> None:
    page = read_file(write(tmp_path, f"prometheus: {given}\n"), required=True).page
    assert page.address == address
    assert page.prometheus in (given.strip("'"), "127.0.0.1:9469")


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "- a\n- b\n",
        "syscalls: never\n",
        "poll_s: 0\n",
        "prometheus: localhost\n",
        "store: " + "[" * 500 + "]" * 500,
        "store: " + "9" * 5000,
        "? [a, b]\n: 3\n",
        "store: a\0b\n",
        "#" * (1 << 20),
    ],
)
def test_nonsense_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(AgentError) as raised:
        read_file(write(tmp_path, text), required=True)
    assert raised.value.exit_code == 2


def test_a_device_without_end_is_no_file() -> None:
    with pytest.raises(AgentError, match="larger than"):
        read_file(Path("/dev/zero"), required=True)


def test_what_the_environment_reports_is_checked_before_anything_starts() -> None:
    for env in (
        {"TICKSCOPE_REDIS_URL": "http://x"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "ftp://x"},
        {"TICKSCOPE_RUN_DIR": "/" + "x" * 200},
    ):
        with pytest.raises(AgentError) as raised:
            resolve({}, env, "deploy/tickscope.yaml")
        assert raised.value.exit_code == 2


def test_off_is_a_word(tmp_path: Path) -> None:
    assert read_file(write(tmp_path, "syscalls: off\n"), required=True).probes.syscalls == "off"


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(AgentError):
        resolve({}, {}, str(tmp_path / "none.yaml"))
