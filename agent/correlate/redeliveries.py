"""Messages that are delivered again and again, by ``queue_lag.redelivered`` at several polls. Pure."""

from __future__ import annotations

from typing import Any

from agent.correlate.thresholds import SECOND

COLUMNS = ("system", "redelivered", "oldest_pending_s")
#: Polls with redelivered messages, and the time between the first and the last one, from which it is a repetition.
_LEAST, _LASTED_NS = 4, 3 * SECOND
_WITHIN_NS, _KEPT = 20 * SECOND, 16
#: Brokers with a count of the deliveries since the previous poll. Others count the messages that are unacknowledged and
#: were delivered before, so one delivery may be seen at many polls.
_BY_DELIVERY = b"rabbitmq"


class Redeliveries:
    """Of one queue, by its polls, rows of ``queue_lag`` in their order."""

    def __init__(self) -> None:
        self._polls: list[int] = []
        self._again = False

    def add(self, row: Any) -> None:
        if row["redelivered"] <= 0:
            return
        at = int(row["t_ns"])
        self._polls = [t for t in self._polls[1 - _KEPT :] if at - t <= _WITHIN_NS] + [at]
        # All that is unacknowledged was delivered after the first of these polls.
        newer = float(row["oldest_pending_s"]) * SECOND < at - self._polls[0]
        self._again = row["system"] == _BY_DELIVERY or newer

    @property
    def times(self) -> int:
        return len(self._polls)

    @property
    def last_ns(self) -> int:
        return self._polls[-1] if self._polls else 0

    @property
    def first_ns(self) -> int:
        return self._polls[0] if self._polls else 0

    @property
    def repeated(self) -> bool:
        return self._again and self.times >= _LEAST and self.last_ns - self.first_ns >= _LASTED_NS
