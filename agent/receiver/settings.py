"""The setting ``otlp_receiver``: where OTLP over HTTP is received. Off where it names nothing."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from agent.common.settings import Section
from exporters.page_settings import listen_address

_SECTION = Section("otlp_receiver")
_LOCAL = {"": "127.0.0.1", "localhost": "127.0.0.1"}


@dataclass(frozen=True)
class ReceiverConfig:
    """http: address and port, None where it is off."""

    http: tuple[str, int] | None = None

    @classmethod
    def parse(cls, section: Mapping[str, object]) -> ReceiverConfig:
        """Raises AgentError (exit code 2) that names the key."""
        if section.get("grpc"):
            why = "OTLP over gRPC is not received: set http, and OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf in programs"
            raise _SECTION.wrong("grpc", section["grpc"], why)
        _SECTION.known({key: value for key, value in section.items() if key != "grpc"}, ("http",))
        value = section.get("http")
        return cls(None if value in ("", None, False) else _address(value))


def _address(value: object) -> tuple[str, int]:
    text = f"127.0.0.1:{value}" if type(value) is int else value
    if not isinstance(text, str):
        raise _SECTION.wrong("http", value, "it is address:port, such as 127.0.0.1:24318")
    host, port = listen_address(text, "otlp_receiver.http")
    host = _LOCAL.get(host, host)
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise _SECTION.wrong("http", value, "it is a loopback address, such as 127.0.0.1:24318 or [::1]:24318")
    if port in (4317, 4318):
        raise _SECTION.wrong(
            "http", value, f"port {port} is an OpenTelemetry Collector's: use another, such as 2{port}"
        )
    if port < 1024:
        raise _SECTION.wrong("http", value, "the receiver has no privilege, so its port is at least 1024")
    return host, port
