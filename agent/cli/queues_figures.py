"""Plots one queue's lag with Braille dots on a terminal, with its figures below."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from agent.cli import layout, queues_list, queues_text
from agent.cli.cells import cell, duration
from agent.cli.clock_text import Dots, across, can, framed, nice, paint, timeline
from agent.cli.output import coloured
from agent.cli.queues_clients import ClientProcess
from agent.cli.queues_order import OrderCounts
from agent.cli.queues_series import QueueSeries
from agent.cli.queues_text import behind, count, label, lag_text, seconds
from agent.common.printable import printable

_LABEL = 14
#: By ``message_order.source``.
_CHECKED = {"consumer": "consumed", "sample": "produced"}
Row = dict[str, Any]


def text(
    series: QueueSeries,
    shown: Sequence[Row],
    rows: Sequence[Row],
    clients: Sequence[ClientProcess],
    checked: Sequence[OrderCounts],
    columns: int,
) -> list[str]:
    """Lines of at most ``columns`` characters. shown: the rows (of ``queue_lag``) of the group that is plotted, one for
    each partition. rows: of all groups. clients: processes that talk to the queue's servers. checked: its messages.
    """
    plain = not can("⣿▲▼┤└─", sys.stdout.encoding)
    colour = coloured(sys.stdout)
    one = queues_text.added_up([queues_list.named(row) for row in shown])
    worst = next(row for row in shown if row["status"] == one["status"])
    out = [printable(f"{one['system']} {label(one)} of {one['cluster'] or one['peer'] or '?'}")[:columns], ""]
    unit = "bytes" if one["length"] is None and one["lag_bytes"] is not None else "messages"
    out += _plot(series, unit, columns, plain, colour)
    out.append("")
    order = [(_CHECKED.get(counts.source, counts.source), counts.text()) for counts in checked]
    for name, value in [*_figures(series, one, worst), *_more(shown), *order]:
        lines = layout.wrapped(printable(value), columns - _LABEL, "", "")
        out += [f"  {name if i == 0 else '':{_LABEL - 2}}{line}" for i, line in enumerate(lines)]
    if len(rows) > 1:
        all_rows = [queues_list.named(row) for row in rows]
        out += ["", *queues_text.broker_lines(all_rows, columns, colour, whole=True)]
    if clients:
        out += ["", "clients on this host"]
        for each in clients:
            out += layout.wrapped(printable(_client(series, each)), columns, "  ")
    if series.changes:
        out += ["", "changes of the state", *_changes(series, columns, colour)]
    return out


def _plot(series: QueueSeries, unit: str, columns: int, plain: bool, colour: bool, rows: int = 10) -> list[str]:
    most = max((piece.lag or 0 for piece in series.pieces), default=0) * 1.05 or 1.0
    labels = {round(value / most * (rows - 1)): f"{value:g}" for value in nice(0.0, most, 4) if value % 1 == 0}
    left = max(map(len, labels.values())) + 1
    room = max(columns - left - 2, 20)
    dots, at_x = Dots(room, rows), across(series, room)
    axis = ["-" if plain else "─"] * room
    before: tuple[int, int] | None = None
    for piece in series.pieces:
        begin, end = at_x(piece.from_ns), max(at_x(piece.to_ns) - 1, at_x(piece.from_ns))
        if piece.lag is None:
            axis[begin // 2 : end // 2 + 1] = "?" * len(axis[begin // 2 : end // 2 + 1])
            before = None
            continue
        y = round(piece.lag / most * (dots.height - 1))
        dots.line(*(before or (begin, y)), begin, y)
        dots.line(begin, y, end, y)
        before = end, y
    every = duration(series.pieces[0].to_ns - series.pieces[0].from_ns)
    out = [" " * (left + 2) + f"lag in {unit}, the largest of each {every}"]
    out += framed([paint(line, "36", colour) for line in dots.rows(plain)], labels, "".join(axis), plain)
    out += timeline(series, left, room, plain, colour)
    if "?" in axis:
        out.append("  ? the lag was not known")
    return out


def _lag(one: Row, inexact: str) -> str:
    if one["length"] is None:
        return f"unknown{inexact}" if one["lag_bytes"] is None else lag_text(one)
    return f"{lag_text(one)} messages{inexact}"


def _figures(series: QueueSeries, one: Row, worst: Row) -> list[tuple[str, str]]:
    """(topic, words). one: all partitions; worst: the row of the partition in the worst state."""
    since = next((c for c in reversed(series.changes) if c["status"] == one["status"]), None)
    changed = f", since {_when(series, since['t_ns'])}" if since is not None else ""
    inexact = f" ({worst['inexact_reason']})" if worst["inexact_reason"] else ""
    behind_s = behind(one)
    lines = [
        ("state", f"{one['status'] or 'unknown'}{changed}" + (f": {one['reason']}" if one["reason"] else "")),
        ("lag", _lag(one, inexact)),
        ("behind", "unknown" if behind_s is None else seconds(behind_s)),
    ]
    error = (
        ""
        if one["forecast_err_s"] is None
        else f", {'±' if can('±', sys.stdout.encoding) else '+-'} {seconds(one['forecast_err_s'])}"
    )
    if one["drains_in_s"] is not None:
        lines.append(("drains in", f"{seconds(one['drains_in_s'])}{error}"))
    if one["limit_in_s"] is not None:
        lines.append(("a limit in", f"{seconds(one['limit_in_s'])}{error}"))
    if one["pending"] is not None:
        held = [
            f"the oldest {seconds(one['oldest_pending_s'])} old" if one["oldest_pending_s"] is not None else "",
            f"held by {worst['holder']}" if worst["holder"] else "",
            f"{worst['redelivered']} delivered more than once" if worst["redelivered"] else "",
        ]
        lines.append(("pending", ", ".join(filter(None, [str(one["pending"]), *held]))))
    if one["consumers"] is not None:
        idle = f"; {worst['idle_consumer']} idle for {seconds(worst['idle_s'])}" if worst["idle_consumer"] else ""
        could = worst.get("consumer_capacity")
        ready = "" if could is None else f", ready for a message {could:.0%} of the time"
        lines.append(("consumers", f"{one['consumers']}{ready}{idle}"))
    if worst["workers"]:
        lines.append(("workers", worst["workers"]))
    if worst["tasks"]:
        lines.append(("next tasks", worst["tasks"]))
    rates = [
        f"{count(one[n])}/s {word}" for n, word in (("in_per_s", "in"), ("out_per_s", "out")) if one[n] is not None
    ]
    if rates:
        lines.append(("rates", ", ".join(rates)))
    return [*lines, ("server", _server(worst)), ("polled", f"{_when(series, worst['t_ns'])}")]


def _more(shown: Sequence[Row]) -> list[tuple[str, str]]:
    """(topic, words) of what only some brokers report; sums over the partitions, or the first one that is due."""

    def known(name: str) -> list[Any]:
        return [row[name] for row in shown if row.get(name) is not None]

    lines: list[tuple[str, str]] = []
    if sum(known("delayed")):
        lines.append(("delayed", f"{sum(known('delayed'))} wait for a set time"))
    if priorities := [text for text in known("priorities") if text]:
        lines.append(("priorities", f"{priorities[0]} (priority: messages)"))
    if due := known("redelivery_s"):
        first = min(due)
        lines.append(("redelivery", f"{'in' if first >= 0 else 'overdue by'} {seconds(abs(first))}"))
    if left := known("retention_left_s"):
        first = min(left)
        when = ("deleted in", seconds(first)) if first > 0 else ("deleted", "at any time")
        lines.append((when[0], f"{when[1]}: the first unread message, for its age"))
    if sum(known("removed")):
        lines.append(("removed", f"{sum(known('removed'))} before they were read, since the agent began to watch"))
    if sum(known("held_idle")):
        lines.append(("idle 60 s", f"consumers with {sum(known('held_idle'))} pending: {known('idle_holders')[0]}"))
    if states := list(dict.fromkeys(known("group_state"))):
        times = max(known("rebalances"), default=0)
        lines.append(("group", ", ".join(states) + (f", {times} rebalances since the first poll" if times else "")))
    if len(shown) > 1 and (holders := [row for row in shown if row.get("holder") and row.get("partition")]):
        lines.append(("assigned", ", ".join(f"{row['partition']}: {row['holder']}" for row in holders)))
    return lines


def _server(row: Row) -> str:
    used, limit = row["memory_bytes"], row["memory_limit_bytes"]
    of = f" of {limit / 2**20:,.0f} MiB" if limit else ""
    parts = [
        row["peer"] or "address unknown",
        row["server_role"] or "",
        f"memory {used / 2**20:,.1f} MiB{of}" if used is not None else "",
        f"the poll took {duration(row['poll_ns'])}" if row["poll_ns"] is not None else "",
    ]
    return ", ".join(filter(None, parts))


def _client(series: QueueSeries, one: ClientProcess) -> str:
    words = (("connects", one.connects), ("failed", one.failed), ("closed", one.closed), ("switches", one.switches))
    counts = ", ".join(f"{n} {word}" for word, n in words if n) or "connected before"
    who = f"{one.comm or '?'} {one.pid}" + (f" ({one.worker})" if one.worker else "")
    return f"{who}  {one.server}  {counts}, last {_when(series, one.last_ns)}"


def _when(series: QueueSeries, t_ns: int) -> str:
    if not series.wall_ns:
        return cell("t_ns", t_ns)
    return cell("wall_ns", t_ns + series.wall_ns)


def _changes(series: QueueSeries, columns: int, colour: bool) -> list[str]:
    out = []
    for change in series.changes:
        where = "" if change["partition"] is None else f"partition {change['partition']}: "
        status = str(change["status"] or "none")
        head = f"{_when(series, change['t_ns'])}  "
        rest = f"{where}{status}" + (f": {change['reason']}" if change["reason"] else "")
        first, *more = layout.wrapped(printable(head + rest), columns, "  ")
        out.append(first.replace(status, paint(status, queues_text.status_colour(status), colour), 1))
        out += more
    return out
