"""``tickscope queues show``: one queue, with the last hour as a plot."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from agent.cli import options
from agent.errors import NO_ROWS, AgentError

if TYPE_CHECKING:
    from agent.cli.queues_series import QueueSeries


@click.command("show")
@click.argument("name", type=options.StoredName("queue", "queue_lag", "destination"), metavar="NAME")
@click.option("--group", metavar="GROUP", help="The consumer group to plot [default: the one in the worst state].")
@click.option("--cluster", metavar="CLUSTER", help="Only queues of this cluster or server.")
@options.since("From this time on: 90s, 5m, 2h, 1d, ISO 8601, boot+SECONDS.", "1h")
@click.option("--until", metavar="TIME", help="Up to this time.")
@options.reading
def command(
    name: str, group: str | None, cluster: str | None, since: str, until: str | None, fmt: str, store: str
) -> None:
    """Show one queue: its lag over time, its state and why, its partitions and consumer groups, its consumers, the
    processes of the host that talk to its servers, duplicate and out-of-order messages, and when its state
    changed.

    NAME is the name of the queue, stream or topic, the beginning of the name, or a part of it that no other one has;
    `tickscope queues` lists them. The lags of partitions are added up in the plot.

    \b
    tickscope queues show orders
    tickscope queues show orders --group billing --since 6h
    tickscope queues show orders -o json
    """
    from agent.cli import queues_clients, queues_list, queues_order
    from agent.cli.chosen import chosen
    from agent.cli.gaps import report_gaps
    from agent.cli.output import emit_doc, emit_rows, quiet_pipe
    from agent.cli.queues_series import series
    from agent.store.sources import opened

    tables = ["queue_lag", "clock_change", "clock_offset", "loss", *queues_clients.TABLES, *queues_order.TABLES]
    with opened(store, tables, since, until, whole=True) as source:
        known = [row for row in queues_list.latest(source) if row["destination"] is not None]
        rows = _only(known, cluster)
        names = list(dict.fromkeys(row["destination"] for row in rows))
        if not names:
            raise AgentError(
                "no queue was polled in that time",
                remedy="widen --since, or see `tickscope queues`",
                exit_code=NO_ROWS,
            )
        found = chosen(name, names, "queue", "was polled", "widen --since, or see `tickscope queues`")
        rows = [row for row in rows if row["destination"] == found]
        shown = _shown(rows, group)
        drawn = series(source, shown[0])
        its, checked = queues_clients.clients(source, shown), queues_order.order(source, shown[0])
        gaps, notes = source.gaps(), source.notes
    report_gaps(gaps, notes, fmt)
    if fmt == "table":
        from agent.cli.queues_figures import text

        with quiet_pipe():
            click.echo("\n".join(text(drawn, shown, rows, its, checked, shutil.get_terminal_size((100, 40)).columns)))
    elif fmt == "json":
        emit_doc(
            {
                **_document(drawn),
                "queues": rows,
                "clients": list(map(asdict, its)),
                "order": list(map(asdict, checked)),
                "gaps": gaps,
                "rows": [asdict(p) for p in drawn.pieces],
            }
        )
    else:
        emit_rows([asdict(piece) for piece in drawn.pieces], fmt, ("from_ns", "to_ns", "lag", "behind_s"))


def _only(rows: list[dict[str, Any]], cluster: str | None) -> list[dict[str, Any]]:
    """Rows of this cluster. Raises AgentError (exit code 3) if there is none."""
    kept = [row for row in rows if cluster in (None, row["cluster"], row["peer"])]
    if rows and not kept:
        there = "; ".join(sorted({row["cluster"] or row["peer"] or "-" for row in rows}))
        raise AgentError(
            f"no queue of cluster {cluster} was polled in that time", why=f"there are: {there}", exit_code=NO_ROWS
        )
    return kept


def _shown(rows: list[dict[str, Any]], group: str | None) -> list[dict[str, Any]]:
    """The rows, one for each partition, of the consumer group that is plotted. Raises AgentError (exit code 3) if there
    is no such group.
    """
    from agent.queues.status import severity

    mine = [row for row in rows if group in (None, row["consumer_group"])]
    if not mine:
        there = "; ".join(sorted({row["consumer_group"] or "-" for row in rows}))
        raise AgentError(
            f"no consumer group {group} was polled in that time", why=f"there are: {there}", exit_code=NO_ROWS
        )
    worst = max(mine, key=lambda row: (severity(row["status"]), row["lag_messages"] or 0))
    same = ("host", "system", "cluster", "consumer_group", *(() if worst["cluster"] else ("peer",)))
    return [row for row in mine if all(row[name] == worst[name] for name in same)]


def _document(drawn: QueueSeries) -> dict[str, Any]:
    members = {name: value for name, value in asdict(drawn).items() if name not in ("pieces", "steps")}
    return {**members, "steps": [step._asdict() for step in drawn.steps]}
