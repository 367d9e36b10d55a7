"""The queues as lines for a terminal: one line each, cut to the width."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agent.cli import layout
from agent.cli.clock_text import can, paint
from agent.common.duration import brief
from agent.common.printable import printable
from agent.queues.status import severity

_BARS, _PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.-:=+*#"
#: Pieces of ``trend`` that a line shows, the newest.
_TREND = 8
_COLOURS = {"lagging": "33", "rewound": "33", "unknown": "33", "draining": "36"}
_ALARM, _WELL = "31", "32"
_RIGHT = frozenset({"lag", "behind", "drains", "pending", "in/s", "out/s", "consumers", "length", "limit", "drops"})
#: Columns that are cut to fit, with the width down to which each is cut in turn.
_CUT = (("queue", 28), ("why", 24), ("queue", 20), ("why", 10), ("cluster", 8), ("queue", 14))
#: Columns for screens that are at least so wide, and for pipes.
_EXTRA = {"pending": "pending", "in/s": "in_per_s", "out/s": "out_per_s", "consumers": "consumers"}
_WIDE = {"pending": 110, "in/s": 140, "out/s": 140, "consumers": 160}
_LEFT_OUT = ("cluster", "drains", "trend", "behind", "limit")  # first
Row = dict[str, Any]


def broker_lines(rows: Sequence[Row], width: int | None, colour: bool, *, whole: bool = False) -> list[str]:
    """A heading, and one line for each queue and consumer group: partitions are added up, unless ``whole``. width: None
    for a pipe, which gets all columns.
    """
    extra = [name for name in _EXTRA if width is None or width >= _WIDE[name]]
    return _laid_out(broker_texts(rows if whole else summed(rows), extra), width, colour)


def summed(rows: Sequence[Row]) -> list[Row]:
    """One row for each queue and group, and for each server: partitions are added up."""
    return [added_up(some) for some in _grouped(rows)]


def broker_texts(rows: Sequence[Row], extra: Iterable[str] = tuple(_EXTRA)) -> list[dict[str, str]]:
    """The cells of each row, by column. extra: which columns of ``_EXTRA`` too."""
    several_clusters = len({(row["system"], row["cluster"]) for row in rows}) > len({row["system"] for row in rows})
    several_hosts = len({row["host"] for row in rows}) > 1
    return [
        {
            **({"host": row["host"] or "-"} if several_hosts else {}),
            "system": row["system"] or "-",
            **({"cluster": row["cluster"] or "-"} if several_clusters else {}),
            "queue": label(row),
            "lag": lag_text(row),
            "behind": seconds(behind(row)),
            "trend": sparkline((row["trend"] or [])[-_TREND:]),
            "drains": seconds(row["drains_in_s"]),
            **{name: count(row[_EXTRA[name]]) for name in extra},
            "status": row["status"] or "-",
            "why": row["reason"] or row["inexact_reason"] or "",
        }
        for row in rows
    ]


def kernel_lines(rows: Sequence[Row], width: int | None, colour: bool) -> list[str]:
    """A heading, and one line for each queue of the kernel."""
    texts = [
        {
            "kernel": row["system"] or "-",
            "queue": row["queue"] or "-",
            **{column: count(row[column]) for column in ("length", "limit", "drops")},
        }
        for row in rows
    ]
    return _laid_out(texts, width, colour)


def label(row: Row) -> str:
    """``orders (billing)``, with the partition ``orders/3 (billing)``, or the server's address."""
    name = row["queue"]
    if name is None:
        return row["cluster"] or row["peer"] or "-"
    partition = "" if row["partition"] is None else f"/{row['partition']}"
    return f"{name}{partition}" + (f" ({row['consumer_group']})" if row["consumer_group"] else "")


def bytes_text(count: int) -> str:
    """For example 16.8 MB."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} B"


def lag_text(row: Row) -> str:
    """The lag; ``~`` if it is not exact."""
    if row["length"] is None and row["lag_bytes"] is not None:
        return bytes_text(row["lag_bytes"])
    return "-" if row["length"] is None else f"{'~' if row['exact'] is False else ''}{row['length']}"


def sparkline(values: Iterable[int | None]) -> str:
    """Counts as bars between 0 and the largest, or a step each if all are small; a space where one is not known."""
    known = list(values)
    if all(value is None for value in known):
        return "-"
    bars = _BARS if can(_BARS, sys.stdout.encoding) else _PLAIN_BARS
    steps = len(bars) - 1
    top = max(steps, *(value for value in known if value is not None))
    return "".join(" " if value is None else bars[-(-value * steps // top)] for value in known)


def status_colour(status: str) -> str:
    return _COLOURS.get(status, _ALARM if severity(status) else _WELL)


def _grouped(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each queue and group, and of each server."""
    out: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("host", "system", "cluster", "queue", "consumer_group"))
        whole = row["cluster"] and row["queue"] is not None
        out.setdefault(key if whole else (*key, row["peer"]), []).append(row)
    return list(out.values())


def added_up(rows: list[Row]) -> Row:
    """The partitions of one queue as one row: sums, the longest times, and the worst status with its reason."""
    worst = max(rows, key=lambda row: severity(row["status"]))
    if len(rows) == 1:
        return worst

    def of(name: str, how: Callable[[list[Any]], Any]) -> Any:
        known = [row[name] for row in rows if row[name] is not None]
        return how(known) if known else None

    alike = sum(row["status"] == worst["status"] for row in rows)
    count = f"{alike} of {len(rows)} partitions" if alike < len(rows) else f"{len(rows)} partitions"
    trends = [row["trend"] for row in rows if row["trend"]]
    sums = [[v for v in at if v is not None] for at in zip(*trends, strict=True)]
    draining = all(row["drains_in_s"] is not None for row in rows if row["length"])
    return {
        **worst,
        "partition": None,
        **{name: of(name, sum) for name in ("length", "lag_bytes", "pending", "in_per_s", "out_per_s")},
        **{name: of(name, max) for name in ("lag_s", "oldest_s", "consumers")},
        "exact": all(row["exact"] is not False and row["length"] is not None for row in rows),
        "drains_in_s": of("drains_in_s", max) if draining else None,
        "trend": [sum(known) if known else None for known in sums],
        "reason": f"{count}: {worst['reason']}" if worst["reason"] else count,
    }


def behind(row: Row) -> float | None:
    """The lag in time, in seconds."""
    known: float | None = row["oldest_s"] if row["lag_s"] is None else row["lag_s"]
    return known


def seconds(value: float | None) -> str:
    """A time in at most six characters; ``-`` if it is unknown."""
    return "-" if value is None else brief(value)


def count(value: float | None) -> str:
    """A number; one with a fraction in three digits."""
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:.0f}"


def _laid_out(rows: Sequence[dict[str, str]], width: int | None, colour: bool) -> list[str]:
    """A heading and the rows. Columns without any value are left out on a terminal."""
    rows = [{n: text if n == "trend" else printable(" ".join(text.split())) for n, text in row.items()} for row in rows]
    names = [name for name in rows[0] if width is None or any(row[name] not in ("-", "") for row in rows)]
    sizes = _sizes({name: [row[name] for row in rows] for name in names}, width)
    right = _RIGHT & set(sizes)
    (heading,) = layout.lines({name: name for name in sizes}, sizes, right)
    out = [paint(heading, "1", colour)]
    for row in rows:
        cut = {name: _cut(row[name], size) for name, size in sizes.items()}
        cells = {n: cut[n].rjust(size) if n in right else cut[n].ljust(size) for n, size in sizes.items()}
        if row.get("status", "-") != "-":
            cells["status"] = paint(cells["status"], status_colour(row["status"]), colour)
        out.append("  ".join(cells.values()).rstrip())
    return out


def _sizes(texts: dict[str, list[str]], width: int | None) -> dict[str, int]:
    """The columns that fit, with their widths."""
    full = {name: max(len(name), *map(len, its)) for name, its in texts.items()}
    if width is None:
        return full

    def beyond() -> int:
        return sum(size + 2 for size in full.values()) - 2 - width

    for name, least in _CUT:
        if name in full and beyond() > 0:
            full[name] = max(min(least, full[name]), full[name] - beyond())
    for name in _LEFT_OUT:
        if name in full and beyond() > 0:
            del full[name]
    if "why" in full and beyond() > 0:
        del full["why"]
    return full


def _cut(text: str, size: int) -> str:
    if len(text) <= size:
        return text
    return text[: max(size - 1, 0)] + ("…" if can("…", sys.stdout.encoding) else ".")
