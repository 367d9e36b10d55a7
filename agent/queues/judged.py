"""Adds the columns that the rows of all brokers share: system, cluster, time, the status of a group, and its rates."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agent.common.clocks import boot_ns
from agent.queues.status import Progress, Sample

if TYPE_CHECKING:
    from agent.queues.catalogue import Queue, Row


class Judged:
    """A Queue that completes the rows of another one.

    A row without ``status`` gets it, with ``reason`` and the rates. They follow from ``lag_messages``, ``pending``,
    ``consumers`` and, where known, from three members that are no columns: ``added`` and ``acked``, running totals of
    any origin, and ``position``, any mark of how far was read.

    ``system``, ``t_ns``, ``poll_ns`` and ``cluster`` (the server as in the settings) are filled in where they are
    missing.
    """

    def __init__(self, system: str, queue: Queue, clock: Callable[[], int] = boot_ns) -> None:
        self.name = queue.name
        self._system, self._queue, self._clock = system, queue, clock
        self._progress: dict[tuple[object, ...], Progress] = {}

    def poll(self) -> list[Row]:
        asked_ns = self._clock()
        rows = self._queue.poll()
        now_ns = self._clock()
        before, self._progress = self._progress, {}
        cluster = self.name.removeprefix(f"{self._system} ")
        common = {"system": self._system, "cluster": cluster, "t_ns": now_ns, "poll_ns": now_ns - asked_ns}
        return [self._whole({**common, **row}, before) for row in rows]

    def close(self) -> None:
        self._queue.close()

    def _whole(self, row: dict[str, Any], before: dict[tuple[object, ...], Progress]) -> Row:
        position, acked, added = row.pop("position", None), row.pop("acked", None), row.pop("added", None)
        if "status" in row or "lag_messages" not in row:
            return row
        key = tuple(row.get(name) for name in ("destination", "partition", "consumer_group"))
        progress = self._progress[key] = before.get(key) or Progress()
        lag, pending, consumers = (row.get(name) for name in ("lag_messages", "pending", "consumers"))
        progress.add(Sample(row["t_ns"], lag, pending or 0, consumers, position, acked, added))
        status, why = progress.status()
        rates = {"in_per_s": progress.per_second("added"), "out_per_s": progress.per_second("acked")}
        return {**rates, "status": status, "reason": why, **row}
