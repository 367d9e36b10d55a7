"""Polls queues beside the agent's one thread, and hands over what they answered.

Asking a broker blocks (a stalled one for its whole timeout), so each queue is asked on a thread of its own: one that
hangs delays neither the agent nor the other queues. The threads sleep nearly all the time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from agent.batch import Batch, Loss, losses
from agent.contracts import Failing
from agent.log import say

#: How soon another ``interval_s`` counts.
_LOOK_S = 1.0


class Queue(Protocol):
    """Something that can be asked for the state of its queues."""

    name: str

    def poll(self) -> list[Batch]:
        """Asks once; may block up to the queue's own timeout. A server that does not answer is rows, not an exception."""
        ...

    def close(self) -> None: ...


class QueuePoller(Failing):
    """Asks each queue every ``interval_s`` seconds; a ``Source``, see agent.contracts.

    capacity: batches kept until the next drain; then the oldest go, are counted in ``losses()``, and
    become a loss row (stage intake, source queues) of the next drain.
    """

    name = "queues"

    def __init__(self, queues: Sequence[Queue], interval_s: float = 1.0, capacity: int = 256) -> None:
        self._batches: deque[Batch] = deque()
        self._capacity, self.interval_s = capacity, interval_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._dropped = self._reported = 0
        self._drained_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._failures: dict[str, str] = {}
        self._threads = [threading.Thread(target=self._run, args=(q,), name=q.name, daemon=True) for q in queues]
        for thread in self._threads:
            thread.start()

    def fds(self) -> list[int]:
        return []

    def drain(self, now_ns: int) -> Iterable[Batch]:
        with self._lock:
            batches = list(self._batches)
            self._batches.clear()
            lost, self._reported = self._dropped - self._reported, self._dropped
        if lost:
            batches.append(losses("intake", Loss("queues", lost, self._drained_ns, now_ns)))
        self._drained_ns = now_ns
        return batches

    def losses(self) -> dict[str, int]:
        """Rows dropped so far because nobody drained, by reason."""
        return {"overflow": self._dropped}

    def failures(self) -> dict[str, str]:
        """Queues whose last poll failed for a reason that is not the server's: name -> what happened. Each is said on stderr once, too."""
        return dict(self._failures)

    def close(self) -> None:
        """Stops the threads; waits for at most one timeout of a queue that hangs."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, queue: Queue) -> None:
        asked_s = time.monotonic()
        try:
            while not self._stop.is_set():
                try:
                    self._put(queue.poll())
                    self._failures.pop(queue.name, None)
                except Exception as error:  # noqa: BLE001 - one queue's defect must not end the polling; `failures` shows it
                    self._fail(queue.name, f"{type(error).__name__}: {error}")
                answered_s = time.monotonic()
                while (left_s := max(asked_s + self.interval_s, answered_s) - time.monotonic()) > 0 and not self._stop.is_set():
                    self._stop.wait(min(left_s, _LOOK_S))
                asked_s = max(asked_s + self.interval_s, answered_s)  # an even pace also when an answer takes long
        finally:
            queue.close()

    def _fail(self, name: str, why: str) -> None:
        if self._failures.get(name) != why:
            say(f"tickscope: {name}: {why}")
        self._failures[name] = why

    def _put(self, batches: list[Batch]) -> None:
        with self._lock:
            self._batches.extend(b for b in batches if len(b.rows))
            while len(self._batches) > self._capacity:
                self._dropped += len(self._batches.popleft().rows)
