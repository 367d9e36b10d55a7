"""How old the oldest message is that a JetStream consumer was not given, or has not acknowledged. Pure.

The server reports counts and sequence numbers, and times of the first and the last message of a stream only. The oldest
message is known to be between two sequence numbers, which are mostly one. Its time is between two known times: those of
our own polls, or else those of the server. So an age has two bounds.
"""

from __future__ import annotations

from math import inf, isnan

from agent.queues.age_bounds import AgeBounds, stamped_age
from agent.queues.end_offsets import EndOffsets
from agent.queues.nats_report import NatsConsumer, NatsStream

#: What a poll reports was so at most this long before or after the middle of its request.
_READ_NS = 50_000_000


class SeenSequences:
    """When a sequence number was reached, by the times of polls (CLOCK_BOOTTIME, ns)."""

    def __init__(self) -> None:
        self._history = EndOffsets()
        self._first = self._last = (0, -1)

    def add(self, from_ns: int, to_ns: int, last: int) -> None:
        """The last number at some time between these two. A slow poll is left out: it would widen the others' error."""
        if to_ns - from_ns > 2 * _READ_NS:
            return
        t_ns = (from_ns + to_ns) // 2
        if last < self._last[1] or self._last[1] < 0:
            self._first = t_ns, last
        self._last = t_ns, last
        self._history.add(t_ns, last + 1)

    def age(self, sequence: int, now_ns: int) -> AgeBounds:
        """Time since it was reached. Without a poll before that it has no upper bound."""
        read_s = _READ_NS / 1e9
        if (found := self._history.between(sequence)) is not None:
            least, most = (now_ns - found[1]) / 1e9 - read_s, (now_ns - found[0]) / 1e9 + read_s
            return AgeBounds(max(0.0, least), most, True)
        if sequence <= self._first[1]:
            return AgeBounds(max(0.0, (now_ns - self._first[0]) / 1e9 - read_s), inf, False)
        return AgeBounds(0.0, inf, False)


def message_age(sequence: int, stream: NatsStream, server_ns: int, seen: AgeBounds) -> AgeBounds:
    """Age of a message that the stream has. seen: by our polls. server_ns: the server's wall clock."""
    if seen.history:
        return seen
    first_s, last_s = (_since_s(at_ns, server_ns) for at_ns in (stream.first_ns, stream.last_ns))
    if sequence <= stream.first and first_s is not None:
        last_s = first_s
    elif sequence >= stream.last and last_s is not None:
        first_s = last_s
    least = max(seen.least, last_s or 0.0)
    return AgeBounds(least, max(least, inf if first_s is None else first_s), False)


def undelivered_age(
    consumer: NatsConsumer, stream: NatsStream, server_ns: int, seen: SeenSequences, now_ns: int
) -> AgeBounds:
    """Age of the oldest message that was not delivered; there is one. It is the next one after the last delivery, or,
    since ``waits`` messages follow, one up to that many before the end.
    """
    next_one = max(consumer.delivered + 1, stream.first)
    at_most = max(next_one, stream.last - consumer.waits + 1)
    oldest = message_age(next_one, stream, server_ns, seen.age(next_one, now_ns))
    if at_most == next_one:
        return oldest
    youngest = message_age(at_most, stream, server_ns, seen.age(at_most, now_ns))
    return AgeBounds(youngest.least, oldest.most, oldest.history and youngest.history)


def pending_age(
    consumer: NatsConsumer,
    stream: NatsStream,
    server_ns: int,
    appended: SeenSequences,
    delivered: SeenSequences,
    now_ns: int,
) -> AgeBounds:
    """Time since the first delivery of the oldest message that is not acknowledged; there is one. appended, delivered:
    when the sequence numbers of the stream and of the consumer were reached.
    """
    next_one = consumer.floor + 1
    at_most = max(next_one, consumer.delivered - consumer.pending + 1)
    oldest, youngest = delivered.age(next_one, now_ns), delivered.age(at_most, now_ns)
    if oldest.history:
        return AgeBounds(youngest.least, oldest.most, youngest.history)
    # It was delivered after it was appended, and not after the last delivery.
    least = max(youngest.least, _since_s(consumer.delivered_ns, server_ns) or 0.0)
    most = message_age(max(next_one, stream.first), stream, server_ns, appended.age(next_one, now_ns)).most
    return AgeBounds(least, max(least, most), False)


def _since_s(at_ns: int, server_ns: int) -> float | None:
    """None if the time is not known, or far after the server's own: its clock was set back."""
    age_s = stamped_age((server_ns - at_ns) / 1e9)
    return None if at_ns <= 0 or isnan(age_s) else age_s
