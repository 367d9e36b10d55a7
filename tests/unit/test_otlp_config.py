"""Where the exporter's settings come from, and which wins."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import pytest

from agent.common import host
from agent.common.settings import read
from agent.errors import USAGE, AgentError
from exporters.otlp_settings import OtlpSettings, read_otlp, with_otel
from exporters.page_settings import MetricsSettings
from exporters.resource import describe

_BASE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/"}


def resolve(file: Mapping[str, object], env: Mapping[str, str]) -> OtlpSettings:
    return read_otlp(with_otel(file, env))


def test_off_unless_an_endpoint_is_given() -> None:
    assert not resolve({}, {}).enabled
    assert not resolve({}, {**_BASE, "OTEL_SDK_DISABLED": "true"}).enabled


def test_only_the_base_url_gets_a_path() -> None:
    got = resolve({}, {**_BASE, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://m:1/custom"})
    assert got.traces is not None
    assert got.metrics is not None
    assert (got.traces.endpoint, got.metrics.endpoint) == ("http://collector:4318/v1/traces", "http://m:1/custom")
    grpc = resolve({}, {**_BASE, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert grpc.traces is not None
    assert grpc.traces.endpoint == "http://collector:4318/"


def test_the_environment_beats_the_file() -> None:
    file = {"endpoint": "http://file:1", "timeout_s": 1, "interval_s": 1, "compression": "gzip", "decisions": "slow"}
    env = {**_BASE, "OTEL_EXPORTER_OTLP_TIMEOUT": "2500", "OTEL_METRIC_EXPORT_INTERVAL": "7000"}
    from_env = resolve(file, env)
    assert from_env.traces is not None
    assert (from_env.traces.endpoint, from_env.traces.timeout_s, from_env.interval_s) == (
        "http://collector:4318/v1/traces",
        2.5,
        7.0,
    )
    assert (from_env.traces.compression, from_env.decisions) == ("gzip", "slow")


def test_signals_are_switched_and_set_apart() -> None:
    got = resolve(
        {},
        {
            **_BASE,
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "A=1,b=x%3Dy",
            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "LowMemory",
        },
    )
    assert got.traces is None
    assert got.metrics is not None
    assert got.metrics.headers == (("a", "1"), ("b", "x=y"))
    assert got.temporality == "delta"
    assert resolve({}, _BASE).temporality == "cumulative"


@pytest.mark.parametrize(
    "file",
    [
        {"endpoint": "ftp://x"},
        {"endpoint": "x:1", "protocol": "http/json"},
        {"endpoint": "x:1", "timeout_s": "soon"},
        {"endpoint": "x:1", "timeout_s": 3601},
        {"endpoint": "x:1", "max_queue_bytes": 1},
        {"endpoitn": "x:1"},
    ],
)
def test_a_wrong_value_is_a_usage_error(file: dict[str, object]) -> None:
    with pytest.raises(AgentError) as raised:
        resolve(file, {})
    assert raised.value.exit_code == USAGE
    assert raised.value.why


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ("authorization=Bearer%20s3cret%0A", "authorization"),
        ({"Authorization": "s3cret\r\nx: y"}, "authorization"),
        ("authorization=s3cret%E2%82%AC", "authorization"),
        ("Authorization: Bearer s3cret", "headers"),
    ],
)
def test_a_header_that_cannot_be_is_named_without_its_value(headers: object, named: str) -> None:
    with pytest.raises(AgentError) as raised:
        resolve({"endpoint": "x:1", "headers": headers}, {})
    assert raised.value.exit_code == USAGE
    assert named in str(raised.value)
    assert "s3cret" not in f"{raised.value} {raised.value.why}"


def test_the_environment_completes_the_resource() -> None:
    got = describe(
        "b-1",
        {
            "OTEL_SERVICE_NAME": "edge",
            "OTEL_RESOURCE_ATTRIBUTES": "service.name=lost,deployment.environment.name=a%20b",
        },
        "0.1",
        {"service.name": "from the file", "os.type": "linux"},
    )
    assert (got["service.name"], got["deployment.environment.name"], got["host.boot.id"], got["os.type"]) == (
        "edge",
        "a b",
        "b-1",
        "linux",
    )


def test_a_pod_has_the_name_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """In rows and findings, too."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.node.name=node%2D7,host.name=node%2D7")
    assert host.name() == "node-7"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.node.name=node-7,host.name=")
    assert host.name() == socket.gethostname()


@pytest.mark.parametrize(
    ("env", "given", "instance"),
    [
        ({}, {}, socket.gethostname()),
        ({"OTEL_RESOURCE_ATTRIBUTES": "host.name=node1"}, {}, "node1"),
        ({}, {"service.instance.id": "edge-3"}, "edge-3"),
    ],
)
def test_each_node_is_an_instance(env: dict[str, str], given: dict[str, str], instance: str) -> None:
    """Prometheus makes the label ``instance`` of it; without one, two nodes write to the same series."""
    assert describe("b-1", env, "0.1", given)["service.instance.id"] == instance


def test_the_file_reports_all_of_one_signal_that_the_environment_can() -> None:
    own = {"endpoint": "https://logs:4318/in", "headers": {"x-of": "logs"}, "timeout_s": 2, "compression": "gzip"}
    file = {"endpoint": "http://c:4318", "headers": {"x-of": "all"}, "logs": own, "traces": False, "metrics": "off"}
    got = resolve(file, {})
    assert (got.traces, got.metrics) == (None, None)
    assert got.logs is not None
    assert (got.logs.endpoint, got.logs.headers, got.logs.timeout_s, got.logs.compression) == (
        "https://logs:4318/in",
        (("x-of", "logs"),),
        2.0,
        "gzip",
    )
    beaten = resolve(file, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://e:4318"}).logs
    assert beaten is not None
    assert beaten.endpoint == "http://e:4318/v1/logs"
    assert resolve({"resource": {"service.name": "edge"}}, {}).resource == {"service.name": "edge"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"logs": "http://x"},
        {"logs": {"protocol": "grpc"}},
        {"resource": ["a"]},
        {"traces": {"endpoint": "nowhere://x"}},
    ],
)
def test_what_is_no_setting_of_a_signal_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(AgentError) as refused:
        resolve({"endpoint": "http://c:4318", **wrong}, {})
    assert refused.value.exit_code == 2


def test_a_nought_in_the_file_is_a_value() -> None:
    assert resolve({"sample": 0}, {}).sample == 0


@pytest.mark.parametrize(
    "section",
    [
        {"detail": "more"},
        {"samples": 10},
        {"samples": True},
        {"samples": "x"},
        {"samples": 5000.5},
        {"hosts": 5},
        {"hosts": [1]},
        {"x": 1},
    ],
)
def test_wrong_settings_of_metrics_report_what_is_right(section: dict[str, object]) -> None:
    with pytest.raises(AgentError) as raised:
        read(MetricsSettings, section)
    assert raised.value.why
    assert raised.value.exit_code == 2
