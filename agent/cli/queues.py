"""tickscope queues: the latest state of every queue."""

from __future__ import annotations

from typing import Any

import click

from agent.cli import options
from agent.errors import NO_ROWS

COLUMNS = (
    "system",
    "queue",
    "consumer_group",
    "length",
    "limit",
    "exact",
    "inexact_reason",
    "oldest_s",
    "pending",
    "oldest_pending_s",
    "consumers",
    "in_per_s",
    "out_per_s",
    "overflows",
    "drops",
    "status",
    "reason",
    "peer",
    "t_ns",
    "wall_ns",
    "host",
)
_BROKERS = """
SELECT system, destination AS queue, consumer_group, lag_messages AS length, exact, inexact_reason, oldest_undelivered_s AS oldest_s, pending,
       oldest_pending_s, consumers, in_per_s, out_per_s, status, reason, peer, t_ns, wall_ns, host
FROM queue_lag WHERE {where}
QUALIFY row_number() OVER (PARTITION BY host, system, destination, "partition", consumer_group, peer ORDER BY {newest}) = 1
ORDER BY system, queue, consumer_group"""
_KERNEL = """
SELECT kind AS system, coalesce(device, coalesce(saddr, '*') || ':' || sport || coalesce(' ' || peer, '')) AS queue, queue AS length, "limit",
       overflows, drops, peer, t_ns, wall_ns, host
FROM socket_queue WHERE {where}
QUALIFY rank() OVER (PARTITION BY host ORDER BY {newest}) = 1
ORDER BY system, length DESC, queue"""


@click.command("queues")
@click.option("--since", default="5m", show_default=True, metavar="TIME", help="Forget queues that were not seen since.")
@click.option("--now", is_flag=True, help="Ask the kernel now, by pyroute2, for sockets and devices; needs no agent and no store.")
@options.common
def command(since: str, now: bool, fmt: str, store: str) -> None:
    """The latest state of every queue: consumer groups, accept queues, connections with much unread, devices.

    A queue's history is in the tables queue_lag and socket_queue.

    \b
    tickscope queues
    tickscope query queue_lag --since 10m --group-by destination,consumer_group
    """
    from agent.cli.gaps import tell
    from agent.cli.output import emit_rows, note

    rows, gaps, notes = (_asked(), [], []) if now else _stored(store, since)
    emit_rows(rows, fmt, COLUMNS, {"gaps": gaps})
    tell(gaps, notes, fmt)
    if not rows:
        note("no queues; is the agent running? `tickscope status`")
        click.get_current_context().exit(NO_ROWS)


def _asked() -> list[dict[str, Any]]:
    from agent.queues.live import kernel_queues

    return [dict.fromkeys(COLUMNS) | row for row in kernel_queues()]


def _stored(store: str, since: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """(queues, gaps, notes)."""
    from agent.store.query import Session

    with Session(store, ["queue_lag", "socket_queue", "loss"], since) as session:
        where = " AND ".join(session.window.rows()) or "true"
        newest = ", ".join(f"{key} DESC" for key in session.order().rsplit(", ", 1))
        found = [session.run(sql.format(where=where, newest=newest)).dicts() for sql in (_BROKERS, _KERNEL)]
        gaps, notes = session.gaps(), session.notes
    return [dict.fromkeys(COLUMNS) | row for rows in found for row in rows], gaps, notes
