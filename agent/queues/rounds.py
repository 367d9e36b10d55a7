"""Polls queues periodically, each on a thread of its own. A poll of a stalled broker blocks for its whole timeout and
must not delay the others. The threads sleep nearly all the time.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from random import uniform
from typing import Generic, Protocol, TypeVar

from agent.common.fairness import UpperBound

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
#: A changed ``interval_s`` takes effect within this time.
_CHECK_S = 1.0
#: A server with many queues is polled more seldom, so that its polls take at most this part of a CPU; but not more
#: seldom than so many seconds, after which its figures would count as missing.
PART, SELDOM_S = 0.04, 8.0
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "queues",
        "CPU time of the polls of one server",
        f"{PART:.0%} of a CPU",
        f"polled less often than `poll_s`, at least every {SELDOM_S:.0f} s",
        "`queue_lag.t_ns`",
        setting="`poll_s`",
    ),
)


class Pollable(Protocol[T_co]):
    """Something that can be polled for the state of its queues."""

    name: str

    def poll(self) -> T_co:
        """Polls once; may block up to the queue's own timeout. A server that does not answer is reported in rows, not
        by an exception.
        """
        ...

    def close(self) -> None: ...


class Rounds(Generic[T]):
    """Polls every ``interval_s`` seconds, which may change. take: gets an answer and the time of its request
    (time.monotonic). report: gets the current failures that are errors of our own, name -> error, whenever they change.
    Both are called on the threads.
    """

    def __init__(
        self,
        queues: Sequence[Pollable[T]],
        interval_s: float,
        take: Callable[[T, float], None],
        report: Callable[[dict[str, str]], None],
    ) -> None:
        self.interval_s = interval_s
        self._take, self._report = take, report
        self._failures: dict[int, tuple[str, str]] = {}  # by index: two URLs of one server have one name
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        for index, queue in enumerate(queues):
            thread = threading.Thread(target=self._run, args=(index, queue), name=queue.name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the others are polled all the same
                self._note(index, queue.name, f"not asked: {error}")
            else:
                self._threads.append(thread)

    def close(self) -> None:
        """Stops the threads; waits at most one timeout of a queue that hangs."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, index: int, queue: Pollable[T]) -> None:
        asked_s = time.monotonic()
        spent_s = math.inf  # the first poll also imports and connects
        early_s = uniform(0, self.interval_s / 2)  # of the second poll: agents that start together poll apart
        try:
            while not self._stop.is_set():
                try:
                    self._take(queue.poll(), asked_s)
                    self._note(index, queue.name, "")
                except Exception as error:  # noqa: BLE001 - one queue's defect must not end the polling
                    self._note(index, queue.name, f"{type(error).__name__}: {error}")
                answered_s = time.monotonic()
                seldom_s = min((time.thread_time() - spent_s) / PART, SELDOM_S)
                # keeps the interval even, also after a slow answer
                while (
                    left_s := max(asked_s + max(self.interval_s, seldom_s) - early_s, answered_s) - time.monotonic()
                ) > 0 and not self._stop.is_set():
                    self._stop.wait(min(left_s, _CHECK_S))
                spent_s = time.thread_time()
                asked_s, early_s = max(asked_s + max(self.interval_s, seldom_s) - early_s, answered_s), 0.0
        finally:
            queue.close()

    def _note(self, index: int, name: str, why: str) -> None:
        with self._lock:
            if self._failures.get(index, (name, ""))[1] == why:
                return
            if why:
                self._failures[index] = name, why
            else:
                del self._failures[index]
            self._report(dict(self._failures.values()))
