"""Settings of the OTLP export: what is exported, and to which targets. The standard OTEL_* environment is read, too.

https://opentelemetry.io/docs/specs/otel/protocol/exporter/ and .../configuration/sdk-environment-variables/
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from agent.common.masked import MASK, masked
from agent.common.settings import (
    TOP,
    Place,
    ValueType,
    any_of,
    beside,
    declared,
    flag,
    json_schema,
    keys,
    naming_file,
    number,
    one_of,
    parse_text,
    read,
    restored,
    setting,
    text,
    value,
    whole,
)
from agent.errors import USAGE, AgentError

SIGNALS = ("traces", "metrics", "logs")
HTTP, GRPC = "http/protobuf", "grpc"
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")  # RFC 9110: token, field-value
_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")


def _url(given: str) -> str:
    endpoint = given if "://" in given or not given else f"http://{given}"
    try:
        url = urlsplit(endpoint)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        usable = False
    if endpoint and not usable:
        raise ValueError("must be a URL, such as http://127.0.0.1:4318")
    return endpoint


def _headers(given: object) -> tuple[tuple[str, str], ...]:
    """From ``k=v,k=v`` with percent-encoded values, or a mapping. Names in lower case, as gRPC requires. Raises
    AgentError, without the value or an invalid name, which may be secret.
    """
    if isinstance(given, Mapping):
        found = tuple((str(k).lower(), str(v)) for k, v in given.items())
    else:
        pairs = (p.partition("=") for p in parse_text(given, "NAME=VALUE,NAME=VALUE").split(",") if p.strip())
        found = tuple((k.strip().lower(), unquote(v.strip())) for k, _, v in pairs)
    for name, one in found:
        if not _NAME.fullmatch(name):
            raise AgentError("otlp.headers has an invalid name", why="must be NAME=VALUE,NAME=VALUE", exit_code=USAGE)
        if not _VALUE.fullmatch(one):
            raise AgentError(
                f"otlp.headers has an invalid value: {name}",
                why="must be one line of text without control characters, such as a line feed at its end",
                exit_code=USAGE,
            )
    return found


def _masked_headers(given: object) -> dict[str, str]:
    return {name: MASK for name, _ in _headers(given)}


def _masked_signal(given: Any) -> Any:
    """given: as in the file."""
    if isinstance(given, Mapping) and given.get("headers"):
        return {**masked(given), "headers": _masked_headers(given["headers"])}
    return masked(given)


def scalars() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}}


def _resource(given: object) -> dict[str, str]:
    if not isinstance(given, Mapping) or any(isinstance(one, (Mapping, list)) for one in given.values()):
        raise ValueError("must be a mapping of names to texts, such as {service.name: edge}")
    return {str(name): str(one) for name, one in given.items()}


@dataclass(frozen=True)
class Endpoint:
    """The target of one signal. endpoint: the full URL over HTTP, the base URL over gRPC."""

    endpoint: str = setting(
        "", text("a URL", _url), "URL of the collector, such as http://collector:4318; '' sends nothing"
    )
    headers: tuple[tuple[str, str], ...] = setting(
        (),
        value(
            _headers,
            "names and values",
            shown=dict,
            masked=_masked_headers,
            schema=lambda: any_of({"type": "string"}, scalars()),
        ),
        "headers of each request: {authorization: Bearer ...}",
    )
    timeout_s: float = setting(10.0, number(0.05, 3600), "time limit of one request, in seconds")
    compression: str = setting("none", one_of("none", "gzip"), "compression of requests")
    certificate: str = setting("", naming_file(text("a file")), "CA certificate of the collector, a PEM file")
    client_certificate: str = setting("", naming_file(text("a file")), "the agent's own certificate, a PEM file")
    client_key: str = setting(
        "", naming_file(text("a file"), secret=True), "the key of the agent's own certificate, a PEM file"
    )
    insecure: bool = setting(True, flag(), "with grpc: false uses TLS even if the endpoint is http://")


def _read_signal(given: object, place: Place) -> Endpoint | None:
    """A signal's own settings. None: it is off."""
    if given is False or given == "off":
        return None
    if not isinstance(given, Mapping):
        raise place.wrong(given, f"must be off, or a mapping of {', '.join(keys(Endpoint))}")
    return read(Endpoint, given, place)


_SIGNAL = ValueType(
    _read_signal,
    "off, or a section",
    lambda data: data and restored(Endpoint, data),
    shown=lambda _: {},
    masked=_masked_signal,
    schema=lambda: any_of({"enum": [False, "off"]}, json_schema(Endpoint)),
)
_OWN = (
    "overrides for {}: endpoint (over HTTP the whole URL), headers, timeout_s, compression, certificate,"
    " client_certificate, client_key, insecure; or off"
)


@dataclass(frozen=True)
class OtlpSettings:
    """Without a target nothing is exported. ``read_otlp`` sets traces, metrics and logs to the target of each signal,
    or None.
    """

    every_signal: Endpoint = setting(Endpoint(), beside(Endpoint))
    protocol: str = setting(
        HTTP, one_of(HTTP, GRPC), "protocol of the export; the endpoint for grpc is http://collector:4317"
    )
    temporality: str = setting("cumulative", one_of("cumulative", "delta", "lowmemory"), "temporality of metrics")
    interval_s: float = setting(10.0, number(0.1), "seconds between two exports of metrics")
    decisions: str = setting(
        "affected",
        one_of("slow", "affected", "all", "none"),
        "decisions that are exported as spans (metrics and the store have all of them): slow (slow or failed, or"
        " evidence of a finding); affected (slow; with a slow call or a handshake inside; within a second after a clock"
        " jump; and a sample of the rest)",
    )
    sample: float = setting(
        0.0,
        number(0, 1),
        "sampled share of the other decisions, chosen by trace id, as other samplers do; the share is in tracestate and"
        " in tickscope.sampling.probability",
    )
    slow_s: float = setting(
        0.1,
        number(0),
        "least duration of a slow decision, system call, TLS handshake or connect, in seconds; faster ones become spans"
        " only inside a decision, if they failed, or as evidence of a finding",
    )
    max_queue_bytes: int = setting(
        8 << 20,
        whole(1 << 16, 1 << 40),
        "maximum size in bytes of rows that wait for a collector; beyond it the oldest are dropped and counted as lost",
    )
    max_spans_per_s: int = setting(
        500,
        whole(1, 1 << 40),
        "maximum number of spans of one kind per second; further rows are only in the metrics and the store"
        " (`unsampled` in status)",
    )
    traces: Endpoint | None = setting(None, _SIGNAL, _OWN.format("traces"))
    metrics: Endpoint | None = setting(None, _SIGNAL, _OWN.format("metrics"))
    logs: Endpoint | None = setting(None, _SIGNAL, _OWN.format("logs"))
    resource: Mapping[str, str] = setting(
        {},
        value(_resource, "names and texts", schema=scalars),
        "resource attributes: {service.name: edge, deployment.environment.name: prod}; OTEL_SERVICE_NAME and"
        " OTEL_RESOURCE_ATTRIBUTES override them",
    )

    @property
    def enabled(self) -> bool:
        return any(target is not None for target in (self.traces, self.metrics, self.logs))


def read_otlp(given: object, place: Place = TOP) -> OtlpSettings:
    """The section, with the target of each signal. Raises AgentError (exit code 2)."""
    made = read(OtlpSettings, given, place)
    assert isinstance(given, Mapping)
    targets = dict[str, Any]()
    for signal in SIGNALS:
        own = getattr(made, signal)
        off = given.get(signal) is not None and own is None
        names = [one.name for one in declared(Endpoint) if own and given[signal].get(one.key) is not None]
        target = dataclasses.replace(made.every_signal, **{name: getattr(own, name) for name in names})
        if off or not target.endpoint:
            targets[signal] = None
            continue
        endpoint = target.endpoint
        if made.protocol == HTTP and not (own and own.endpoint):
            # Only the base URL gets the signal's path; a signal's own URL is used unchanged (OTLP exporter
            # specification).
            endpoint = f"{endpoint.rstrip('/')}/v1/{signal}"
        insecure = endpoint.startswith("http:") and target.insecure
        targets[signal] = dataclasses.replace(target, endpoint=endpoint, insecure=insecure)
    # lowmemory means delta for counters and histograms; other instruments have no temporality here.
    temporality = "cumulative" if made.temporality == "cumulative" else "delta"
    return dataclasses.replace(made, temporality=temporality, **targets)


def _from_variable(key: str, given: str) -> Any:
    """A variable's value in the file's form. Times are milliseconds, as specified (the Python SDK reads
    OTEL_EXPORTER_OTLP_TIMEOUT as seconds).
    """
    if key in ("timeout_s", "interval_s"):
        with contextlib.suppress(ValueError):
            return float(given) / 1000
    return given.lower() != "false" if key == "insecure" else given


def with_otel(given: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """The section, with the values of OpenTelemetry's environment in their place."""
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return {}

    def output(prefix: str, *names: str) -> dict[str, Any]:
        found = {name: env.get(prefix + name.removesuffix("_s").upper(), "").strip() for name in names}
        return {name: _from_variable(name, text) for name, text in found.items() if text}

    prefix, of_signal = "OTEL_EXPORTER_OTLP_", tuple(keys(Endpoint))
    general = output(prefix, *of_signal, "protocol")
    out = {**given, **general}
    for name, variable in (
        ("temporality", f"{prefix}METRICS_TEMPORALITY_PREFERENCE"),
        ("interval_s", "OTEL_METRIC_EXPORT_INTERVAL"),
    ):
        if text := env.get(variable, "").strip():
            out[name] = _from_variable(name, text)
    for signal in SIGNALS:
        own = out.get(signal)
        if env.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp").strip().lower() == "none":
            out[signal] = False
        elif own is None or isinstance(own, Mapping):
            kept = {key: one for key, one in (own or {}).items() if key not in general}
            if merged := {**kept, **output(f"{prefix}{signal.upper()}_", *of_signal)}:
                out[signal] = merged
    return out


#: The type of the setting ``otlp``.
OTLP = ValueType(
    read_otlp,
    "a section",
    lambda data: restored(OtlpSettings, data),
    section=OtlpSettings,
    environment=with_otel,
    schema=lambda: json_schema(OtlpSettings),
)
