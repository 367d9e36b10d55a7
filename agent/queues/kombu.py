"""What kombu, Celery's transport library, keeps in a Redis server: names of keys, bindings, unacknowledged messages
(kombu/transport/redis.py, 4.0 to 5.7). Pure, for hostile input.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

#: Between the parts of a binding, and before the priority in a list's name.
SEPARATOR = b"\x06\x16"
#: kombu uses 0, 3, 6 and 9, or those of ``priority_steps``; it accepts no others.
PRIORITIES = range(10)
#: A set for each exchange.
BINDINGS = b"_kombu.binding."
UNACKED, INDEX, MUTEX = b"unacked", b"unacked_index", b"unacked_mutex"
#: Before the name of an exchange, of a channel of PUBLISH; kombu fills in the database.
FANOUT = "/{db}."
_MAX_WORDS = 64
_MAX_BODY = 64 << 10
#: Celery's own exchanges, for remote control and events. Their messages are published to subscribers, not queued.
_OWN_EXCHANGES = (b"celeryev", b"celery.pidbox", b"reply.celery.pidbox")
#: What kombu 5.7 makes of ``*`` in a pattern; what older releases make of it also fits several words.
_ONE_WORD = rb"[^\.]+"


class Binding(NamedTuple):
    """pattern: the routing key as a regular expression, of a topic exchange; empty for exchanges of other types."""

    key: bytes
    queue: bytes
    pattern: bytes = b""

    def fits(self, key: bytes) -> bool:
        """Whether the queue gets a message with this routing key."""
        if not self.pattern:
            return self.key == key
        return _fits(self.key.split(b"."), key.split(b"."), _ONE_WORD in self.pattern)


def lists(queue: bytes, separator: bytes = SEPARATOR) -> list[bytes]:
    """The keys of a queue's lists, by priority."""
    return [queue + separator + b"%d" % priority if priority else queue for priority in PRIORITIES]


def carries_tasks(exchange: bytes) -> bool:
    return exchange not in _OWN_EXCHANGES and not exchange.endswith(b".pidbox")


def binding(member: bytes, separator: bytes = SEPARATOR) -> Binding | None:
    """A member of an exchange's set; None if it is not a binding of a queue with tasks."""
    parts = member.split(separator)
    if len(parts) != 3 or not parts[2] or is_broadcast(member, separator):
        return None
    return Binding(parts[0], parts[2], parts[1])


def is_broadcast(member: bytes, separator: bytes = SEPARATOR) -> bool:
    """Whether it is the binding of a ``Broadcast`` queue, which has no list: each worker has one of its own."""
    return member.rpartition(separator)[2].startswith(b"bcast.")


def routed(exchange: bytes, key: bytes, bindings: Mapping[bytes, Sequence[Binding]]) -> tuple[bytes, ...]:
    """The queues of a message. A topic exchange puts a copy into each of several queues."""
    if not exchange:
        return (key,)
    return tuple(sorted({one.queue for one in bindings.get(exchange, ()) if one.fits(key)}))


def _fits(pattern: Sequence[bytes], words: Sequence[bytes], one_word: bool) -> bool:
    """Of a topic exchange, as kombu has it: ``#`` is one or more words. ``*`` is a word that is not empty, or without
    one_word any number of them. AMQP's ``#`` may be no word at all.
    """
    if len(pattern) > _MAX_WORDS or len(words) > _MAX_WORDS:
        return False
    ends = {0}  # numbers of words that the pattern's first parts fit
    for part in pattern:
        if part == b"#":
            ends = set(range(min(ends) + 1, len(words) + 1))
        elif part == b"*" and not one_word:
            ends = {n for n in range(min(ends) + 1, len(words) + 1) if words[n - 1]}
        else:
            ends = {n + 1 for n in ends if n < len(words) and (words[n] if part == b"*" else part == words[n])}
        if not ends:
            return False
    return len(words) in ends


@dataclass(frozen=True)
class KombuMessage:
    """An unacknowledged message. eta_s: its set time, Unix time, None if it has none. redelivered: it was delivered
    before, to a consumer that did not acknowledge it.
    """

    exchange: bytes
    key: bytes
    eta_s: float | None = None
    redelivered: bool = False


def message(value: bytes) -> KombuMessage | None:
    """A value of the hash of unacknowledged messages: JSON of [message, exchange, routing key]. None if it is not."""
    try:
        content, exchange, key = json.loads(value)
        headers, delivery = _dict(content, "headers"), _dict(_dict(content, "properties"), "delivery_info")
        again = headers.get("redelivered") is True or delivery.get("redelivered") is True
        eta = headers.get("eta") or (None if "task" in headers else _body(content).get("eta"))
        return KombuMessage(_bytes(exchange), _bytes(key), _unix_s(eta), again)
    except (AttributeError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def task(value: bytes) -> str | None:
    """The task's name, of a message in a list: from its headers (Celery 4 and newer), never from its body."""
    try:
        name = _dict(json.loads(value), "headers").get("task")
    except (ValueError, RecursionError):
        return None
    return name if isinstance(name, str) and name else None


def _body(content: object) -> dict[str, object]:
    """The body of a message of Celery's first protocol (``task_protocol=1``), which has the set time; empty if it is
    not JSON.
    """
    text = content.get("body") if isinstance(content, dict) else None
    if not isinstance(text, str) or len(text) > _MAX_BODY:
        return {}
    try:
        found = json.loads(b64decode(text) if _dict(content, "properties").get("body_encoding") == "base64" else text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _dict(within: object, name: str) -> dict[str, object]:
    found = within.get(name) if isinstance(within, dict) else None
    return found if isinstance(found, dict) else {}


def _bytes(name: str | None) -> bytes:
    return (name or "").encode(errors="replace")


def _unix_s(eta: object) -> float | None:
    """Of an ISO 8601 time; UTC if it has no zone, as workers take it, whatever ``timezone`` and ``enable_utc`` of the
    application are (celery/worker/request.py and ``maybe_make_aware``, 4.0 to 5.7).
    """
    if not isinstance(eta, str) or not eta:
        return None
    at = datetime.fromisoformat(eta)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def pairs(flat: Iterable[bytes]) -> list[tuple[bytes, float]]:
    """(delivery tag, Unix time of delivery), as ``ZRANGE .. WITHSCORES`` replies. Raises ValueError."""
    each = iter(flat)
    return [(tag, float(score)) for tag, score in zip(each, each, strict=True)]
