"""Celery's control bus on Redis: asks the workers for their queues and process, and reads what they reply.

A question is a message to a channel of PUBLISH, as ``celery inspect`` sends it (kombu/pidbox.py), so it is only asked
if the settings allow it. The workers reply into a list of our own: the default exchange needs no binding, so nothing of
the application's is changed, and the list has a time to live, so nothing is left if the agent ends.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

import hiredis

from agent.common.fairness import UpperBound
from agent.common.printable import printable
from agent.common.resp import Reply
from agent.queues.redis_rights import Command

INTERVAL_NS = 15_000_000_000
#: The replies are read so much later; workers reply within milliseconds unless they cannot.
PATIENCE_NS = 3_000_000_000
_KEPT_S = 60
MAX_WORKERS = 256
#: For docs/limits.md.
BOUNDS = (
    UpperBound("queues", "workers of Celery that reply", MAX_WORKERS, "the others are not shown", "`queue_lag.reason`"),
)
_QUESTIONS = ("active_queues", "stats")
_JSON, _KIND_LETTERS = "application/json", 40


@dataclass(frozen=True)
class CeleryWorker:
    """name: as Celery names it. pid: in the worker's pid namespace; prefetch: how many messages it may have
    unacknowledged; None if it did not reply to that question, 0 for no limit.
    """

    name: str
    queues: frozenset[str]
    pid: int | None = None
    prefetch: int | None = None

    @property
    def text(self) -> str:
        return self.name if self.pid is None else f"{self.name} {self.pid}"


class ControlBus:
    """Of one database. workers: those that replied last, by name. listening: how many workers had subscribed to the
    channel then; None: not known. missing: how many of these did not reply. foreign: how many replied in ``kind``,
    which is never read. problem: why nothing is known; empty otherwise. taken: workers took messages since the last
    question; the user sets it. deaf: they did while none of them had subscribed.
    """

    def __init__(self, prefix: bytes, channel: str) -> None:
        self._channel = prefix + channel.encode()
        self._address = f"tickscope.{token_hex(8)}.reply.celery.pidbox"  # the worker adds the prefix itself
        self._key = prefix + self._address.encode()
        self._asked_ns: int | None = None
        self._read = True
        self.taken, self._unheard = False, 0
        self.forget()

    def forget(self) -> None:
        """After an outage."""
        self.workers: dict[str, CeleryWorker] = {}
        self.listening: int | None = None
        self.missing, self.foreign, self.kind, self.problem = 0, 0, "", ""

    def commands(self, now_ns: int) -> list[Command]:
        """What to send in this poll. now_ns: CLOCK_BOOTTIME."""
        if self._asked_ns is None or now_ns - self._asked_ns >= INTERVAL_NS:
            self._asked_ns, self._read = now_ns, False
            asked = (question(name, self._address) for name in _QUESTIONS)
            # The list is there before the replies are, since only a list can have a time to live.
            new: list[Command] = [("DEL", self._key), ("RPUSH", self._key, ""), ("EXPIRE", self._key, _KEPT_S)]
            return [*new, *(("PUBLISH", self._channel, one) for one in asked)]
        if not self._read and now_ns - self._asked_ns >= PATIENCE_NS:
            self._read = True
            return [("LRANGE", self._key, 0, len(_QUESTIONS) * MAX_WORKERS)]
        return []

    def take(self, replies: list[Reply]) -> None:
        """The replies to ``commands``. Raises nothing, whatever they are."""
        if not replies:
            return
        failed = next((str(one) for one in replies if isinstance(one, hiredis.ReplyError)), "")
        if failed:
            self.forget()
            self.problem, self._read = failed, True
        elif not self._read:
            before, self.listening = self.listening, replies[-1] if isinstance(replies[-1], int) else None
            self._unheard = 0 if self.listening else self._unheard + (before == 0 and self.taken)
            self.taken = False
            self.workers = self.workers if self.listening else {}
        else:
            self.problem = ""
            self.workers, foreign, self.kind = workers(one for one in replies[-1] if isinstance(one, bytes))
            unread = max(0, (self.listening or 0) - len(self.workers))
            self.foreign = min(foreign, unread)
            self.missing = unread - self.foreign

    def of(self, queue: str) -> list[CeleryWorker]:
        return [one for name, one in sorted(self.workers.items()) if queue in one.queues]

    @property
    def deaf(self) -> bool:
        """Between two questions that nobody heard a worker may have come and gone, but not again and again."""
        return self._unheard > 1

    @property
    def complete(self) -> bool:
        """Whether all workers replied."""
        if self.listening is None or self.problem or (not self.listening and (self.deaf or self.taken)):
            return False
        return len(self.workers) >= self.listening

    def last(self) -> list[Command]:
        """What to send before the connection is closed."""
        return [("DEL", self._key)]


def question(method: str, address: str) -> bytes:
    """A message of kombu's pidbox, to all workers. address: the list for the replies."""
    body = {
        "method": method,
        "arguments": {},
        "destination": None,
        "pattern": None,
        "matcher": None,
        "ticket": method,
        "reply_to": {"exchange": "", "routing_key": address},
    }
    message = {
        "body": b64encode(json.dumps(body).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": _JSON,
        "headers": {"clock": 0, "expires": 0},
        "properties": {
            "delivery_mode": 1,
            "delivery_info": {"exchange": "celery.pidbox", "routing_key": ""},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": token_hex(16),
        },
    }
    return json.dumps(message).encode()


def workers(replies: Iterable[bytes]) -> tuple[dict[str, CeleryWorker], int, str]:
    """By name; how many workers replied in something other than JSON, and in what: workers reply by the application's
    ``task_serializer``, and reading a pickle would run what is in it. Other replies that cannot be read are left out.
    """
    answers: dict[str, dict[str, Any]] = {}
    foreign, foreign_kind = Counter[str](), ""  # by question
    for reply in replies:
        try:
            message = json.loads(reply)
            ticket = message["headers"]["ticket"]
            if (kind := message.get("content-type", _JSON)) != _JSON:
                foreign[ticket] += 1
                foreign_kind = printable(str(kind)[:_KIND_LETTERS])
                continue
            for name, its in json.loads(b64decode(message["body"])).items():
                if ticket in _QUESTIONS and (name in answers or len(answers) < MAX_WORKERS):
                    answers.setdefault(name, {})[ticket] = its
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
            continue
    return {name: _worker(name, its) for name, its in answers.items()}, max(foreign.values(), default=0), foreign_kind


def _worker(name: str, its: dict[str, Any]) -> CeleryWorker:
    queues, stats = its.get("active_queues"), its.get("stats")
    names = [one.get("name") for one in queues if isinstance(one, dict)] if isinstance(queues, list) else []
    stats = stats if isinstance(stats, dict) else {}
    return CeleryWorker(
        name,
        frozenset(one for one in names if isinstance(one, str)),
        _count(stats.get("pid")),
        _count(stats.get("prefetch_count")),
    )


def _count(given: object) -> int | None:
    return given if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 1 << 31 else None
