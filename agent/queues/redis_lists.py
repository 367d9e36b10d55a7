"""Lists and sorted sets of a Redis server that are queues by declaration: of Sidekiq, RQ and BullMQ, and any others.

What a plain list holds is unknown, so only its length is reported. The three libraries store when a job was queued and
which jobs run. A job's content is only read where the time is inside it (Sidekiq). Pure, but for ``ListQueues.rows``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from math import isnan, nan
from typing import Any

import hiredis

from agent.common.clocks import boot_ns
from agent.common.fairness import UpperBound
from agent.common.resp import Reply, ReplyTooLarge
from agent.queues.age_bounds import age_since
from agent.queues.gone import Gone
from agent.queues.queue import Row
from agent.queues.redis_reading import shown
from agent.queues.redis_rights import Command, missing_rule

MAX_QUEUES = 256
MAX_RUNNING = 100  # running jobs whose start is read, of a queue; Sidekiq: processes of the server
_MAX_JOB_BYTES = 1 << 20  # a larger job is not parsed
_LATEST_S = 1e11  # a larger number is no time in seconds
#: For docs/limits.md.
BOUNDS = (UpperBound("queues", "declared lists and sorted sets", MAX_QUEUES, "not watched", "`queue_lag.reason`"),)

Ask = Callable[[Sequence[Command]], Sequence[Reply]]


@dataclass
class _Queue:
    """A queue at one poll. commands: of the first round trip. times: then, for each key, the fields of a hash, and what
    is done with their values. scheduled: the key of jobs for later, which need not be readable. doubt: why the lag is a
    lower bound.
    """

    name: str
    commands: list[Command]
    read: Callable[[_Queue, Sequence[Any]], None]
    lag: int | None = None
    pending: int | None = None
    delayed: int | None = None
    consumers: int | None = None
    queued_s: list[float] = field(default_factory=list)  # when waiting jobs were queued, Unix time
    started_s: list[float] = field(default_factory=list)
    position: Hashable = None
    more: list[tuple[Command, Callable[[_Queue, Any], None]]] = field(default_factory=list)
    problem: str = ""
    scheduled: str = ""
    doubt: str = ""

    def row(self, now_s: float) -> Row:
        name = {"destination": shown(self.name.encode())}
        if self.problem:
            failure = {"failure": "permission"} if self.problem.startswith("missing") else {}
            return {**name, "status": "unknown", "reason": self.problem, **failure}
        none = self.lag == 0 and not self.doubt
        age = 0.0 if none else age_since(_earliest(self.queued_s), now_s)
        return {
            **name,
            "lag_messages": self.lag,
            "exact": not self.doubt,
            "inexact_reason": self.doubt,
            "lag_s": age,
            "oldest_undelivered_s": nan if none else age,
            "pending": self.pending,
            "delayed": self.delayed,
            "oldest_pending_s": age_since(_earliest(self.started_s), now_s),
            "consumers": self.consumers,
            "position": self.position,
        }


class ListQueues:
    """The declared queues of one server. declared: (kind, name); the name ``*`` of Sidekiq and RQ is all that the
    server lists. known: destinations, as of the last poll.
    """

    def __init__(self, declared: Sequence[tuple[str, str]]) -> None:
        self._declared = declared
        self.known: list[str] = []
        self._gone = Gone(())

    def rows(self, ask: Ask, now_s: float) -> list[Row]:
        """Two or three round trips. now_s: the server's Unix time, 0 if unknown. Raises RedisDown and errors of
        malformed replies.
        """
        names, problems = self._names(ask)
        queues = [_KINDS[kind](name, now_s) for kind, name in names[:MAX_QUEUES]]
        if any(kind == "sidekiq" for kind, _ in names):
            queues += [_sorted_by_time(key, now_s) for key in ("schedule", "retry")]
        before, self.known = self.known, [queue.name for queue in queues]
        self._fill(queues, ask)
        now_ns = boot_ns()
        for name in before if not problems and len(names) <= MAX_QUEUES else ():
            self._gone.add((shown(name.encode()),), "it is no longer in the list of queues", now_ns)
        for name in self.known:
            self._gone.back((shown(name.encode()),))
        if len(names) > MAX_QUEUES:
            problems.append(f"more than {MAX_QUEUES} lists are not watched")
        rows = [queue.row(now_s) for queue in queues]
        return [*rows, *self._gone.rows(now_ns), *({"reason": why} for why in problems)]

    def _names(self, ask: Ask) -> tuple[list[tuple[str, str]], list[str]]:
        out: list[tuple[str, str]] = []
        problems = []
        for kind, name in self._declared:
            if name != "*" or kind not in _LISTED:
                out.append((kind, name))
                continue
            command: Command = ("SMEMBERS", _LISTED[kind])
            (reply,) = ask([command])
            if isinstance(reply, hiredis.ReplyError):
                problems.append(f"{kind} queues cannot be listed: {reply}")
                continue
            found = sorted(one.decode("utf-8", "replace").removeprefix("rq:queue:") for one in reply)
            out += [(kind, one) for one in found]
        return list(dict.fromkeys(out)), problems

    @staticmethod
    def _fill(queues: list[_Queue], ask: Ask) -> None:
        try:
            replies = _replies(ask, [command for queue in queues for command in queue.commands])
        except ReplyTooLarge as error:
            for queue in queues:
                queue.problem = str(error)
            return
        for queue in queues:
            its = [replies[command] for command in queue.commands]
            for command, reply in zip(queue.commands, its, strict=True):
                optional = command[1] == queue.scheduled
                if isinstance(reply, hiredis.ReplyError) and not queue.problem and not optional:
                    rule = missing_rule(command, reply)
                    queue.problem = f"missing ACL rule {rule}" if rule else str(reply)
            if not queue.problem:
                queue.read(queue, its)
        for _ in range(2):  # what was read may lead to more
            more = [(queue, command, take) for queue in queues for command, take in queue.more]
            for queue in queues:
                queue.more = []
            if not more:
                return
            try:
                given = _replies(ask, [command for _, command, _ in more])
            except ReplyTooLarge:  # ages stay unknown
                return
            for queue, command, take in more:
                reply = given[command]
                if not isinstance(reply, hiredis.ReplyError) and reply is not None:
                    take(queue, reply)


def _replies(ask: Ask, commands: Sequence[Command]) -> dict[Command, Reply]:
    """By command; one that several queues need is sent once: Sidekiq's processes may serve all of them."""
    unique = list(dict.fromkeys(commands))
    return dict(zip(unique, ask(unique), strict=True))


def _counted(command: str, name: str, _now_s: float) -> _Queue:
    def read(queue: _Queue, replies: Sequence[Any]) -> None:
        queue.lag = _count(replies[0])

    return _Queue(name, [(command, name)], read)


def _due_and_later(key: str, now: str) -> list[Command]:
    """Of jobs for later, a sorted set by their times: how many are due, and how many are not. now: as a score."""
    return [("ZCOUNT", key, "-inf", now), ("ZCOUNT", key, f"({now}", "+inf")]


def _sorted_by_time(key: str, now_s: float) -> _Queue:
    """Sidekiq's jobs for later: those that are due wait for a process that queues them."""

    def read(queue: _Queue, replies: Sequence[Any]) -> None:
        due, later, first = replies
        queue.lag, queue.delayed = (_count(due), _count(later)) if now_s else (None, None)
        queue.queued_s = [float(first[1])] if first else []
        queue.position = hash(first[0]) if first else None  # jobs of one class begin alike

    return _Queue(key, [*_due_and_later(key, f"{now_s:f}"), ("ZRANGE", key, 0, 0, "WITHSCORES")], read)


def _sidekiq(name: str, _now_s: float) -> _Queue:
    """List queue:NAME, new jobs at the head. Running jobs are in hash PROCESS:work."""

    def read(queue: _Queue, replies: Sequence[Any]) -> None:
        queue.lag, queue.pending, queue.consumers = _count(replies[0]), 0, 0
        queue.more.append((("LINDEX", key, -1), oldest))
        for process in sorted(replies[1])[:MAX_RUNNING]:
            queue.more.append((("HGET", process, "info"), serves))
            queue.more.append((("HVALS", process + b":work"), works))
        if len(replies[1]) > MAX_RUNNING:
            queue.pending = queue.consumers = None

    def oldest(queue: _Queue, job: bytes) -> None:
        about = _parsed(job)
        queue.queued_s = [_seconds(about.get("enqueued_at"))]
        queue.position = str(about.get("jid", "")) or None

    def serves(queue: _Queue, info: bytes) -> None:
        if queue.consumers is not None:
            served = _parsed(info).get("queues")
            queue.consumers += isinstance(served, list | dict) and name in served

    def works(queue: _Queue, running: Sequence[bytes]) -> None:
        mine = [about for about in map(_parsed, running) if about.get("queue") == name]
        if queue.pending is not None:
            queue.pending += len(mine)
        queue.started_s += [_seconds(about.get("run_at")) for about in mine]

    key = f"queue:{name}"
    return _Queue(key, [("LLEN", key), ("SMEMBERS", "processes")], read)


def _rq(name: str, now_s: float) -> _Queue:
    """List rq:queue:NAME of ids of jobs, new ones at the end. Running jobs are in sorted set rq:wip:NAME, jobs for
    later in rq:scheduled:NAME by their Unix times; those that are due wait for a worker that schedules.
    """

    def read(queue: _Queue, replies: Sequence[Any]) -> None:
        waiting, queue.pending, queue.consumers = map(_count, replies[:3])
        first, jobs, *for_later = replies[3:]
        if now_s and not any(isinstance(reply, hiredis.ReplyError) for reply in for_later):
            due, queue.delayed, next_job = _count(for_later[0]), _count(for_later[1]), for_later[2]
            queue.lag = waiting + due
            if due and next_job:
                queue.position, queue.queued_s = next_job[0], [float(next_job[1])]
        else:
            queue.lag, queue.doubt = waiting, "lower bound: due jobs are not known"
        if first is not None:
            queue.position = first
            queue.more.append((("HGET", b"rq:job:" + first, "enqueued_at"), queued))
        for job in jobs:
            if b":" in job:  # since RQ 2: JOB:EXECUTION
                queue.more.append((("HGET", b"rq:execution:" + job, "created_at"), started))
            else:
                queue.more.append((("HGET", b"rq:job:" + job, "started_at"), started))

    def queued(queue: _Queue, when: bytes) -> None:
        queue.queued_s.append(_time(when))

    def started(queue: _Queue, when: bytes) -> None:
        queue.started_s.append(_time(when))

    key, running, scheduled = f"rq:queue:{name}", f"rq:wip:{name}", f"rq:scheduled:{name}"
    commands: list[Command] = [
        ("LLEN", key),
        ("ZCARD", running),
        ("SCARD", f"rq:workers:{name}"),
        ("LINDEX", key, 0),
        ("ZRANGE", running, 0, MAX_RUNNING - 1),
        *_due_and_later(scheduled, f"{now_s:f}"),
        ("ZRANGE", scheduled, 0, 0, "WITHSCORES"),
    ]
    return _Queue(key, commands, read, scheduled=scheduled)


def _bullmq(name: str, now_s: float) -> _Queue:
    """Lists PREFIX:NAME:wait, or :paused, and :active of ids of jobs, new ones at the head; sorted sets :prioritized,
    and :delayed by 4,096 times the Unix time in ms. NAME is ``PREFIX:NAME`` for another prefix than bull.
    """

    def read(queue: _Queue, replies: Sequence[Any]) -> None:
        wait, paused, prioritized, active, due, later = map(_count, replies[:6])
        last, last_paused, running = replies[6:]
        marker = last is not None and last.startswith(b"0:")  # of versions before 5, among the jobs
        queue.lag, queue.pending = (wait + paused + prioritized + due - marker if now_s else None), active
        queue.delayed = later if now_s else None
        if not prioritized and not due and not marker:  # else the oldest one may be among these
            oldest = [job for job in (last, last_paused) if job is not None]
            queue.position = oldest[0] if oldest else None
            for job in oldest:
                queue.more.append((("HMGET", _joined(key, job), "timestamp", "opts", "atm", "attemptsMade"), queued))
        if running is not None:
            queue.more.append((("HGET", _joined(key, running), "processedOn"), started))

    def queued(queue: _Queue, fields: Sequence[Any]) -> None:
        created, options, *attempts = fields
        if created is None or any(one not in (None, b"0") for one in attempts):
            return  # a repeated job was queued again at an unknown time
        queue.queued_s.append((_number(created) + _number(_parsed(options or b"{}").get("delay") or 0)) / 1000)

    def started(queue: _Queue, when: bytes) -> None:
        queue.started_s.append(_number(when) / 1000)

    key = name if ":" in name else f"bull:{name}"
    due_until = int(now_s * 1000) * 4096 + 4095
    commands: list[Command] = [
        ("LLEN", f"{key}:wait"),
        ("LLEN", f"{key}:paused"),
        ("ZCARD", f"{key}:prioritized"),
        ("LLEN", f"{key}:active"),
        *_due_and_later(f"{key}:delayed", str(due_until)),
        ("LINDEX", f"{key}:wait", -1),
        ("LINDEX", f"{key}:paused", -1),
        ("LINDEX", f"{key}:active", -1),
    ]
    return _Queue(key, commands, read)


_KINDS: dict[str, Callable[[str, float], _Queue]] = {
    "lists": partial(_counted, "LLEN"),
    "sorted_sets": partial(_counted, "ZCARD"),
    "sidekiq": _sidekiq,
    "rq": _rq,
    "bullmq": _bullmq,
}
#: The set of all queues, where there is one.
_LISTED = {"sidekiq": "queues", "rq": "rq:queues"}


def _joined(key: str, job: bytes) -> bytes:
    return key.encode() + b":" + job


def _count(reply: object) -> int:
    """Raises ValueError for what is no number of elements."""
    if not isinstance(reply, int) or not 0 <= reply < 1 << 48:
        raise ValueError("no count")
    return reply


def _earliest(times_s: Sequence[float]) -> float:
    """NaN if none of them is known."""
    return min((one for one in times_s if not isnan(one)), default=nan)


def _parsed(text: bytes) -> dict[str, Any]:
    """A JSON object; empty if it is none."""
    if not isinstance(text, bytes) or len(text) > _MAX_JOB_BYTES:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _number(given: object) -> float:
    """Of a text or a JSON number; NaN if it is none."""
    with suppress(ValueError, OverflowError):
        if isinstance(given, int | float | bytes) and not isinstance(given, bool):
            return float(given)
    return nan


def _seconds(given: object) -> float:
    """A Unix time in seconds, or in ms (Sidekiq 8); NaN if it is neither."""
    found = _number(given)
    return found / 1000 if abs(found) > _LATEST_S else found


def _time(text: bytes) -> float:
    """Unix time of a number, or of an ISO 8601 time (UTC if it names no zone); NaN if it is neither."""
    found = _number(text)
    if isnan(found):
        with suppress(ValueError, OverflowError):
            when = datetime.fromisoformat(text.decode())
            return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    return found
