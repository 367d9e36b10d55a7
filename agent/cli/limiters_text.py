"""Plots a limiter's time series with Braille dots on a terminal, with its figures below."""

from __future__ import annotations

import sys
from typing import Any

from agent.cli.cells import cell, duration
from agent.cli.clock_series import NAMED
from agent.cli.clock_text import Dots, across, can, framed, nice, paint, timeline
from agent.cli.limiters_series import LimiterSeries
from agent.cli.output import coloured
from agent.common.printable import printable

#: The drawn series, the topmost last: name, colour, character where there is no colour, or no Braille.
_SERIES = (("requested", "33", "*"), ("admitted", "32", "#"), ("limit", "31", "-"))


def text(series: LimiterSeries, row: dict[str, Any], columns: int, rows: int = 12) -> list[str]:
    """Lines of at most ``columns`` characters. row: of ``seen_in``, for the figures."""
    plain = not can("⣿▲▼┤└─", sys.stdout.encoding)
    colour = coloured(sys.stdout)
    most = series.most() * 1.05 or 1.0
    labels = {round(value / most * (rows - 1)): f"{value:g}/s" if value else "0" for value in nice(0.0, most, 5)}
    left = max(map(len, labels.values())) + 1
    room = max(columns - left - 2, 20)
    out = [printable(series.limiter_id)[:columns]]
    letters = plain or not colour
    legend = (
        f"{paint(mark if letters else '⣿' if name != 'limit' else '⠒', code, colour)} {name}"
        for name, code, mark in _SERIES
    )
    out.append(
        " " * (left + 2)
        + "   ".join(legend)
        + f", units a second, each {duration(series.pieces[0].to_ns - series.pieces[0].from_ns)}"
    )
    out += framed(_drawn(series, room, rows, most, letters, colour), labels, ("-" if plain else "─") * room, plain)
    out += timeline(series, left, room, plain, colour)
    if (more := len(series.steps) - NAMED) > 0:
        out.append(f"  and {more:,} smaller jumps")
    return [*out, "", *figures(series, row)]


def figures(series: LimiterSeries, row: dict[str, Any]) -> list[str]:
    """Requested and admitted units as numbers, one per line."""
    demand, admitted = (
        sum(getattr(p, name) * (p.to_ns - p.from_ns) / 1e9 for p in series.pieces) for name in ("requested", "admitted")
    )
    of = (
        f"{row['members']} members"
        if (row["members"] or 0) > 1
        else f"{row['keys']} keys"
        if (row["keys"] or 0) > 1
        else ""
    )
    each = f", {'among' if row['differing'] else 'for each of'} {of}" if of else ""
    lines = [
        ("requested", f"{demand:,.0f} units, {max((p.requested for p in series.pieces), default=0.0):g}/s at most"),
        ("admitted", f"{admitted:,.0f} ({_share(admitted, demand)})"),
        ("refused", f"{demand - admitted:,.0f} ({_share(demand - admitted, demand)})"),
        (
            "limit",
            f"{_limit(row)}{each}"
            + (f", {cell('limit_use', row['limit_use'], '%')} used" if row["limit_use"] is not None else ""),
        ),
        (
            "clock",
            (
                f"{row['clock'] or 'not known'}; step-proof:"
                f" {cell('step_proof', row['step_proof']).replace('-', 'not known')}"
            ),
        ),
        ("back by D", row["on_step_back"] or "not known"),
        ("forward by D", row["on_step_forward"] or "not known"),
        ("library", " ".join(filter(None, (row["library"], row["version"]))) or "not known"),
        ("call site", _place(row)),
        (
            "process",
            f"{printable(row['comm'] or '')} {row['pid']}, {row['state']}" if row["pid"] is not None else "not known",
        ),
    ]
    if row["watch_cost"] is not None:
        lines.append(("watching", f"{cell('watch_cost', row['watch_cost'], '%')} of a CPU"))
    lines += [
        ("member", f"{m['member']:#x} of pid {m['pid']}: {m['decisions']:,} decisions, {m['refused']:,} refused")
        for m in series.members
        if m["member"] is not None
    ]
    return [f"  {name:14}{printable(value)}" for name, value in lines]


def _limit(row: dict[str, Any]) -> str:
    """The limit of one member; a range if members differ."""
    if row["unlimited"]:
        return "none"
    limit = "not known" if row["limit_per_s"] is None else f"{row['limit_per_s']:g}/s"
    if row["differing"] and row["limit_most"] != row["limit_per_s"]:
        limit += " or none" if row["limit_most"] is None else f" to {row['limit_most']:g}/s"
    if row["burst"] is None:
        return limit
    most = f" to {row['burst_most']:g}" if row["burst_most"] not in (None, row["burst"]) else ""
    return f"{limit}, burst {row['burst']:g}{most}"


def _place(row: dict[str, Any]) -> str:
    if not row["site"]:
        return "not known"
    where = f" ({row['file']}:{row['line']})" if row["file"] and row["line"] else ""
    return f"{row['site']}{where}" + (f", build {row['build_id']}" if row["build_id"] else "")


def _share(part: float, whole: float) -> str:
    return f"{part / whole * 100:.3g}%" if whole else "-"


def _drawn(series: LimiterSeries, room: int, rows: int, most: float, letters: bool, colour: bool) -> list[str]:
    """Draws each series in its own layer. A character has the colour, or the letter, of the topmost layer."""
    at_x = across(series, room)
    grids = []
    for name, _, _ in _SERIES:
        dots = Dots(room, rows)
        before: tuple[int, int] | None = None
        for piece in series.pieces:
            value = getattr(piece, name)
            if value is None:
                before = None
                continue
            y = round(min(value / most, 1.0) * (dots.height - 1))
            begin, end = at_x(piece.from_ns), max(at_x(piece.to_ns) - 1, at_x(piece.from_ns))
            for x in range(begin, end + 1):
                dots.line(x, 0 if name == "admitted" else y, x, y)
            if before is not None and name != "admitted":
                dots.line(begin, before[1], begin, y)
            before = end, y
        grids.append(dots.rows(plain=False))
    out = []
    for lines in zip(*grids, strict=True):
        line = ""
        for marks in zip(*lines, strict=True):
            bits = [ord(mark) - 0x2800 if mark != " " else 0 for mark in marks]
            top = max((i for i, some in enumerate(bits) if some), default=None)
            if top is None:
                line += " "
            else:
                shown = _SERIES[top][2] if letters else chr(0x2800 + (bits[0] | bits[1] | bits[2]))
                line += paint(shown, _SERIES[top][1], colour)
        out.append(line)
    return out
