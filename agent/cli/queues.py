"""tickscope queues: prints the latest state of every queue."""

from __future__ import annotations

from typing import Any

import click

from agent.cli import options
from agent.errors import NO_ROWS

COLUMNS = (
    "system",
    "queue",
    "partition",
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
#: The columns that identify a broker's queue, and their headings.
_BROKERS = ("host", "system", "cluster", "destination", "partition", "consumer_group")
_NAMED = {"queue": "destination", "length": "lag_messages", "oldest_s": "oldest_undelivered_s"}


@click.command("queues")
@click.option(
    "--since", default="5m", show_default=True, metavar="TIME", help="Only queues that were polled since this time."
)
@click.option("--now", is_flag=True, help="Query sockets and devices from the kernel now; needs no agent and no store.")
@options.reading
def command(since: str, now: bool, fmt: str, store: str) -> None:
    """Show the latest state of every queue: consumer groups, accept queues, connections with much unread data, network
    devices.

    The history of the queues is in the tables queue_lag and socket_queue.

    \b
    tickscope queues
    tickscope query queue_lag --since 10m --group-by destination,consumer_group
    """
    from agent.cli.gaps import report_gaps
    from agent.cli.output import emit_rows, note

    rows, gaps, notes = (_configured(), [], []) if now else _stored(store, since)
    emit_rows(rows, fmt, COLUMNS, {"gaps": gaps})
    report_gaps(gaps, notes, fmt)
    if not rows:
        note("no queues; is the agent running? `tickscope status`")
        click.get_current_context().exit(NO_ROWS)


def _configured() -> list[dict[str, Any]]:
    from agent.queues.live import kernel_queues

    return [dict.fromkeys(COLUMNS) | row for row in kernel_queues()]


def _stored(store: str, since: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """(queues, gaps, notes)."""
    from agent.ask.question import Question
    from agent.store.sources import opened

    with opened(store, ["queue_lag", "socket_queue", "loss"], since) as source:
        brokers = source.rows(
            Question("queue_lag", latest=_BROKERS, order=("system", "destination", "consumer_group", "partition"))
        )
        kernel = source.rows(
            Question("socket_queue", latest=("host",), order=("kind", "-queue"))
        )  # all rows of the last poll
        gaps, notes = source.gaps(), source.notes
    once = {tuple(row[key] for key in _BROKERS): row for row in brokers}.values()
    named = [{name: row.get(_NAMED.get(name, name)) for name in COLUMNS} for row in once]
    return (
        [
            *named,
            *sorted(map(_kernel, kernel), key=lambda q: (q["system"] or "", -(q["length"] or 0), q["queue"] or "")),
        ],
        gaps,
        notes,
    )


def _kernel(row: dict[str, Any]) -> dict[str, Any]:
    """A kernel queue as a row of the output."""
    place = (
        f"{row['saddr'] or '*'}:{row['sport']}" + (f" {row['peer']}" if row["peer"] else "")
        if row["sport"] is not None
        else None
    )
    same = {name: row[name] for name in ("limit", "overflows", "drops", "peer", "t_ns", "wall_ns", "host")}
    return (
        dict.fromkeys(COLUMNS) | same | {"system": row["kind"], "queue": row["device"] or place, "length": row["queue"]}
    )
