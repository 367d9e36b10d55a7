"""Retention: the sealer removes sealed segments beyond the store's size and age, first their bulk, then the rest."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from typing import Any

from agent.common.fairness import UpperBound
from agent.store import hot_file, segments
from agent.store.lifetimes import Lifetimes

_KEPT_LONG = (*segments.KEPT_LONG, "clock_offset")


@dataclasses.dataclass(frozen=True)
class Retention:
    """max_bytes, max_age_s: of sealed segments. findings_max_bytes, findings_max_age_s: of the thinned older ones.

    Ages are by the store's own clock (agent/store/lifetimes.py): CLOCK_BOOTTIME, summed over the boots that the store
    knows. Nothing ages while the host is off, or in a boot before its first or after its last agent. So segments may be
    kept longer than by the calendar, never shorter; max_bytes still bounds them.
    """

    max_bytes: float
    max_age_s: float
    findings_max_bytes: float = 16 << 20
    findings_max_age_s: float = 400 * 86400.0


def retain(limits: Retention, lived: Lifetimes) -> None:
    """Removes the oldest sealed segments of the current directory beyond these limits.

    First a segment loses its bulk: findings, and the offset history that dates them, stay. The rest is removed beyond
    its own limits.
    """
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        listed = segments.listing(fd)
        sizes = {seq: segments.tree_bytes(fd, segments.sealed_name(seq)) for seq in listed.sealed}
        total = hot_file.total_bytes(fd)
    finally:
        os.close(fd)
    thin = [seq for seq in listed.sealed if _head(seq).get("thin")]
    whole = [seq for seq in listed.sealed if seq not in set(thin)]
    total += sum(sizes[seq] for seq in whole)
    for seq in whole:
        if total <= limits.max_bytes and _age_s(seq, lived) <= limits.max_age_s:
            break
        _thin(seq)
        total -= sizes[seq]
        thin.append(seq)
    kept = 0
    for seq in sorted(filter(_drop_bulk, thin), reverse=True):
        name = segments.sealed_name(seq)
        kept += sum(entry.stat().st_size for entry in os.scandir(name))
        if kept > limits.findings_max_bytes or _age_s(seq, lived) > limits.findings_max_age_s:
            shutil.rmtree(name)


def _head(seq: int) -> dict[str, Any]:
    """The segment's head; for a damaged one a head without tables and as old as the store, so that it does not block
    retention.
    """
    try:
        with open(f"{segments.sealed_name(seq)}/{segments.HEAD}", encoding="utf-8") as file:
            head = dict(json.load(file))
        return head | {"tables": dict(head["tables"]), "lived_ns": int(head.get("lived_ns", 0))}
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return {"tables": {}, "lived_ns": 0}


def sealed_ns(seq: int) -> int:
    """The store's clock at the sealing; its start if unknown."""
    return int(_head(seq)["lived_ns"])


def _age_s(seq: int, lived: Lifetimes) -> float:
    return (lived.lived_ns - sealed_ns(seq)) / 1e9


def _thin(seq: int) -> None:
    """Marks a segment as thin, so that only its long-lived tables count. The mark comes first, so that no reader looks
    for removed files.
    """
    name, head = segments.sealed_name(seq), _head(seq)
    head.update(thin=True, tables={t: v for t, v in head["tables"].items() if t in _KEPT_LONG})
    with open(f"{name}/{segments.HEAD}.tmp", "w", encoding="utf-8") as out:
        json.dump(head, out)
    os.rename(f"{name}/{segments.HEAD}.tmp", f"{name}/{segments.HEAD}")


def _drop_bulk(seq: int) -> bool:
    """Removes the bulk of a thin segment, or everything if it has no finding. Returns whether anything is left."""
    name = segments.sealed_name(seq)
    if "finding" not in _head(seq)["tables"]:
        shutil.rmtree(name)
        return False
    for entry in os.listdir(name):
        if entry != segments.HEAD and entry.removesuffix(".parquet") not in _KEPT_LONG:
            os.unlink(f"{name}/{entry}")
    return True


#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "store",
        "size and age of the store",
        "as set",
        "the oldest rows are removed, except for findings",
        "a note of queries",
        setting="`max_bytes`, `max_age_days`",
    ),
    UpperBound(
        "store",
        "findings older than the other rows",
        f"{int(Retention.findings_max_bytes) >> 20} MiB, {Retention.findings_max_age_s / 86400:g} days",
        "removed",
        "a note of queries",
    ),
)
