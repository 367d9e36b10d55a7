"""The settings of the metrics: how much detail, and who may ask. The section ``metrics`` of the configuration file."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from agent.common.settings import Section

#: Samples that all metrics of events together may be on the page, but with the detail ``full``.
MAX_SAMPLES = 4800
DETAILS = ("normal", "full")
_LEAST, _MOST = 1000, 1_000_000
_SECTION = Section("metrics")


@dataclass(frozen=True)
class PageConfig:
    """detail: ``normal``, or ``full`` for all labels and buckets and no bound on the page but 2,000 series a metric.

    samples: with ``normal``, what the metrics of events may be on the page; some 150 samples of the agent itself come
    on top.
    aliases: metrics that got another unit are there under their old names too. hosts: names under which the page may be
    asked for, beside loopback and addresses.
    """

    detail: str = "normal"
    samples: int = MAX_SAMPLES
    aliases: bool = False
    hosts: tuple[str, ...] = ()

    @property
    def max_samples(self) -> int | None:
        return None if self.detail == "full" else self.samples

    @classmethod
    def parse(cls, section: Mapping[str, object]) -> PageConfig:
        """Raises AgentError (usage) for an unknown key or a value that does not fit."""
        _SECTION.known(section, (f.name for f in fields(cls)))
        checks: dict[str, Callable[[object], object]] = {
            "detail": lambda value: _SECTION.one_of("detail", value, DETAILS),
            "samples": lambda value: _SECTION.whole("samples", value, _LEAST, _MOST),
            "aliases": lambda value: _SECTION.flag("aliases", value),
            "hosts": lambda value: _SECTION.texts("hosts", value, "a list of names"),
        }
        return cls(**{key: checks[key](value) for key, value in section.items()})  # type: ignore[arg-type]


def listen_address(text: str, setting: str = "prometheus") -> tuple[str, int]:
    """(host, port) of ``127.0.0.1:9469``, ``localhost:9469``, ``[::1]:9469`` or ``:9469``. Raises AgentError (exit code
    2).
    """
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    six = ":" in bare
    if (
        not (port.isascii() and port.isdigit() and len(port) < 6 and int(port) < 65536)
        or six != (bare != host)
        or set("[] ") & set(bare)
    ):
        raise Section().wrong(setting, text, "it is address:port, [address]:port of an IPv6 address, or empty")
    if six:
        try:
            ipaddress.IPv6Address(bare)
        except ValueError as error:
            raise Section().wrong(setting, text, str(error)) from error
    return bare, int(port)
