"""Settings of the metrics page: address, detail, and permitted hosts."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any

from agent.common.address import with_port
from agent.common.settings import any_of, one_of, part, setting, texts, value, whole

#: Samples of all events' metrics together on the page, except with the detail ``full``.
MAX_SAMPLES = 4800


def listen_address(given: object) -> tuple[str, int]:
    """(host, port) of ``127.0.0.1:9469``, ``localhost:9469``, ``[::1]:9469``, ``:9469`` (all addresses) or ``9469``
    (127.0.0.1). Raises ValueError.
    """
    host, colon, port = str(given).rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    six = ":" in bare
    if (
        not (port.isascii() and port.isdigit() and len(port) < 6 and int(port) < 65536)
        or six != (bare != host)
        or set("[] ") & set(bare)
    ):
        raise ValueError("must be address:port, [address]:port of an IPv6 address, or empty")
    if six:
        ipaddress.IPv6Address(bare)
    return bare if colon else "127.0.0.1", int(port)


def _address(given: object) -> str:
    if given in ("", False):
        return ""
    return with_port(*listen_address(given))


def _schema() -> dict[str, Any]:
    return any_of({"type": "string"}, {"type": "integer", "minimum": 0, "maximum": 65535}, {"const": False})


@dataclass(frozen=True)
class MetricsSettings:
    """Of the metrics page and of OTLP."""

    detail: str = setting(
        "normal",
        one_of("normal", "full"),
        "`full`: all labels (peers, processes of system calls) and buckets, up to 2,000 series per metric",
    )
    samples: int = setting(
        MAX_SAMPLES,
        whole(1000, 1_000_000),
        "with `normal`: maximum number of samples of event metrics; the rest is summed under otel_metric_overflow",
    )
    hosts: tuple[str, ...] = setting(
        (),
        texts("a list of names"),
        "host names under which the page may be requested, besides localhost and addresses: [node7.example]",
    )

    @property
    def max_samples(self) -> int | None:
        """None: unlimited, except for the 2,000 series per metric."""
        return None if self.detail == "full" else self.samples


@dataclass(frozen=True)
class PageSettings:
    prometheus: str = setting(
        "127.0.0.1:9469",
        value(_address, "address:port, or empty", schema=_schema),
        "address of the metrics page; a port alone is one of 127.0.0.1; 0.0.0.0:9469 for all addresses; '' for none",
    )
    metrics: MetricsSettings = setting(MetricsSettings(), part(MetricsSettings), "of the metrics page and of OTLP")

    @property
    def address(self) -> tuple[str, int]:
        return listen_address(self.prometheus)
