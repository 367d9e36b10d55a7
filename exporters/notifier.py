"""Sends findings to people: a sink with a worker thread, so that the agent's loop never blocks on a receiver.

While the receiver fails, one request at a time is retried with growing pauses (``exporters.lane``), and what follows
waits in a bounded queue.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections import deque

from agent.batch import Batch
from agent.common.fairness import UpperBound
from agent.common.finding import CHANGED, FindingEvent, FindingEvents
from agent.contracts import Stating
from agent.log import ERROR, log_message
from exporters.lane import DOWN_AFTER, Lane
from exporters.notify_settings import DOWN, OK, RETRYING

#: Events of findings that wait for one receiver.
MOST_WAITING = 256
#: What is not delivered by then is of no use, and may be what makes the receiver fail.
MAX_AGE_S = 3600.0
#: Time that the agent's end waits for the last request.
_END_S = 2.0
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "metrics",
        "events of findings that wait for the journal, an Alertmanager or Slack (`notify`); their age",
        f"{MOST_WAITING}; {MAX_AGE_S / 3600:g} h",
        "the oldest are dropped",
        "`loss`, `status` (`export`), `tickscope_notify_dropped_total`",
    ),
)


class Notifier(Stating):
    """Implements ``agent.contracts.Sink``. at_once: events in one request."""

    at_once = 1

    def __init__(self, name: str, events: FindingEvents, lane: Lane) -> None:
        self.name, self._events, self._lane = name, events, lane
        self._lock = threading.Lock()
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._since_s = 0.0  # of the request under way: when its oldest event came
        self._queue_full = self._expired = self._shutdown = 0
        self._failure = ""
        self._stop, self._wake = threading.Event(), threading.Event()
        self._worker = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> Notifier:
        self._worker.start()
        return self

    @property
    @abstractmethod
    def endpoint(self) -> str:
        """Where it sends, without secrets."""

    def encoded(self, one: FindingEvent) -> bytes:
        """An event as a part of a request; not called where ``offer`` is another one (Alertmanager)."""
        raise NotImplementedError

    @abstractmethod
    def remedy(self, error: str) -> str:
        """What to do about an error."""

    def offer(self, batch: Batch) -> None:
        """Keeps findings for the worker."""
        for one in self._events.of(batch):
            self.take(one, time.monotonic())
            self._wake.set()

    def take(self, one: FindingEvent, now: float) -> None:
        """Keeps an event. now: time.monotonic."""
        if one.event == CHANGED:
            return
        part = self.encoded(one)
        with self._lock:
            self._waiting.append((now, part))
            if len(self._waiting) > MOST_WAITING:
                self._waiting.popleft()
                self._queue_full += 1

    def close(self) -> None:
        """Sends what waits, for at most 2 s. The rest is counted as dropped."""
        self._stop.set()
        self._wake.set()
        self._worker.join(_END_S)
        if self._worker.is_alive():
            self._lane.sender.abort()
        self._shutdown += self.waiting()

    def losses(self) -> dict[str, int]:
        return {
            "queue_full": self._queue_full,
            "expired": self._expired,
            "rejected": self._lane.rejected,
            "too_large": self._lane.too_large,
            "shutdown": self._shutdown,
        }

    def waiting(self) -> int:
        """Events that are not delivered yet."""
        return len(self._waiting) + self._lane.under_way

    def state(self) -> dict[str, object]:
        """endpoint state(ok|retrying|down) sent waiting dropped retries retry_in_s last_error remedy.

        dropped: never delivered, for whichever reason (``losses``). down: three requests in a row failed or were
        refused, or the thread stopped. retry_in_s: until a request that failed is repeated; None if there is none.
        remedy: empty once a request was accepted again.
        """
        lane = self._lane
        state = RETRYING if lane.failures else OK
        if self._failure or max(lane.failures, lane.refusals) >= DOWN_AFTER:
            state = DOWN
        error = self._failure or lane.last_error
        fails = self._failure or lane.failures or lane.refusals
        return {
            "endpoint": self.endpoint,
            "state": state,
            "sent": lane.sent,
            "waiting": self.waiting(),
            "dropped": sum(self.losses().values()),
            "retries": lane.retries,
            "retry_in_s": max(0, round(lane.not_before - time.monotonic())) if lane.failures else None,
            "last_error": error,
            "remedy": self.remedy(error) if error and fails else "",
        }

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - the agent goes on, and shows the error in its state
            self._failure = f"its thread stopped: {type(error).__name__}: {error}"
            log_message(f"tickscope: {self.name}: {self._failure}; no finding is sent there until a restart", ERROR)

    def _work(self) -> None:
        while True:
            last, now = self._stop.is_set(), time.monotonic()
            self._wake.clear()
            next_s = self.prepare(now)
            while self._lane.request and self._lane.step(now):
                self.delivered()
                next_s = self.prepare(now)
            if last:
                break
            if self._lane.request:
                next_s = self._lane.not_before
            if not self._stop.is_set():
                self._wake.wait(max(next_s - time.monotonic(), 0.01))
        self._lane.sender.close()

    def prepare(self, now: float) -> float:
        """Begins the next request, if there is one and none is under way. Returns when to look again, in
        time.monotonic seconds, if no event comes before.
        """
        lane = self._lane
        with self._lock:
            if lane.request and now - self._since_s > MAX_AGE_S:
                self._expired += lane.under_way
                lane.begin([], 0)
            while self._waiting and now - self._waiting[0][0] > MAX_AGE_S:
                self._waiting.popleft()
                self._expired += 1
            if not lane.request and self._waiting:
                self._since_s = self._waiting[0][0]
                parts = [self._waiting.popleft()[1] for _ in range(min(self.at_once, len(self._waiting)))]
                lane.begin(parts, len(parts))
        return now + MAX_AGE_S

    def delivered(self) -> None:
        """The requests of the last ``prepare`` were accepted or refused."""
