"""What is polled: a server's queues, as rows of ``queue_lag``."""

from __future__ import annotations

from collections.abc import Mapping

from agent.queues.rounds import Pollable

#: Values by column of ``queue_lag`` (docs/tables.md): texts and bytes, numbers, an enum's name, ``ip:port``. A missing
#: value, or None, is unknown. agent/queues/judged.py adds the columns that all brokers share.
Row = Mapping[str, object]
#: A server. One that does not answer is a row (``status`` down, ``failure``, ``reason``).
Queue = Pollable[list[Row]]
