"""What to export and where: flags, then the standard OTEL_* environment, then the configuration file.

https://opentelemetry.io/docs/specs/otel/protocol/exporter/ and .../configuration/sdk-environment-variables/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import unquote, urlsplit

from agent.common.settings import Section
from agent.errors import USAGE, AgentError

PROTOCOLS = ("http/protobuf", "grpc")
KEYS = (
    "endpoint",
    "protocol",
    "headers",
    "timeout_s",
    "compression",
    "certificate",
    "client_certificate",
    "client_key",
    "insecure",
    "temporality",
    "interval_s",
    "decisions",
    "sample",
    "slow_s",
    "max_queue_bytes",
    "max_spans_per_s",
    "traces",
    "metrics",
    "logs",
    "resource",
)
_OF_A_SIGNAL = KEYS[: KEYS.index("insecure") + 1]
_DECISIONS = ("affected", "all", "slow", "none")
_SECTION = Section("otlp")
MAX_TIMEOUT_S = 3600.0
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")  # RFC 9110: token, field-value
_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
_PREFIX = "OTEL_EXPORTER_OTLP_"


@dataclass(frozen=True)
class Endpoint:
    """Where one signal goes. endpoint: the full URL over HTTP, the base URL over gRPC."""

    endpoint: str
    headers: tuple[tuple[str, str], ...] = ()
    timeout_s: float = 10.0
    compression: str = "none"
    certificate: str = ""
    client_certificate: str = ""
    client_key: str = ""
    insecure: bool = True


@dataclass(frozen=True)
class OtlpConfig:
    """The exporter's settings. Without a target nothing is exported and nothing is said.

    temporality: ``cumulative`` or ``delta``.  interval_s: between two exports of metrics.
    decisions: which limiter decisions become spans: slow (refused, delayed, in error, or at least slow_s long),
    affected (those, and what had a slow call or a handshake inside, came within a second after a jump of the clock, or
    is in the sample), all, or none.
    sample: the share of plain decisions that become spans, with ``affected``; by trace id, so that a trace has all of
    its own or none.
    max_queue_bytes: rows that wait to be sent; beyond it the oldest are dropped and counted.
    max_spans_per_s: rows of a table beyond it are not exported as spans, plain ones first (metrics still count them
    all); they are no losses, but ``unsampled`` in the status. Findings and clock changes are always exported.
    """

    protocol: str = "http/protobuf"
    traces: Endpoint | None = None
    metrics: Endpoint | None = None
    logs: Endpoint | None = None
    temporality: str = "cumulative"
    interval_s: float = 10.0
    decisions: str = "affected"
    sample: float = 0.01
    slow_s: float = 0.01
    max_queue_bytes: int = 8 << 20
    max_spans_per_s: int = 500

    @property
    def enabled(self) -> bool:
        return any(target is not None for target in (self.traces, self.metrics, self.logs))


def resolve(file: Mapping[str, object], env: Mapping[str, str], flags: Mapping[str, object]) -> OtlpConfig:
    """The settings of the three places. ``file`` is the section ``otlp`` of the configuration file; ``flags`` has the
    same keys (``KEYS``), None where a flag was not given.

    Times in the environment are milliseconds, as specified (the Python SDK reads OTEL_EXPORTER_OTLP_TIMEOUT as
    seconds). Raises AgentError (usage) for an unknown key or a value that does not fit.
    """
    _SECTION.known([*file, *flags], KEYS)
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return OtlpConfig()
    given, default = _Given(file, env, flags), OtlpConfig()
    resource_attributes(file)
    temporality = given.one_of(
        "temporality",
        ("cumulative", "delta", "lowmemory"),
        default.temporality,
        f"{_PREFIX}METRICS_TEMPORALITY_PREFERENCE",
    )
    return OtlpConfig(
        protocol=given.one_of("protocol", PROTOCOLS, default.protocol, f"{_PREFIX}PROTOCOL"),
        traces=_target("traces", given),
        metrics=_target("metrics", given),
        logs=_target("logs", given),
        # lowmemory is delta for counters and histograms, which is all that temporality applies to here.
        temporality="cumulative" if temporality == "cumulative" else "delta",
        interval_s=given.number("interval_s", default.interval_s, 0.1, "OTEL_METRIC_EXPORT_INTERVAL", 1000),
        decisions=given.one_of("decisions", _DECISIONS, default.decisions),
        sample=given.number("sample", default.sample, 0, most=1),
        slow_s=given.number("slow_s", default.slow_s, 0),
        max_queue_bytes=int(given.number("max_queue_bytes", default.max_queue_bytes, 1 << 16)),
        max_spans_per_s=int(given.number("max_spans_per_s", default.max_spans_per_s, 1)),
    )


def resource_attributes(file: Mapping[str, object]) -> dict[str, str]:
    """``resource`` of the section ``otlp``: attributes of who sends. Raises AgentError (usage)."""
    given = file.get("resource") or {}
    if not isinstance(given, Mapping) or any(isinstance(value, (Mapping, list)) for value in given.values()):
        raise _SECTION.wrong("resource", given, "it is a mapping of names to texts, for example {service.name: edge}")
    return {str(name): str(value) for name, value in given.items()}


def _of_signal(signal: str, given: _Given) -> _Given | None:
    """With what the file says of this signal alone; None where it is off."""
    own = given.file.get(signal)
    if (
        given.env.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp").strip().lower() == "none"
        or own is False
        or own == "off"
    ):
        return None
    if own is not None and not isinstance(own, Mapping):
        raise _SECTION.wrong(signal, own, f"it is off, or a mapping of {', '.join(_OF_A_SIGNAL)}")
    own = own or {}
    Section(f"otlp.{signal}").known(own, [key for key in _OF_A_SIGNAL if key != "protocol"])
    return replace(given, file={**given.file, **{key: value for key, value in own.items() if key != "endpoint"}})


def _target(signal: str, of_all: _Given) -> Endpoint | None:
    given = _of_signal(signal, of_all)
    if given is None:
        return None

    def names(variable: str) -> tuple[str, str]:
        return f"{_PREFIX}{signal.upper()}_{variable}", _PREFIX + variable

    own, base = given.env.get(names("ENDPOINT")[0], "").strip(), given.text("endpoint", names("ENDPOINT")[1])
    in_file = given.file.get(signal)
    if not own and isinstance(in_file, Mapping) and not given.env.get(names("ENDPOINT")[1], "").strip():
        own = str(in_file.get("endpoint") or "")
    protocol = given.one_of("protocol", PROTOCOLS, PROTOCOLS[0], f"{_PREFIX}PROTOCOL")
    is_own = bool(own) and given.flags.get("endpoint") is None
    endpoint = own if is_own else base
    if not endpoint:
        return None
    if "://" not in endpoint:
        endpoint = f"http://{endpoint}"
    try:
        url = urlsplit(endpoint)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise _SECTION.wrong("endpoint", endpoint, "it is a URL, for example http://127.0.0.1:4318")
    if protocol == PROTOCOLS[0] and not is_own:
        # Only the base URL gets the signal's path; a signal's own is used as it is (OTLP exporter specification).
        endpoint = f"{endpoint.rstrip('/')}/v1/{signal}"
    insecure = given.text("insecure", *names("INSECURE")).lower()
    return Endpoint(
        endpoint=endpoint,
        headers=given.headers(*names("HEADERS")),
        timeout_s=given.number(
            "timeout_s", Endpoint.timeout_s, 0.05, names("TIMEOUT")[0], 1000, names("TIMEOUT")[1], MAX_TIMEOUT_S
        ),
        compression=given.one_of("compression", ("none", "gzip"), "none", *names("COMPRESSION")),
        certificate=given.text("certificate", *names("CERTIFICATE")),
        client_certificate=given.text("client_certificate", *names("CLIENT_CERTIFICATE")),
        client_key=given.text("client_key", *names("CLIENT_KEY")),
        insecure=url.scheme == "http" and insecure != "false",
    )


@dataclass(frozen=True)
class _Given:
    """A flag beats the environment, which beats the file."""

    file: Mapping[str, object]
    env: Mapping[str, str]
    flags: Mapping[str, object]

    def text(self, key: str, *variables: str) -> str:
        if self.flags.get(key) is not None:
            return str(self.flags[key])
        found = next((self.env[v].strip() for v in variables if self.env.get(v, "").strip()), "")
        in_file = self.file.get(key)
        return found or ("" if in_file is None else str(in_file))

    def one_of(self, key: str, allowed: tuple[str, ...], default: str, *variables: str) -> str:
        return _SECTION.one_of(key, self.text(key, *variables).lower() or default, allowed)

    def number(
        self,
        key: str,
        default: float,
        least: float,
        variable: str = "",
        divisor: int = 1,
        general: str = "",
        most: float = float("inf"),
    ) -> float:
        """A number; one from the environment is divided by ``divisor``."""
        in_env = self.flags.get(key) is None and any(self.env.get(v, "").strip() for v in (variable, general) if v)
        value = self.text(key, *(v for v in (variable, general) if v)) or str(default)
        scale = divisor if in_env else 1
        return _SECTION.number(key, value, least * scale, most * scale) / scale

    def headers(self, *variables: str) -> tuple[tuple[str, str], ...]:
        """``k=v,k=v`` with percent-encoded values, or a mapping in the file. Names in lower case, as gRPC demands."""
        in_file = self.file.get("headers")
        if (
            isinstance(in_file, Mapping)
            and self.flags.get("headers") is None
            and not any(self.env.get(v) for v in variables)
        ):
            return _checked((str(k).lower(), str(v)) for k, v in in_file.items())
        pairs = (p.partition("=") for p in self.text("headers", *variables).split(",") if p.strip())
        return _checked((k.strip().lower(), unquote(v.strip())) for k, _, v in pairs)


def _checked(headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Raises AgentError (usage) that tells no value, and no name that is none: it may be a secret too."""
    found = tuple(headers)
    for name, value in found:
        if not _NAME.fullmatch(name):
            raise AgentError("otlp.headers has a name that is none", why="it is NAME=VALUE,NAME=VALUE", exit_code=USAGE)
        if not _VALUE.fullmatch(value):
            raise AgentError(
                f"otlp.headers has a value that no header can hold: {name}",
                why="it is text in one line, without control characters: remove the line's end or the like from it",
                exit_code=USAGE,
            )
    return found
