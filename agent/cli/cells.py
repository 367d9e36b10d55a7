"""Formats single values for the table format, and chooses the columns that fit a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from agent.common.duration import span
from agent.common.instants import iso
from agent.common.printable import printable
from agent.common.table import DERIVED
from agent.tables import TABLES

_BOOT_TIMES = {
    "t_ns",
    "proc_start_ns",
    "by_proc_start_ns",
    "first_proc_start_ns",
    "holder_start_ns",
    "server_start_ns",
    "from_ns",
    "to_ns",
    "max_from_ns",
    "begun_ns",
    "as_of_ns",
    "start_ns",
    "end_ns",
    "last_update_ns",
    "last_ns",
    "jump_t_ns",
    "excess_from_ns",
    "excess_to_ns",
    "until_ns",
    "was_due_ns",
    "is_due_ns",
    "polled_ns",
    "alt_ns",
}
_WALL_TIMES = {"wall_ns", "wall_alt_ns", "program_wall_ns", "due_wall_ns"}
_OFFSETS = {
    "real_mono_ns",
    "boot_mono_ns",
    "mono_raw_ns",
    "tai_mono_ns",
    "real_mono_before_ns",
    "real_mono_after_ns",
    "requested_ns",
    "real_raw_ns",
}
_BARS = "▁▂▃▄▅▆▇█"
#: Columns that a narrow terminal leaves out, the least important first.
_EXPENDABLE = (
    "wall_alt_ns",
    "host",
    "boot_id",
    "real_boot_ns",
    "wall_err_ns",
    "wall_state",
    "proc_start_ns",
    "container_id",
    "cgroup_id",
    "netns",
    "sock_id",
    "goroutine",
    "nr",
    "library_version",
    "interval_ns",
    "sample_rate",
    "saddr",
    "sport",
    "daddr",
    "dport",
    "family",
    "tid",
    "t_ns",
    "rtt_sum_us",
    "sum_ns",
    "poll_ns",
    "trace_id",
    "span_id",
    "sentence_parts",
    "details",
    "freq_after_ppb",
    "err_ns",
    "exact",
    "inexact_reason",
    "library",
    "source",
)


@cache
def _units() -> dict[str, str]:
    return {c.name: c.unit for t in TABLES.values() for c in (*DERIVED, *t.columns) if c.unit}


def cell(name: str, value: Any, unit: str | None = None) -> str:
    """A value as text. Durations, times and histograms are formatted; other values are not changed."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "hist" and isinstance(value, (list, tuple)):
        return spark(value)
    if isinstance(value, int) and name in _WALL_TIMES:
        return iso(value)
    if isinstance(value, int) and name in _BOOT_TIMES:
        return f"boot+{value / 1e9:.6f}"
    if isinstance(value, (int, float)):
        unit = _units().get(name, "") if unit is None else unit
        if unit in ("ns", "us") and name not in _OFFSETS:
            return duration(value * (1000 if unit == "us" else 1))
        if unit == "%":
            return f"{value * 100:.3g}%"
        return f"{value:.6g}" if isinstance(value, float) else str(value)
    if isinstance(value, list):
        return printable(" ".join(map(str, value))) or "-"
    return printable(" ".join(str(value).split()))


def duration(ns: float) -> str:
    """A short duration for columns: ``950ns 12.3us 4.56ms 1.2s``."""
    return span(ns, gap="")


def spark(counts: Sequence[int]) -> str:
    """A histogram as bars from its first used bucket, with that bucket's exponent: ``2^10 ▁▃█▁``."""
    used = [i for i, n in enumerate(counts) if n]
    if not used:
        return "-"
    top = max(counts)
    bars = "".join(_BARS[-(-n * (len(_BARS) - 1) // top)] if n else " " for n in counts[used[0] : used[-1] + 1])
    return f"2^{used[0]} {bars}"


def fit(names: Sequence[str], widths: Mapping[str, int], room: int, measure: str = "") -> list[str]:
    """The columns that fit ``room`` characters. It leaves out expendable ones first (never a row's first column), then
    from the right, and the table's measure last. One column always stays.
    """
    shown = list(names)
    kept = {*names[:1]} - {"t_ns", "boot_id"}
    going = [n for n in _EXPENDABLE if n in shown and n not in kept] + [
        n for n in reversed(names) if n not in _EXPENDABLE
    ]
    going.sort(key=lambda n: n == measure)
    for name in going[: len(names) - 1]:
        if sum(widths[n] + 2 for n in shown) - 2 <= room:
            break
        shown.remove(name)
    return shown
