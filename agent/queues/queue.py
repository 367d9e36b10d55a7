"""What is polled: a server's queues, as rows of ``queue_lag``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

#: Values by column of ``queue_lag`` (docs/tables.md): texts and bytes, numbers, an enum's name, ``ip:port``. A missing
#: value, or None, is unknown. agent/queues/judged.py adds the columns that all brokers share.
Row = Mapping[str, object]


class Queue(Protocol):
    """A server that can be polled for the state of its queues."""

    name: str

    def poll(self) -> list[Row]:
        """Polls once; may block up to its own timeout. A server that does not answer is a row (``status`` down,
        ``failure``, ``reason``), not an exception.
        """
        ...

    def close(self) -> None: ...
