"""Adds the columns that the rows of all brokers share: system, cluster, time, the status of a group, its rates, and
when its queue will be empty or full.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from typing import Any

from agent.columns import fitted
from agent.common.clocks import boot_ns
from agent.queues.order import OrderedQueue
from agent.queues.queue import Queue, Row
from agent.queues.status import Progress, Sample
from agent.queues.timers import TimedQueue, rows
from agent.tables import TABLES

_CLUSTER_BYTES = TABLES["queue_lag"].by_name["cluster"].width
#: Polls in a row that a server may leave unanswered before its queues begin anew, as after any other failure.
UNANSWERED = 3
#: Members of a row that are no columns.
_MEMBERS = (
    *("acked_exact", "position", "acked", "added", "asked_s", "kept_s", "prefetch", "beside", "held", "room"),
    *("repeated", "waits_for"),
)


class Judged:
    """A Queue that completes the rows of another one.

    A row without ``status`` gets it, with ``reason``, the rates and the forecast. They follow from ``lag_messages``,
    ``pending``, ``consumers``, ``exact``, ``oldest_undelivered_s``, the server's memory and, where known, from members
    that are no columns: ``added`` and ``acked``, running totals of any origin; ``position``, any mark of how far was
    read; ``asked_s``, the time since any consumer asked for messages; ``kept_s``, how long the broker keeps a message;
    ``prefetch``, how many messages the consumers may have unacknowledged, all together, and ``beside``, how many of
    these they have of other queues; ``held``, true if pending messages stay pending when their consumers end; ``room``,
    a limit that is not the server's memory: (bytes used, of how many, what happens then); ``repeated``, true for
    figures of an earlier poll: the state and the rates stay as they were; ``waits_for``, an addition to ``reason``
    while the group is stalled: what it waits for, if not for its consumers. With ``lag_bytes`` and without
    ``lag_messages`` it is a log that has no messages: ``added`` and ``acked`` are then bytes, and no rates of messages.

    ``system``, ``t_ns``, ``poll_ns`` and ``cluster`` (the server as in the settings) are filled in where they are
    missing. named: the cluster's name in the settings, which stands for any other. shared: other servers have that
    name, too, so the timers of this one have its address beside it.
    """

    def __init__(
        self, system: str, queue: Queue, clock: Callable[[], int] = boot_ns, named: str = "", shared: bool = False
    ) -> None:
        self.name, self._named = queue.name, {"cluster": named} if named else {}
        self._address = f" {queue.name.removeprefix(f'{system} ')}" if named and shared else ""
        self._system, self._queue, self._clock = system, queue, clock
        self._progress: dict[tuple[object, ...], Progress] = {}
        self.polled_ns = self._unanswered = 0

    def poll(self) -> list[Row]:
        asked_ns = self._clock()
        rows = self._queue.poll()
        now_ns = self.polled_ns = self._clock()
        before, self._progress = self._progress, {}
        self._unanswered = self._unanswered + 1 if any(row.get("failure") == "no_answer" for row in rows) else 0
        common = {"system": self._system, "cluster": self._cluster, "t_ns": now_ns, "poll_ns": now_ns - asked_ns}
        return [self._whole({**common, **row, **self._named}, before) for row in rows]

    def timers(self) -> list[Row]:
        """Rows of ``timer_effect`` without a jump (agent/queues/timers.py), as of the last poll; none if it failed."""
        found = self._queue.timers() if isinstance(self._queue, TimedQueue) else None
        cluster = _shortened(self._cluster + self._address)
        return [*rows(self._system, cluster, found, self.polled_ns)] if found is not None else []

    def order(self) -> list[Row]:
        """Rows of ``message_order``: what the last poll read of the queues' messages."""
        found = self._queue.order() if isinstance(self._queue, OrderedQueue) else []
        common = {"system": self._system, "cluster": self._cluster, "t_ns": self.polled_ns, "source": "sample"}
        both = ({**common, **row, **self._named} for row in found)
        return [{**row, "cluster": _shortened(str(row["cluster"]))} for row in both]

    def close(self) -> None:
        self._queue.close()

    @property
    def _cluster(self) -> str:
        return _shortened(self._named.get("cluster") or self.name.removeprefix(f"{self._system} "))

    def _whole(self, row: dict[str, Any], before: dict[tuple[object, ...], Progress]) -> Row:
        row["cluster"] = _shortened(row["cluster"])
        members = {name: row.pop(name, None) for name in _MEMBERS}
        room, acked_exact, held = members.pop("room"), members.pop("acked_exact"), bool(members.pop("held"))
        repeated = members.pop("repeated")
        in_bytes = row.get("lag_bytes") if "lag_messages" not in row else None
        key = tuple(row.get(name) for name in ("destination", "partition", "consumer_group"))
        if row.get("failure") == "no_answer" and key in before and self._unanswered <= UNANSWERED:
            self._progress[key] = before[key]
        if "status" in row or ("lag_messages" not in row and in_bytes is None):
            return row
        progress = self._progress[key] = before.get(key) or Progress()
        age_s = row.get("oldest_undelivered_s")
        memory = row.get("memory_bytes"), row.get("memory_limit_bytes"), "memory full"
        used, limit, full = room or memory
        sample = Sample(
            row["t_ns"],
            row.get("lag_messages") if in_bytes is None else in_bytes,
            row.get("pending") or 0,
            row.get("consumers"),
            exact=acked_exact or row.get("exact") is not False,
            age_s=None if age_s is None or isnan(age_s) else age_s,
            unit="" if in_bytes is None else " bytes",
            memory_bytes=used,
            memory_limit_bytes=limit,
            full=full,
            held=held,
            **members,
        )
        if not (repeated and progress.samples):
            progress.add(sample)
        judged = progress.judge()
        reason = judged.reason
        if judged.status == "unknown" and row.get("inexact_reason"):
            reason = row["inexact_reason"]
        return {
            "in_per_s": progress.per_second("added") if in_bytes is None else None,
            "out_per_s": progress.per_second("acked") if in_bytes is None else None,
            "status": judged.status,
            "reason": reason,
            "drains_in_s": judged.drains_in_s,
            "limit_in_s": judged.limit_in_s,
            "forecast_err_s": judged.error_s,
            **row,
        }


def _shortened(cluster: str) -> str:
    """As its column holds it: two servers whose long names begin alike stay two."""
    return fitted(cluster.encode(errors="replace"), _CLUSTER_BYTES).decode(errors="replace")
