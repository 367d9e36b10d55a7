"""Polls the kernel's queues on threads of its own and hands the answers to the loop. Brokers are polled in a separate
process (poller_process.py).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence

from agent.batch import Batch, Loss, losses
from agent.contracts import Failing, Pending
from agent.log import log_message
from agent.queues.rounds import Pollable, Rounds


class QueuePoller(Failing, Pending):
    """Polls each queue every ``interval_s`` seconds; a ``Source``, see agent.contracts.

    capacity: batches kept until the next drain. Beyond that the oldest are dropped, and become a loss row (stage
    intake, source queues) of the next drain.
    """

    name = "queues"

    def __init__(self, queues: Sequence[Pollable[list[Batch]]], interval_s: float = 1.0, capacity: int = 256) -> None:
        self._batches: deque[Batch] = deque()
        self._capacity = capacity
        self._lock = threading.Lock()
        self._dropped = self._reported = 0
        self._drained_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._failures: dict[str, str] = {}
        self.rounds = Rounds(queues, interval_s, self._put, self._fail)

    def pending(self, now_ns: int) -> bool:
        return bool(self._batches)

    def drain(self, now_ns: int) -> Iterable[Batch]:
        with self._lock:
            batches = list(self._batches)
            self._batches.clear()
            lost, self._reported = self._dropped - self._reported, self._dropped
        if lost:
            batches.append(losses("intake", Loss("queues", lost, self._drained_ns, now_ns)))
        self._drained_ns = now_ns
        return batches

    def failures(self) -> dict[str, str]:
        """Queues whose last poll failed because of an error of our own: name -> error. Each is also logged once."""
        return self._failures

    def close(self) -> None:
        """Waits at most one timeout of a queue that hangs."""
        self.rounds.close()

    def _fail(self, failures: dict[str, str]) -> None:
        for name, why in failures.items():
            if self._failures.get(name) != why:
                log_message(f"tickscope: {name}: {why}")
        self._failures = failures

    def _put(self, batches: list[Batch], _: float) -> None:
        with self._lock:
            self._batches.extend(b for b in batches if len(b.rows))
            while len(self._batches) > self._capacity:
                self._dropped += len(self._batches.popleft().rows)
