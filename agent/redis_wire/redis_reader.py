"""Converts records of the redis family to rows of ``limiter_decision``. Imported with the first record."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from agent.batch import Batch
from agent.limiters.scripted import Limiters
from agent.redis_wire.ends import server_text
from agent.redis_wire.flows import Ends, Flows
from agent.redis_wire.redis_decisions import RedisDecisions
from agent.redis_wire.unknown import UnknownScripts


class RedisReader:
    """leave(connection): it is not worth its cost. follow(connection): all of it is to be read. called: a server's
    name. client_of: the other end's process, if only the server's is observed.
    """

    def __init__(
        self,
        limiters: Limiters,
        leave: Callable[[int], None] = lambda _: None,
        follow: Callable[[int], None] = lambda _: None,
        called: Callable[[Ends], str] = server_text,
        client_of: Callable[[Ends], np.void | None] = lambda _: None,
    ) -> None:
        self._flows = Flows(leave, follow)
        self._decisions = RedisDecisions(limiters, self._flows.want_whole, called=called, client_of=client_of)

    def read(self, records: np.ndarray) -> list[Batch]:
        """records: of ``struct redis_piece``, in the kernel's order."""
        return self._decisions.rows(self._flows.feed(records))

    @property
    def unknown(self) -> UnknownScripts:
        return self._decisions.unknown

    def counts(self) -> dict[str, int]:
        """What could not be read, was observed twice, or is no longer watched."""
        decisions = self._decisions
        return {
            **self._flows.counts,
            "seen_twice": decisions.again,
            "counters_forgotten": decisions.counters.forgotten,
        }
