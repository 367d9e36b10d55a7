"""What the sealer removes: sealed segments beyond the store's size and age, first their bulk, then all of them."""

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
    """max_bytes, max_age_s: of sealed segments. findings_max_bytes, findings_max_age_s: of what is left of older ones.

    Ages are told by the store's own clock (agent/store/lifetimes.py), whatever the wall clock does: CLOCK_BOOTTIME,
    added up over the boots of which the store knows. While the host is off, or in the hours of a boot before its first
    or after its last agent, nothing ages: segments may be kept longer than a calendar says, never shorter; max_bytes
    bounds them all the same.
    """

    max_bytes: float
    max_age_s: float
    findings_max_bytes: float = 16 << 20
    findings_max_age_s: float = 400 * 86400.0


def retain(limits: Retention, lived: Lifetimes) -> None:
    """Remove the oldest sealed segments of the current directory, beyond these limits at this time of the store's
    clock.

    First a segment loses its bulk: findings, and the offset history that dates them, stay. What is left goes when it is
    beyond limits of its own.
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
    """Without tables, and as old as the store, where it is damaged: no reason to keep the others for ever."""
    try:
        with open(f"{segments.sealed_name(seq)}/{segments.HEAD}", encoding="utf-8") as file:
            head = dict(json.load(file))
        return head | {"tables": dict(head["tables"]), "lived_ns": int(head.get("lived_ns", 0))}
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return {"tables": {}, "lived_ns": 0}


def sealed_ns(seq: int) -> int:
    """The store's clock when it was sealed; its start where that is not known."""
    return int(_head(seq)["lived_ns"])


def _age_s(seq: int, lived: Lifetimes) -> float:
    return (lived.lived_ns - sealed_ns(seq)) / 1e9


def _thin(seq: int) -> None:
    """Mark that of a segment only what is kept long counts. The mark comes first, so that no reader looks for files
    that are gone.
    """
    name, head = segments.sealed_name(seq), _head(seq)
    head.update(thin=True, tables={t: v for t, v in head["tables"].items() if t in _KEPT_LONG})
    with open(f"{name}/{segments.HEAD}.tmp", "w", encoding="utf-8") as out:
        json.dump(head, out)
    os.rename(f"{name}/{segments.HEAD}.tmp", f"{name}/{segments.HEAD}")


def _drop_bulk(seq: int) -> bool:
    """Remove what a thin segment does not keep, all of it where it holds no finding; whether anything is left."""
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
        "the oldest segments are removed, except for findings",
        "a note of queries",
        setting="`max_bytes`, `max_age_days`",
    ),
    UpperBound(
        "store",
        "findings of removed segments",
        f"{int(Retention.findings_max_bytes) >> 20} MiB, {Retention.findings_max_age_s / 86400:g} days",
        "removed",
        "a note of queries",
    ),
)
