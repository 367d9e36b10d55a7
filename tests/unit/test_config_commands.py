"""``tickscope config``: every error at once, where each value comes from, the example and the schema."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from agent.common.settings import described, keys
from agent.config import Config, read_file
from agent.config_check import check
from agent.config_example import SCHEMA_FILE, example, schema
from tests.commands import on_terminal, tickscope_text
from tests.docs import ROOT, SCHEMA

_SECRET = "s3cret"


def write(folder: Path, text: str, mode: int = 0o600) -> str:
    file = folder / "t.yaml"
    file.write_text(text)
    file.chmod(mode)
    return str(file)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that all users can enter; pytest's are closed to them."""
    with tempfile.TemporaryDirectory(prefix="tickscope-config-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def tickscope(*argv: str, **env: str) -> Any:
    """A command without the settings of whoever runs the tests."""
    return tickscope_text("config", *argv, **{"TICKSCOPE_CONFIG": "/dev/null", **env})


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ("syscals: full\nstore: /a\npoll_s: fast\n\nmax_bytes: 5\n", {1: "syscals", 3: "poll_s", 5: "max_bytes"}),
        ("otlp:\n  endpont: x\n  sample: 2\n  tracez: off\n", {2: "endpont", 3: "sample", 4: "tracez"}),
        ("otlp:\n  timeout_s: soon\n  traces:\n    endpoint: ftp://x\n", {2: "timeout_s", 4: "traces.endpoint"}),
        ("redis:\n- http://x\n- redis://ok\n- url: redis://x\n  usr: a\n", {2: "redis", 5: "usr"}),
        ("nats: [ftp://x]\nkafka: [kafka://a:0]\n", {1: "nats", 2: "kafka"}),
        ("limiter_models:\n  a: {model: x}\n  b: {slots: 0, limt: 1}\n", {2: "a.model", 3: "b."}),
        (
            "limiter_functions:\n- {name: a}\n- {name: b, language: c, symbol: f}\n",
            {2: "functions.0", 3: "functions.1"},
        ),
        ("queues_from:\n- url: http://h/m\n  queues:\n  - {name: a}\n  - {lenght: b}\n", {4: "queues.0", 5: "lenght"}),
        ("ntp:\n  interval: 5 weeks\nntp:\n  interval: 1y\n", {3: "ntp", 4: "interval"}),
        ("store: /a\notlp: 5\nmetrics: [\n", {4: ""}),
        ("store: /a\nstore: \x00\n", {2: ""}),
        ("key_salt: salt\nnotices: {exec: on-jump}\n", {1: "key_salt", 2: "notices.exec"}),
    ],
)
def test_all_errors_of_a_file_are_reported_with_their_lines(tmp_path: Path, text: str, errors: dict[int, str]) -> None:
    file = write(tmp_path, text)
    found = check(Path(file), True, {})
    assert {one.where for one in found} == {f"{file}:{line}" for line in errors}
    for one in found:
        assert one.severity == "error" and one.what
        assert errors[int(one.where.rpartition(":")[2])] in one.setting


def test_errors_of_the_environment_come_beside_those_of_the_file(tmp_path: Path) -> None:
    env = {"TICKSCOPE_NATS_URL": "ftp://x", "OTEL_EXPORTER_OTLP_TIMEOUT": "never", "TICKSCOPE_STORE": "/a"}
    wrong = check(Path(write(tmp_path, "poll_s: 0\notlp: 5\n")), True, env)
    assert [(one.where.rpartition("/")[2], one.setting) for one in wrong] == [
        ("t.yaml:1", "poll_s"),
        ("t.yaml:2", "otlp"),
        ("TICKSCOPE_NATS_URL", "nats.0"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "otlp.timeout_s"),
    ]
    right = check(Path(write(tmp_path, "poll_s: 2\n")), True, env)
    assert [one.where for one in right] == ["TICKSCOPE_NATS_URL", "OTEL_EXPORTER_OTLP_TIMEOUT"]


def test_files_that_settings_name_are_opened(folder: Path) -> None:
    readable, program = folder / "ca.pem", folder / "hook"
    for file in (readable, program):
        file.touch(0o644)
    text = f"""\
redis:
- url: rediss://h
  ca_file: {readable}
  password_file: /nonexistent/password
otlp: {{client_key: {folder}/key.pem}}
notices: {{exec: {program} now}}
key_salt: {readable}
"""
    env = {"OTEL_EXPORTER_OTLP_CERTIFICATE": "/nonexistent/ca.pem"}
    found = check(Path(write(folder, text)), True, env)
    assert [(one.where.rpartition("/")[2], one.setting) for one in found] == [
        ("t.yaml:4", "redis.0.password_file"),
        ("t.yaml:5", "otlp.client_key"),
        ("t.yaml:6", "notices.exec"),
        ("t.yaml:7", "key_salt"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "otlp.certificate"),
    ]
    if os.geteuid() == 0:
        assert {one.severity for one in found} == {"error"}
    program.chmod(0o755)
    readable.chmod(0o600)
    readable.write_text("x" * 32)
    text = f"notices: {{exec: {program} now}}\nkey_salt: {readable}\n"
    owned_by_root = check(Path(write(folder, text)), True, {})
    assert len(owned_by_root) == (os.geteuid() != 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can open files as the agent's user")
def test_files_are_opened_as_the_agents_user_who_is_not_root(folder: Path) -> None:
    closed, open_ = folder / "closed", folder / "open"
    closed.write_text("x")
    closed.chmod(0o600)
    open_.write_text("x")
    open_.chmod(0o644)
    template = "redis: [{{url: redis://h, password_file: {}}}]\n"
    (refused,) = check(Path(write(folder, template.format(closed))), True, {})
    assert (refused.severity, refused.setting) == ("error", "redis.0.password_file")
    assert f"chgrp tickscope {closed}" in refused.remedy
    (warned,) = check(Path(write(folder, template.format(open_))), True, {})
    assert warned.severity == "warning" and f"chmod 640 {open_}" in warned.remedy


@pytest.mark.parametrize(
    ("text", "mode", "named"),
    [
        (f"redis: 'redis://:{_SECRET}@h'\n", 0o644, "redis"),
        (f"redis: 'redis://:{_SECRET}@h'\n", 0o640, None),
        (f"otlp: {{headers: {{a: {_SECRET}}}}}\n", 0o604, "otlp.headers"),
        (f"otlp: {{logs: {{headers: a={_SECRET}}}}}\n", 0o644, "otlp.logs"),
        ("redis: 'redis://h'\nstore: /a\notlp: {headers: ''}\n", 0o644, None),
    ],
)
def test_a_file_with_secrets_that_all_can_read_is_a_warning(
    tmp_path: Path, text: str, mode: int, named: str | None
) -> None:
    file = write(tmp_path, text, mode)
    found = check(Path(file), True, {})
    assert [one.severity for one in found] == ["warning"] * (named is not None)
    assert all(str(named) in one.why and one.remedy.endswith(f"chmod 640 {file}") for one in found)
    assert tickscope("check", file).returncode == 0


def test_check_prints_problems_and_ends_with_2(tmp_path: Path) -> None:
    file = write(tmp_path, "poll_s: 0\nsyscals: full\n\"\\e[31m\": 1\nredis: 'http://:s3cret@h'\n")
    done = tickscope("check", file)
    assert done.returncode == 2
    assert f"{file}:2: error: there is no setting 'syscals'\n  why: did you mean syscalls?\n" in done.stdout
    assert "errors, no warnings" in done.stderr
    shown = tickscope("check", file, "-o", "json")
    assert shown.returncode == 2
    rows = json.loads(shown.stdout)["rows"]
    assert tickscope("check", write(tmp_path, "- a\n")).stdout.startswith(f"{file}: error: {file} must hold")
    assert {row["where"] for row in rows} >= {f"{file}:1", f"{file}:2", f"{file}:4"}
    for text in (done.stdout, shown.stdout, shown.stderr):
        assert _SECRET not in text and "\x1b" not in text


@pytest.mark.parametrize("env", [{}, {"TICKSCOPE_CONFIG": ""}])
def test_check_without_a_file_is_of_the_one_that_run_reads(tmp_path: Path, env: dict[str, str]) -> None:
    assert tickscope("check", **env).returncode == 0
    assert tickscope("check", TICKSCOPE_CONFIG=write(tmp_path, "poll_s: 0\n")).returncode == 2
    missing = tickscope("check", str(tmp_path / "none.yaml"))
    assert (missing.returncode, missing.stdout) == (2, "") and "none.yaml" in missing.stderr


def shown(*argv: str, **env: str) -> dict[str, tuple[Any, str]]:
    """Value and source by setting."""
    done = tickscope("show", *argv, "-o", "json", **env)
    assert done.returncode == 0, done.stderr
    return {row["setting"]: (row["value"], row["source"]) for row in json.loads(done.stdout)["rows"]}


def test_show_has_every_setting_with_its_source(tmp_path: Path) -> None:
    text = """\
store: /var/lib/tickscope
syscalls: off
redis:
- redis://h
max_age_days: '14'
jump_threshold: 1s
otlp:
  endpoint: http://file:4318
  traces: off
  interval_s: 5
ntp: {interval: 1m}
otlp_receiver: {http: 24318}
metrics:
"""
    file = write(tmp_path, text)
    env = {
        "TICKSCOPE_CONFIG": file,
        "TICKSCOPE_STORE": "/var/lib/tickscope",
        "TICKSCOPE_NATS_URL": "http://a http://b",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://env:4318",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_METRIC_EXPORT_INTERVAL": "7000",
    }
    found = shown("--jump-threshold", "2s", "--etcd", "http://e", **env)
    assert (
        found.items()
        >= {
            "store": ("/var/lib/tickscope", "TICKSCOPE_STORE"),
            "syscalls": ("off", f"{file}:2"),
            "redis": (["redis://h"], f"{file}:3"),
            "max_age_days": (14, f"{file}:5"),
            "jump_threshold": ("2s", "--jump-threshold"),
            "etcd": (["http://e"], "--etcd"),
            "nats": (["http://a", "http://b"], "TICKSCOPE_NATS_URL"),
            "kafka": ([], "default"),
            "otlp.endpoint": ("http://env:4318", "OTEL_EXPORTER_OTLP_ENDPOINT"),
            "otlp.traces": ("off", f"{file}:9"),
            "otlp.logs": ("off", "OTEL_LOGS_EXPORTER"),
            "otlp.interval_s": (7, "OTEL_METRIC_EXPORT_INTERVAL"),
            "otlp.timeout_s": (10, "default"),
            "ntp.interval": ("60s", f"{file}:11"),
            "otlp_receiver.http": ("127.0.0.1:24318", f"{file}:12"),
            "metrics.detail": ("normal", "default"),
        }.items()
    )
    assert list(found) == [".".join(at) for at, one in described(Config) if one.kind.section is None]
    disabled = shown("otlp", **{**env, "OTEL_SDK_DISABLED": "true"})
    assert disabled["otlp.endpoint"] == ("", "OTEL_SDK_DISABLED")


def test_show_hides_secrets_wherever_they_are(tmp_path: Path) -> None:
    text = f"""\
redis:
- redis://u:a@{_SECRET}@h:6379/0
- redis+sentinel://h:1/svc?sentinel_password={_SECRET}
- url: rediss://:{_SECRET}@h
queues_from: 'http://u:{_SECRET}@h/m?api_key={_SECRET}&x=kept#name={{q}}&length=N'
notices: {{exec: '/bin/true --to=https://u:{_SECRET}@h/'}}
otlp:
  endpoint: http://u:{_SECRET}@h:4318
  headers: {{Authorization: Bearer {_SECRET}}}
  metrics: {{headers: 'x-key={_SECRET}', endpoint: 'http://u:{_SECRET}@h'}}
"""
    env = {
        "TICKSCOPE_CONFIG": write(tmp_path, text),
        "TICKSCOPE_NATS_URL": f"http://u:{_SECRET}@h:8222",
        "OTEL_EXPORTER_OTLP_LOGS_HEADERS": f"a={_SECRET}",
    }
    assert tickscope("check", **env).returncode == 0
    for fmt in ("table", "json", "ndjson", "csv"):
        done = tickscope("show", "-o", fmt, "--rabbitmq", f"http://u:{_SECRET}@h:15692", **env)
        assert done.returncode == 0 and _SECRET not in done.stdout + done.stderr
    found = shown(**env)
    assert found["redis"][0][0] == "redis://u:***@h:6379/0"
    assert found["queues_from"][0] == ["http://u:***@h/m?api_key=***&x=kept#name={q}&length=N"]
    assert found["otlp.headers"][0] == {"authorization": "***"}


def test_show_of_one_section_or_setting() -> None:
    assert set(shown("ntp")) == {f"ntp.{key}" for key in keys(type(Config().ntp))}
    assert set(shown("ntp.chrony")) == {"ntp.chrony"}
    wrong = tickscope("show", "npt")
    assert wrong.returncode == 2 and "ntp" in wrong.stderr


@pytest.mark.parametrize("columns", [80, 160])
def test_show_on_a_screen_has_settings_values_and_sources(tmp_path: Path, columns: int) -> None:
    file = write(tmp_path, "redis: ['redis://h:6379/0?streams=orders,mails,payments,refunds']\n")
    text = on_terminal(
        *("config", "show", "--config", file), columns=columns, OTEL_EXPORTER_OTLP_METRICS_ENDPOINT="http://h:1/v1"
    )
    lines = text.splitlines()
    assert max(map(len, lines[1:])) <= columns
    (redis,) = [line.split() for line in lines if line.startswith("redis ")]
    assert redis[1].startswith('["red') and "t.yaml:1" in redis
    assert ("default" in lines[0]) == (columns == 160)


def uncommented(text: str) -> str:
    return re.sub(r"^( *)#(?! )", r"\1", text, flags=re.MULTILINE)


def test_the_example_is_all_comments_and_has_each_setting_with_its_default(tmp_path: Path) -> None:
    text = example()
    assert yaml.safe_load(text) is None
    assert read_file(Path(write(tmp_path, uncommented(text))), required=True) == Config()
    assert list(yaml.safe_load(uncommented(text))) == list(keys(Config))
    assert check(tmp_path / "t.yaml", True, {}) == []
    assert tickscope("example").stdout == text


@pytest.mark.parametrize("setting", [".".join(at) for at, _ in described(Config)])
def test_each_setting_can_be_uncommented_alone(tmp_path: Path, setting: str) -> None:
    text = uncommented(example(tuple(setting.split("."))))
    assert read_file(Path(write(tmp_path, text)), required=True) == Config()
    found = yaml.safe_load(text)
    for key in setting.split("."):
        assert list(found) == [key]
        found = found[key]


VALIDATOR = jsonschema.Draft202012Validator(schema())


def test_the_schema_is_one_and_every_setting_is_described_by_it() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    for at, one in described(Config):
        assert one.kind.schema(), f"{'.'.join(at)}: its type has no schema"
    assert json.loads(tickscope("schema").stdout) == schema()
    assert example().startswith(f"# yaml-language-server: $schema={SCHEMA_FILE}\n")
    assert f"/opt/tickscope/{SCHEMA.relative_to(ROOT)}" == SCHEMA_FILE  # deploy/install.sh copies docs/


def good() -> list[str]:
    """Files that `run` takes: the example, and those of the documents."""
    pages = "".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md")))
    return [
        example(),
        uncommented(example()),
        "",
        "otlp:\nmetrics:\nstore:\n",
        "syscalls: off\notlp: {traces: off, logs: {endpoint: 'http://h'}, headers: 'a=b'}\nredis_limiters: on\n",
        "redis: redis://h\nnotices: {exec: /bin/true now}\nntp: {interval: 64, daemon_interval: 1.5 m, chrony: ''}\n",
        "otlp_receiver: {http: 24318}\nredis_ports: 7000\nwithout: tls\nprometheus: ''\n",
        *re.findall(r"```yaml\n(.*?)```", pages, re.DOTALL),
    ]


@pytest.mark.parametrize("text", good())
def test_the_schema_accepts_what_run_accepts(tmp_path: Path, text: str) -> None:
    read_file(Path(write(tmp_path, text)), required=True)
    assert [error.message for error in VALIDATOR.iter_errors(yaml.safe_load(text))] == []


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("syscals: full", "$"),
        ("poll_s: 0", "$.poll_s"),
        ("poll_s: fast", "$.poll_s"),
        ("max_bytes: 1.5", "$.max_bytes"),
        ("max_bytes: yes", "$.max_bytes"),
        ("syscalls: never", "$.syscalls"),
        ("store: [a]", "$.store"),
        ("without: [tsl]", "$.without"),
        ("unix_sockets: 'yes'", "$.unix_sockets"),
        ("otlp: {endpont: x}", "$.otlp"),
        ("otlp: {sample: 2}", "$.otlp.sample"),
        ("otlp: {traces: maybe}", "$.otlp.traces"),
        ("ntp: {interval: 5 weeks}", "$.ntp.interval"),
        ("ntp: {servers: [a, b, c, d, e, f, g, h, i]}", "$.ntp.servers"),
        ("redis: [{usr: a, url: 'redis://h'}]", "$.redis"),
        ("redis: [5]", "$.redis"),
        ("redis_ports: [0]", "$.redis_ports"),
        ("limiter_models: {a: {model: none}}", "$.limiter_models.a.model"),
        ("limiter_functions: [{name: a}]", "$.limiter_functions[0]"),
        ("redis_limiter_scripts: {a: {script: short}}", "$.redis_limiter_scripts.a.script"),
        ("- a", "$"),
    ],
)
def test_the_schema_refuses_what_run_refuses(tmp_path: Path, text: str, at: str) -> None:
    assert any(one.severity == "error" for one in check(Path(write(tmp_path, text)), True, {}))
    assert {error.json_path for error in VALIDATOR.iter_errors(yaml.safe_load(text))} == {at}
