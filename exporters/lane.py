"""One stream of requests to one receiver: retried with growing pauses, split where the receiver takes less at once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from exporters.send import Outcome, Sender, failed

#: Bound of the pause that a receiver requests.
MAX_RETRY_AFTER_S = 3600.0
_BACKOFF_S = (1.0, 30.0)
#: Failures in a row after which ``status`` calls a receiver down.
DOWN_AFTER = 3
TOO_LARGE = "one item alone is larger than the receiver takes"
#: Statuses by which a collector refuses a signal.
_NOT_TAKEN = ("HTTP 404", "HTTP 405", "HTTP 415", "HTTP 501", "UNIMPLEMENTED")


class _Request(NamedTuple):
    """parts: serialised metrics or log records, or spans (``EncodedSpan``). items: number of spans, points or log
    records.
    """

    data: bytes
    items: int
    parts: Sequence[Any]


class Lane:
    """One signal: its sender, the requests under way, and its counters. Belongs to the worker; all threads read the
    numbers.

    max_bytes: of a request; halved when one is refused as too large, None before that. retries: requests that failed
    and are sent again.
    """

    def __init__(self, signal: str, sender: Sender, envelope: Callable[[Sequence[Any]], bytes]) -> None:
        self.signal, self.sender, self._envelope = signal, sender, envelope
        self.requests: list[_Request] = []
        self.max_bytes: int | None = None
        self.sent = self.rejected = self.too_large = self.failures = self.refusals = self.retries = 0
        self.last_error = self.unwanted = ""
        self.not_before = self.begun = self.error_s = 0.0

    @property
    def request(self) -> _Request | None:
        """The request under way."""
        requests = self.requests[:1]
        return requests[0] if requests else None

    @property
    def under_way(self) -> int:
        """Items that are not delivered yet."""
        return sum(request.items for request in list(self.requests))

    def begin(self, parts: Sequence[Any], items: int) -> None:
        self.requests = self._fitting(parts, items) if parts else []

    def stuck_s(self) -> float:
        """How long the request under way has taken."""
        begun = self.begun
        return time.monotonic() - begun if begun else 0.0

    def step(self, now: float) -> bool:
        """Tries the requests under way, if it is time; True when all are done."""
        if not self.requests or now < self.not_before:
            return False
        while self.requests:
            request = self.requests[0]
            self.begun = time.monotonic()
            try:
                outcome = self.sender.send(request.data)
            except Exception as error:  # noqa: BLE001 - after any error, the next request may succeed
                outcome = failed(error)
            self.begun = 0.0
            if outcome.status == "retry":
                self.failures += 1
                self.retries += 1
                self._failed(outcome.message)
                pause = min(_BACKOFF_S[1], _BACKOFF_S[0] * 2 ** min(self.failures - 1, 8)) * random.uniform(0.8, 1.2)
                self.not_before = time.monotonic() + max(pause, min(outcome.retry_after_s, MAX_RETRY_AFTER_S))
                return False
            if outcome.status == "too_large" and len(self._halves(request.parts)) > 1:
                self.max_bytes = len(request.data) // 2
                self.requests[:1] = self._fitting(request.parts, request.items)
            else:
                self._settle(outcome, request)
                del self.requests[:1]
        return True

    def _fitting(self, parts: Sequence[Any], items: int) -> list[_Request]:
        """Splits parts into requests of at most ``max_bytes``; a larger part gets its own."""
        data = self._envelope(parts)
        if self.max_bytes is None or len(data) <= self.max_bytes or len(halves := self._halves(parts)) == 1:
            return [_Request(data, items, parts)]
        return [request for half in halves for request in self._fitting(half, self._count(half))]

    def _halves(self, parts: Sequence[Any]) -> Sequence[Sequence[Any]]:
        if len(parts) > 1:
            return [parts[: len(parts) // 2], parts[len(parts) // 2 :]]
        if self.signal == "metrics":
            from exporters.points import halves

            return [[half] for half in halves(parts[0])]
        return [parts]

    def _count(self, parts: Sequence[Any]) -> int:
        if self.signal != "metrics":
            return len(parts)
        from exporters.points import point_count

        return point_count(parts)

    def _settle(self, outcome: Outcome, request: _Request) -> None:
        if self.signal == "logs" and outcome.status == "refused" and outcome.message.startswith(_NOT_TAKEN):
            self.unwanted = outcome.message
            return
        items, refused = request.items, outcome.status in ("refused", "too_large")
        lost = items if refused else max(0, min(outcome.rejected, items))
        self.failures, self.not_before = 0, 0.0
        self.refusals = self.refusals + 1 if refused else 0
        self.sent += items - lost
        if outcome.status == "too_large":
            self.too_large += lost
            self._failed(f"{TOO_LARGE} ({len(request.data)} bytes): {outcome.message}")
            return
        self.rejected += lost
        if outcome.message or lost:
            self._failed(outcome.message or f"{lost} rejected without a reason")

    def _failed(self, message: str) -> None:
        self.last_error, self.error_s = message, time.monotonic()
