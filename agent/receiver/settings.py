"""The setting ``otlp_receiver``: where OTLP is taken. Off where it names nothing."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, fields

from agent.common.settings import Section
from exporters.page_settings import listen_address

#: An OpenTelemetry Collector's own.
COLLECTORS = {4317: "gRPC", 4318: "HTTP"}
_SECTION = Section("otlp_receiver")
_LOCAL = {"": "127.0.0.1", "localhost": "127.0.0.1"}


@dataclass(frozen=True)
class ReceiverConfig:
    """http, grpc: address and port of each, None where it is off."""

    http: tuple[str, int] | None = None
    grpc: tuple[str, int] | None = None

    @classmethod
    def parse(cls, section: Mapping[str, object]) -> ReceiverConfig:
        """Raises AgentError (exit code 2) that names the key."""
        _SECTION.known(section, (f.name for f in fields(cls)))
        found = cls(**{key: _address(key, value) for key, value in section.items() if value not in ("", None, False)})
        if found.http is not None and found.http == found.grpc:
            raise _SECTION.wrong("grpc", section["grpc"], "http has the same address: give each a port of its own")
        return found

    @property
    def enabled(self) -> bool:
        return self.http is not None or self.grpc is not None


def _address(key: str, value: object) -> tuple[str, int]:
    text = f"127.0.0.1:{value}" if type(value) is int else value
    if not isinstance(text, str):
        raise _SECTION.wrong(key, value, "it is address:port, such as 127.0.0.1:24318")
    host, port = listen_address(text, f"otlp_receiver.{key}")
    host = _LOCAL.get(host, host)
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        why = (
            "it takes what programs of this host send, whom the kernel names: an address of loopback, such as"
            " 127.0.0.1:24318 or [::1]:24318"
        )
        raise _SECTION.wrong(key, value, why)
    if port in COLLECTORS:
        why = (
            f"port {port} is an OpenTelemetry Collector's ({COLLECTORS[port]}), which would find it taken, or lose what"
            f" is sent to it: take another, such as 2{port}"
        )
        raise _SECTION.wrong(key, value, why)
    if port < 1024:
        raise _SECTION.wrong(key, value, "the receiver has no privilege, so its port is at least 1024")
    return host, port
