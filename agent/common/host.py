"""Facts about this host that do not change while it runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def name() -> str:
    """``host.name`` of OTEL_RESOURCE_ATTRIBUTES, by which a pod knows its node's name; else the kernel's."""
    return resource_attributes(os.environ).get("host.name") or socket.gethostname()


def resource_attributes(env: Mapping[str, str]) -> dict[str, str]:
    """Of OTEL_RESOURCE_ATTRIBUTES, a list of ``key=value`` with percent-encoded values."""
    from urllib.parse import unquote

    pairs = (pair.partition("=") for pair in env.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","))
    return {key.strip(): unquote(value.strip()) for key, found, value in pairs if found}
