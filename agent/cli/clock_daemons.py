"""The last reports of the time daemons for ``tickscope clock``: what ``chronyc tracking`` or ``ntpq -c rv`` shows, and
contradictions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.ask.row_source import RowSource

TABLES_OF = ("clock_daemon", "clock_offset")
_COLUMNS = (
    "t_ns",
    "daemon",
    "kind",
    "state",
    "source",
    "offset_ns",
    "distance_ns",
    "root_delay_ns",
    "root_dispersion_ns",
    "delay_ns",
    "stratum",
    "leap",
    "ref_id",
    "last_update_ns",
    "update_interval_ns",
    "last_offset_ns",
    "rms_offset_ns",
    "freq_ppb",
    "residual_freq_ppb",
    "skew_ppb",
    "reach",
    "poll_s",
    "reason",
)
#: In the order of display.
_KINDS = ("system", "source", "check")
#: A daemon whose last report is older than this, at the agent's last reading, is left out.
_RECENT_NS = 600_000_000_000


def rows(source: RowSource) -> list[dict[str, Any]]:
    """In the newest boot, the last row of each daemon (whatever its source), of each of its sources, and of each
    comparison. The source has the tables ``TABLES_OF``. Raises AgentError.
    """
    from agent.ask.question import GroupValue, Question, Where

    if not source.boots:
        return []
    boot = Where("boot_id", "=", source.boots[-1])
    newest = Question("clock_offset", where=(boot,), values=(GroupValue("last_ns", "max", "t_ns"),))
    read_ns = source.rows(newest)[0]["last_ns"]
    if read_ns is None:
        return []
    recent = Where("t_ns", ">=", read_ns - _RECENT_NS)
    reports = source.rows(
        Question(
            "clock_daemon",
            _COLUMNS,
            (boot, recent, Where("kind", "in", _KINDS)),
            latest=("daemon", "kind", "source"),
        )
    )
    last = {(row["daemon"], row["kind"], None if row["kind"] == "system" else row["source"]): row for row in reports}
    return sorted(last.values(), key=lambda r: (r["daemon"] or "", _KINDS.index(r["kind"]), r["source"] or ""))


def words(found: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """(name, report) of daemons and of servers, then disagreements."""
    from agent.cli.cells import duration

    for row in found:
        if row["kind"] == "check":
            if row["state"] == "disagree":
                yield "", f"DISAGREES with {row['source']}: {row['reason'] or duration(row['offset_ns'])}"
        elif row["kind"] == "system" or row["daemon"] == "sntp":
            yield row["daemon"], _report(row)
            detail = ", ".join(_details(row))
            if detail:
                yield "", detail


def _report(row: dict[str, Any]) -> str:
    from agent.cli.cells import duration

    what = "to" if row["state"] in ("synchronised", "unsynchronised") else "asked at"
    reports = [
        row["state"]
        + (f" {what} {row['source']}" if row["source"] else "")
        + (f", stratum {row['stratum']}" if row["stratum"] is not None else "")
    ]
    if row["offset_ns"] is not None:
        direction = "slow" if row["offset_ns"] > 0 else "fast"
        bound = "" if row["distance_ns"] is None else f", within {duration(row['distance_ns'])}"
        reports.append(f"our clock is {duration(abs(row['offset_ns']))} {direction}{bound}")
    if row["last_update_ns"] is not None:
        reports.append(f"updated {duration(time.clock_gettime_ns(time.CLOCK_BOOTTIME) - row['last_update_ns'])} ago")
    if row["reason"]:
        reports.append(row["reason"])
    return "; ".join(reports)


def _details(row: dict[str, Any]) -> Iterator[str]:
    from agent.cli.cells import duration

    for name, label in (
        ("last_offset_ns", "last offset"),
        ("rms_offset_ns", "on average"),
        ("root_delay_ns", "root delay"),
        ("root_dispersion_ns", "root dispersion"),
        ("delay_ns", "delay"),
        ("update_interval_ns", "updates each"),
    ):
        if row[name] is not None:
            yield f"{label} {duration(row[name])}"
    for name, label in (("freq_ppb", "frequency"), ("residual_freq_ppb", "residual"), ("skew_ppb", "skew")):
        if row[name] is not None:
            yield f"{label} {row[name] / 1e3:+.3f} ppm" if name != "skew_ppb" else f"{label} {row[name] / 1e3:.3f} ppm"
    if row["leap"] not in (None, "none"):
        yield f"leap {row['leap']}"
    if row["ref_id"]:
        yield f"reference {row['ref_id']}"
