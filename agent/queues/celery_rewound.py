"""Messages of Celery that a Redis server lost: a promoted replica had not received all, or the server was restarted
without all of its data. All numbers are lower bounds. Pure.

Lost bytes of the replication stream (agent/queues/redis_rewound.py) may have been no message: workers' heartbeats and
their mutex are in it, too. So they count only if the queues are not as they were at the last poll before. Nor is a
smaller queue a loss, since workers may have taken its messages. Messages are gone for certain:
  - those of a list that became shorter while its next message stayed: messages leave a list only from that end;
  - those that had arrived after the offset up to which the replica had received.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from agent.queues.redis_rewound import (
    FAIL_OVER,
    IDLE_BYTES,
    REPLACED,
    DataHistory,
    Replication,
    bytes_lost,
    passed_over,
)

#: Of a message in the replication stream: kombu's envelope alone is longer, with an empty body.
_LEAST_BYTES = 200
_MAX_HISTORIES = 64


class ListContent(NamedTuple):
    """A list that is not empty. tail: hash of its next message; None: not known. empty_offset: an offset at which it
    was empty; None: not known.
    """

    length: int
    tail: int | None
    empty_offset: int | None


@dataclass(frozen=True)
class Content:
    """What a database had at one poll. lists: by queue, in the order of priority; those that are empty are left out.
    tags: of unacknowledged messages. left: hashes of messages that were next in a list earlier, and no longer are.
    bound: the queues of each exchange, as far as they were all read.
    """

    replication: Replication
    lists: Mapping[bytes, Mapping[int, ListContent]]
    tags: Mapping[bytes, frozenset[bytes]]
    left: frozenset[int]
    bound: Mapping[bytes, frozenset[bytes]]


class LastContents:
    """The last poll of each history of data, of all servers: an application with a list of brokers goes on with another
    one, which may be a replica of the first.
    """

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], Content] = {}

    def add(self, database: str, content: Content) -> None:
        key = database, content.replication.history
        last = self._of.pop(key, content)
        self._of[key] = max(last, content, key=lambda one: one.replication.offset)
        if len(self._of) > _MAX_HISTORIES:
            self._of.pop(next(iter(self._of)), None)

    def of(self, database: str, history: str) -> Content | None:
        return self._of.get((database, history))


class QueueHistory(DataHistory):
    """Of one source. database: the same for sources of the same queues."""

    def __init__(self, database: str, last: LastContents) -> None:
        super().__init__()
        self._database, self._last = database, last
        self._before: Content | None = None

    def see_queues(self, now: Content | None, now_ns: int) -> None:
        """A poll that succeeded; None: the server's history could not be read."""
        self.how = ""
        if now is not None:
            before, self._before = self._before, now
            if before is not None:
                self.how, _ = passed_over(before.replication, now.replication)
            if before is not None and self.how == FAIL_OVER:
                self._failed_over(self._last.of(self._database, before.replication.history) or before, now, now_ns)
            elif before is not None and self.how == REPLACED:
                self._replaced(before, now, now_ns)
            self._last.add(self._database, now)
        self.expire(now_ns)

    def _failed_over(self, before: Content, now: Content, now_ns: int) -> None:
        _, lost = passed_over(before.replication, now.replication)
        if lost < IDLE_BYTES or not _changed(before, now):
            return
        gone = _gone(before, now, now.replication.own_from - 1)
        messages = f", with at least {sum(gone.values()):,} messages" if gone else ""
        self.note(f"{self.how}{bytes_lost(lost)}{messages}", now_ns)
        self._note_queues(gone, now_ns)

    def _replaced(self, before: Content, now: Content, now_ns: int) -> None:
        gone = _gone(before, now, None)
        unbound = _unbound(before, now)
        if gone:
            self.note(f"{self.how}at least {sum(gone.values()):,} messages are gone", now_ns)
        elif unbound:
            self.note(f"{self.how}{len(unbound)} queues are gone, with their bindings", now_ns)
        for name in unbound:
            had = sum(one.length for one in before.lists.get(name, {}).values())
            words = f"its binding is gone; {had:,} messages waited at the last poll before"
            self.note(f"{self.how}{words}", now_ns, name)
        self._note_queues(gone, now_ns)

    def _note_queues(self, gone: Mapping[bytes, int], now_ns: int) -> None:
        for name, messages in gone.items():
            self.note(f"{self.how}at least {messages:,} messages are gone", now_ns, name)


def _changed(before: Content, now: Content) -> bool:
    """Whether messages were taken, are gone or came back; not if some only arrived."""
    if any(one.tail in before.left for lists in now.lists.values() for one in lists.values()):
        return True
    for name, lists in before.lists.items():
        for priority, was in lists.items():
            one = now.lists.get(name, {}).get(priority)
            if one is None or one.length < was.length or (was.tail and one.tail and was.tail != one.tail):
                return True
    names = before.tags.keys() | now.tags.keys()
    return any(before.tags.get(name, frozenset()) != now.tags.get(name, frozenset()) for name in names)


def _gone(before: Content, now: Content, kept: int | None) -> dict[bytes, int]:
    """How many messages of each queue are gone, at least. kept: the last offset that the replica had received; None:
    not known. An unacknowledged message may be waiting again at the last poll, and not be lost.
    """
    found = {}
    for name, lists in before.lists.items():
        back = now.tags.get(name, frozenset()) - before.tags.get(name, frozenset())
        gone = sum(_gone_of(was, now.lists.get(name, {}).get(at), kept) for at, was in lists.items()) - len(back)
        if gone > 0:
            found[name] = gone
    return found


def _gone_of(was: ListContent, now: ListContent | None, kept: int | None) -> int:
    stayed = now is not None and was.tail and now.tail == was.tail
    shorter = was.length - now.length if stayed and now is not None else 0
    if kept is None or was.empty_offset is None:
        return max(0, shorter)
    return max(0, shorter, was.length - max(0, kept - was.empty_offset) // _LEAST_BYTES)


def _unbound(before: Content, now: Content) -> list[bytes]:
    """Queues without the binding that they had: an application removes it only with the queue."""
    missing = {name for exchange, names in before.bound.items() for name in names - now.bound.get(exchange, names)}
    return sorted(missing - {name for names in now.bound.values() for name in names})
