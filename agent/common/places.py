"""Where a process runs: its unit, container and pod; of the processes of a finding also in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

#: Columns of ``finding`` of where the impacted process ran.
PLACE = ("namespace", "pod", "container_name", "image", "unit", "container_id")
#: The same, and where the culprit ran.
PLACES = (*PLACE, *(f"culprit_{name}" for name in PLACE))


class ProcessPlace(NamedTuple):
    """Values of the columns of these names (agent/tables), empty where unknown. unit: of the system's systemd; not the
    scope that systemd has for a container.
    """

    unit: bytes = b""
    container_id: bytes = b""
    container_name: bytes = b""
    image: bytes = b""
    pod: bytes = b""
    namespace: bytes = b""
    pod_uid: bytes = b""
    runtime: bytes = b""


NOWHERE = ProcessPlace()


def place_text(row: Mapping[str, Any], prefix: str = "") -> str:
    """Where the impacted process ran, in words; empty if unknown. row: the finding by column. prefix: ``culprit_``
    for the culprit.
    """
    namespace, pod, name, image, unit, container_id = (row.get(f"{prefix}{column}") or "" for column in PLACE)
    named = (
        ("pod", pod and f"{namespace}/{pod}"),
        ("container", name or container_id[:12]),
        ("image", image),
        ("unit", unit),
    )
    return ", ".join(f"{what} {text}" for what, text in named if text)


def culprit_place(row: Mapping[str, Any]) -> str:
    """The same of the culprit; empty if it is where the impacted process ran."""
    where = place_text(row, "culprit_")
    return "" if where == place_text(row) else where
