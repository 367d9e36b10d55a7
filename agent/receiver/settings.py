"""Where OTLP over HTTP is received. Off where it names nothing."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any

from agent.common.address import with_port
from agent.common.settings import any_of, setting, value
from exporters.page_settings import listen_address

_LOCAL = {"": "127.0.0.1", "localhost": "127.0.0.1"}


def _address(given: object) -> tuple[str, int] | None:
    if given in ("", False):
        return None
    host, port = listen_address(given)
    host = _LOCAL.get(host, host)
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise ValueError("must be a loopback address, such as 127.0.0.1:24318 or [::1]:24318")
    if port in (4317, 4318):
        raise ValueError(f"port {port} is that of an OpenTelemetry Collector: use another one, such as 2{port}")
    if port < 1024:
        raise ValueError("the port must be at least 1024, because the receiver has no privileges")
    return host, port


def _grpc(given: object) -> None:
    if given:
        raise ValueError(
            "OTLP over gRPC is not received: set http, and OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf in programs"
        )


def _schema() -> dict[str, Any]:
    return any_of({"type": "string"}, {"type": "integer", "minimum": 1024, "maximum": 65535}, {"const": False})


def _shown(address: tuple[str, int] | None) -> str:
    return with_port(*address) if address else ""


@dataclass(frozen=True)
class ReceiverSettings:
    """http: address and port, None where it is off. grpc: is not received; it can only be empty."""

    http: tuple[str, int] | None = setting(
        None,
        value(_address, "address:port of loopback, or empty", shown=_shown, schema=_schema),
        "address that receives OTLP over HTTP from programs of this host, such as 127.0.0.1:24318. Spans and logs of"
        " rate limiters become decisions; see docs/limiters-report.md",
    )
    grpc: None = setting(None, value(_grpc, "empty", schema=lambda: {"enum": ["", False]}))
