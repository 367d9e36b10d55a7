"""Rows of ``limiters replay`` in the table format: the counts, and the process on a line below."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agent.cli.cells import cell

LIMITER_COLUMN = "limiter_id"
#: Headings. Columns that a narrow screen leaves out come last.
_JUMPED = {
    "decisions": "decisions",
    "admitted_program": "admitted",
    "admitted_true": "true_time",
    "over_admitted": "over_admitted",
    "wrongly_refused": "wrongly_refused",
    "quality": "quality",
    "excess": "excess",
    "windows_overlapped": "overlapped",
    "windows_skipped": "skipped",
}
_SPLIT = {
    "decisions": "decisions",
    "limit": "limit",
    "over_admitted": "over_admitted",
    "wrongly_refused": "wrongly_refused",
    "most_same": "most_same",
    "most_apart": "most_apart",
    "in_other_window": "other_window",
    "admitted_same": "same",
    "admitted_apart": "apart",
}


def jumped(rows: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Rows of a jump, and their columns."""
    out = []
    for row in rows:
        shown = {short: row[name] for name, short in _JUMPED.items()} | {"quality": row["quality"] or None}
        for name in ("over_admitted", "wrongly_refused"):
            if row[f"{name}_most"] not in (None, row[name]):
                shown[name] = f"{row[name]} to {row[f'{name}_most']}"
        when = cell("wall_ns", row["wall_ns"]) if row["wall_ns"] is not None else cell("jump_t_ns", row["jump_t_ns"])
        jump = f"{'+' if row['size_ns'] > 0 else ''}{cell('size_ns', row['size_ns'], 'ns')} at {when}"
        out.append({**shown, LIMITER_COLUMN: _owner_of(row, jump)})
    return out, (*_JUMPED.values(), LIMITER_COLUMN)


def split(rows: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Rows of a skew between two clocks, and their columns."""
    out = []
    for row in rows:
        clocks = (
            f"windows of {cell('window_ns', row['window_ns'], 'ns')}, {cell('skew_ns', row['skew_ns'], 'ns')} apart for"
            f" {row['replicas']}"
        )
        out.append({**{short: row[name] for name, short in _SPLIT.items()}, LIMITER_COLUMN: _owner_of(row, clocks)})
    return out, (*_SPLIT.values(), LIMITER_COLUMN)


def _owner_of(row: dict[str, Any], clocks: str) -> str:
    parts = [
        row["limiter_id"],
        *([f"pid {row['pid']}"] if row.get("pid") is not None else []),
        *([f"member {row['member']:#x}"] if row.get("member") is not None else []),
        clocks,
        *([row["algorithm"]] if row["algorithm"] else []),
    ]
    return ", ".join(parts) + (f": {row['reason']}" if row["reason"] else "")
