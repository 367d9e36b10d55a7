"""What is known of the messages of a queue: how many came twice or out of order (docs/queues-order.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.ask.question import Condition
    from agent.ask.row_source import RowSource

#: What ``order`` reads, beside ``queue_lag``.
TABLES = ("message_order",)


@dataclass(frozen=True)
class OrderCounts:
    """Sums in the window. source: consumer (messages as its consumers had them) or sample (as they were produced).
    unread: of those in the queue, how many were not read; None if that is not known.
    """

    source: str
    messages: int
    duplicates: int
    out_of_order: int
    unread: int | None

    def text(self) -> str:
        counts = ((self.messages, "messages"), (self.duplicates, "duplicates"), (self.out_of_order, "out of order"))
        unread = [f"{self.unread:,} unread"] if self.unread else []
        return ", ".join([*(f"{n:,} {what}" for n, what in counts), *unread])


def order(source: RowSource, row: Mapping[str, Any]) -> list[OrderCounts]:
    """Of the queue and group of this row of ``queue_lag``, all partitions, in the boot of the row. What a consumer did
    not report (its system, cluster or group) is not compared.
    """
    from agent.ask.question import Question, Where
    from agent.ask.sql import conditions

    where: tuple[Where | Condition, ...] = (
        Where("boot_id", "=", row["boot_id"]),
        Where("destination", "=", row["destination"]),
        *(Where(name, "=", row[name], or_unknown=True) for name in ("system", "consumer_group") if row[name]),
        *_of_cluster(source, row),
    )
    its = conditions(Question("message_order", where=where), source.window)
    found = source.run(
        "SELECT source, sum(messages) AS messages, sum(duplicates) AS duplicates, sum(out_of_order) AS out_of_order,"
        f" sum(unread) AS unread FROM message_order WHERE {its} GROUP BY source ORDER BY source"
    )
    return [
        OrderCounts(
            one["source"] or "",
            int(one["messages"] or 0),
            int(one["duplicates"] or 0),
            int(one["out_of_order"] or 0),
            None if one["unread"] is None else int(one["unread"]),
        )
        for one in found.dicts()
    ]


def _of_cluster(source: RowSource, row: Mapping[str, Any]) -> list[Condition]:
    """What messages of the row's cluster meet: they have its name, or the address of one of its servers. A consumer may
    have a name of its own for the cluster if no other watched cluster has a queue of that name (as in
    agent/correlate/consumption.py).
    """
    from agent.ask.question import Condition, Question, Where
    from agent.ask.sql import conditions, literal

    queue = tuple(Where(name, "=", row[name]) for name in ("boot_id", "system", "destination"))
    found = source.run(
        "SELECT DISTINCT cluster, peer FROM queue_lag WHERE"
        f" {conditions(Question('queue_lag', where=queue), source.window)}"
    )
    here = row["cluster"] or row["peer"]
    names = {here} | {peer for cluster, peer in found.rows if (cluster or peer) == here}
    others = {cluster or peer for cluster, peer in found.rows} - names
    some = ", ".join(literal(name) for name in sorted(filter(None, names)))
    its = f"cluster IS NULL OR cluster IN ({some or 'NULL'})"
    return [Condition(its if others - {None} else f"{its} OR source = 'consumer'")]
