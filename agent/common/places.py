"""Where the processes of a finding ran, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Columns of ``finding``; with ``culprit_`` in front those of the culprit.
PLACE = ("namespace", "pod", "container_name", "image", "unit", "container_id")


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
