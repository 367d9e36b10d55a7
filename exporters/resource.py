"""The resource attributes of this host and this agent, by the OpenTelemetry conventions."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from agent.common.host import resource_attributes


def describe(boot_id: str, env: Mapping[str, str], version: str, given: Mapping[str, str]) -> dict[str, str]:
    """Resource attributes; ``given`` are the settings'. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence,
    as specified.

    ``service.instance.id`` is ``host.name`` unless given, not a UUID as the convention recommends: it becomes the label
    ``instance`` in Prometheus, by which alerts name the node. ``host.id`` is /etc/machine-id, by the convention for
    Linux. ``host.boot.id`` (no convention) is the boot of the agent's CLOCK_BOOTTIME values.
    """
    uname, release = os.uname(), _os_release()
    out = {
        "service.name": "tickscope",
        "service.version": version,
        "host.name": socket.gethostname(),
        "host.id": _line("/etc/machine-id"),
        "host.arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(uname.machine, uname.machine),
        "host.boot.id": boot_id,
        "os.type": "linux",
        "os.name": release.get("NAME", ""),
        "os.version": release.get("VERSION_ID", ""),
        "os.build_id": uname.release,
        "os.description": release.get("PRETTY_NAME", ""),
    }
    out.update(given)
    out.update(resource_attributes(env))
    out.setdefault("service.instance.id", out["host.name"])
    if env.get("OTEL_SERVICE_NAME", "").strip():
        out["service.name"] = env["OTEL_SERVICE_NAME"].strip()
    # The environment may contain bytes that are not UTF-8, which are invalid in protobuf and on the metrics page.
    return {k.encode(errors="replace").decode(): v.encode(errors="replace").decode() for k, v in out.items() if v}


def _line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _os_release() -> dict[str, str]:
    pairs = (line.partition("=") for line in _line("/etc/os-release").splitlines())
    return {key: value.strip("\"'") for key, _, value in pairs if value}
