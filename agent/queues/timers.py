"""Timers of the servers that are polled, and what a jump of the wall clock does to each kind of them.

``RULES`` has one row for each kind of timer that was measured: on a real server, in a virtual machine with a clock that
was stepped by 2 h and back (tests/vm/guest_timer_clocks.py), or whose clock a library shifted. A version that was not
measured has no rule: its clock is unknown, and no consequence is claimed. Pure, but for ``on_this_host``; without
numpy, for the brokers' process.
"""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from agent.common.fairness import UpperBound

#: Listed one by one, of a server; the others are counted by queue.
MAX_TIMERS = 100
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "queues",
        "timers of a server with a row each in `timer_effect`",
        MAX_TIMERS,
        "those due first have rows, those on the wall clock before others; the rest is counted, one row per queue,"
        f" for {MAX_TIMERS} queues",
        "`timer_effect.timers`",
    ),
)
_NEVER_NS = 1 << 63


@dataclass(frozen=True)
class TimerRule:
    """A kind of timer. versions: prefixes of those that were measured; empty: servers do not report it. forward,
    backward: what a jump does. measured: with what. where: of which kind of queue, if they differ.

    clock: wall; monotonic; both: it fires once it is due on both; checked: the server compares the wall clock when a
    monotonic timer of its own fires, at the latest when the first one of a queue was due.
    """

    system: str
    kind: str
    versions: tuple[str, ...]
    clock: str
    forward: str
    backward: str
    measured: str
    where: str = ""

    def holds_for(self, version: str) -> bool:
        """version: of a server, or those of a cluster with commas between them: all must have been measured."""
        measured = tuple(f"{one}." for one in self.versions)
        return not measured or all(f"{one}.".startswith(measured) for one in version.split(", "))


_KOMBU = "kombu 5.2.4, 5.3.7, 5.4.2, 5.5.4 and 5.7.0 on Redis 7.0.15"
_RABBIT, _CLASSIC = "RabbitMQ 3.10.8: x-message-ttl", "RabbitMQ 3.10.8 and 4.0.5: x-message-ttl"
_REDIS = "Redis 7.0.15 and 8.0.2, Valkey 8.1.1: SET PX and PEXPIREAT"
_MEASURED = ("7.0", "8.0", "valkey 8.1")
_ETCD = "a lease with a key"
_NATS, _NATS_MEASURED = ("2.9", "2.10"), "NATS 2.9.10 and 2.10.27"
#: Of ids, whatever the server: their producers make them.
_IDS = (
    "ids stay unique and in order",
    "until the clock has caught up, new ids of this host may sort before older ones (Snowflake: may repeat)",
    "uuid6 2025.0.1, uuid-utils 1.2.0 and a Snowflake worker, with a clock that went back",
)
RULES = (
    *(TimerRule(system, "id", (), "wall", *_IDS) for system in ("redis", "kafka")),
    TimerRule(
        "celery",
        "redelivery",
        (),
        "wall",
        "redelivered early by workers on this host, even if it still runs: it may run twice",
        "redelivered late by workers on this host",
        f"{_KOMBU}: the visibility timeout",
    ),
    TimerRule(
        "celery",
        "eta",
        (),
        "monotonic",
        "runs on time, while its worker holds it",
        "runs on time, while its worker holds it",
        "Celery 5.7.0: a task with a countdown that a worker holds",
    ),
    TimerRule("redis", "ttl", _MEASURED, "wall", "the key expires early", "the key expires late", _REDIS),
    TimerRule(
        "redis",
        "lock",
        _MEASURED,
        "wall",
        "the lock expires early, while its owner still works: two may hold it",
        "a lock that its owner does not release expires late",
        _REDIS,
    ),
    TimerRule(
        "redis",
        "lease",
        _MEASURED,
        "wall",
        "the lease ends early, while its owner still works: another may take it",
        "the lease of an owner that is gone ends late",
        _REDIS,
    ),
    TimerRule(
        "redis",
        "dedup",
        _MEASURED,
        "wall",
        "the window ends early: duplicates pass",
        "the window ends late: intended repeats are dropped",
        _REDIS,
    ),
    *(
        TimerRule("rabbitmq", kind, ("3.10", "4.0"), "checked", forward, backward, _CLASSIC, "classic queues")
        for kind, forward, backward in (
            ("ttl", "the first message expires on time, those behind it with it: early", "messages expire late"),
            ("eta", "the first message leaves on time, those behind it with it: early", "messages leave late"),
        )
    ),
    *(
        TimerRule(
            *("rabbitmq", kind, ("3.10",), "monotonic"),
            f"{what} on time, or up to 1 % early",
            f"{what} on time, or up to 1 % late",
            _RABBIT,
            "quorum queues",
        )
        for kind, what in (("ttl", "messages expire"), ("eta", "messages leave"))
    ),
    TimerRule(
        "rabbitmq",
        "lease",
        ("3.10",),
        "monotonic",
        "the queue is deleted on time, or up to 1 % early",
        "the queue is deleted on time, or up to 1 % late",
        "RabbitMQ 3.10.8: x-expires",
    ),
    TimerRule(
        "kafka",
        "retention",
        (),
        "wall",
        "unread records are deleted early",
        "records are deleted late",
        "Kafka 4.4.0 with a shifted clock: retention.ms with CreateTime and LogAppendTime",
    ),
    TimerRule(
        "postgresql",
        "eta",
        ("15", "17"),
        "wall",
        "the job runs early",
        "the job runs late",
        "PostgreSQL 15.18 and 17.12: a job table's `run_at <= now()`",
    ),
    TimerRule(
        "etcd",
        "lease",
        ("3.4",),
        "both",
        "the lease ends on time",
        "the lease of an owner that is gone ends late, and its keys stay",
        f"etcd 3.4.23: {_ETCD}",
    ),
    TimerRule(
        "etcd",
        "lease",
        ("3.5",),
        "monotonic",
        "the lease ends on time",
        "the lease ends on time",
        f"etcd 3.5.16: {_ETCD}",
    ),
    TimerRule(
        "nats",
        "retention",
        _NATS,
        "checked",
        "messages are deleted early, at the server's next check: at the latest when the first was due",
        "messages are deleted late",
        f"{_NATS_MEASURED}: MaxAge, in memory and in files",
    ),
    TimerRule(
        "nats",
        "redelivery",
        _NATS,
        "checked",
        "redelivered early, at the server's next check, even if it is still processed",
        "redelivered late",
        f"{_NATS_MEASURED}: AckWait",
    ),
    TimerRule(
        "nats",
        "dedup",
        _NATS,
        "checked",
        "the window ends early, at the server's next check: duplicates pass",
        "the window ends late: intended repeats are dropped",
        f"{_NATS_MEASURED}: Nats-Msg-Id",
    ),
)


def rule(system: str, kind: str, version: str, where: str = "") -> TimerRule | None:
    """What was measured for it; None: nothing."""
    wanted = system, kind, where
    return next((r for r in RULES if (r.system, r.kind, r.where) == wanted and r.holds_for(version)), None)


def rule_of(system: str, kind: str, version: str, clock: str) -> TimerRule | None:
    """The same by the clock, in which kinds of one name differ by version or by queue."""
    wanted = system, kind, clock
    return next((r for r in RULES if (r.system, r.kind, r.clock) == wanted and r.holds_for(version)), None)


@dataclass(frozen=True)
class QueueTimer:
    """One timer. destination: its queue; object: the message, key, lease or consumer. due_wall_ns: when it fires, ns
    since 1970, if it runs on the wall clock; due_ns: CLOCK_BOOTTIME, if not. The rule of the version decides where both
    are given. None: not known, and ``unknown`` says why. timers: how many this one stands for. elsewhere: as
    ServerTimers.elsewhere, if servers of one cluster differ. where: as TimerRule.where.
    """

    destination: bytes
    object: bytes
    kind: str
    due_wall_ns: int | None = None
    due_ns: int | None = None
    timers: int = 1
    unknown: str = ""
    elsewhere: str = ""
    where: str = ""


@dataclass(frozen=True)
class ServerTimers:
    """The timers of a server as of one poll. version: the server's. elsewhere: why its clock may not be this host's."""

    timers: Sequence[QueueTimer] = ()
    version: str = ""
    elsewhere: str = ""


class TimedQueue(ABC):
    """A queue with timers."""

    @abstractmethod
    def timers(self) -> ServerTimers | None:
        """As of the last poll; None: that poll failed."""


def on_this_host(host: str) -> bool:
    """Whether that IP address is one of this host, as this process sees it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def elsewhere(host: str) -> str:
    """Why the clock of the server at that IP address may not be this host's; empty for this host's own addresses, and
    for a Unix socket, which has no address. An address may move to another host: it is looked up once a minute.
    """
    if not host or _on_this_host(host, int(time.monotonic() // 60)):
        return ""
    return f"{host} is not an address of this host: its clock may differ"


@lru_cache(64)
def _on_this_host(host: str, _minute: int) -> bool:
    return on_this_host(host)


def rows(system: str, cluster: str, found: ServerTimers, now_ns: int) -> list[dict[str, Any]]:
    """Rows of ``timer_effect`` without a jump; one without timers if there are none. now_ns: of the poll,
    CLOCK_BOOTTIME.
    """
    common = {"system": system, "cluster": cluster, "t_ns": now_ns, "polled_ns": now_ns, "version": found.version}
    if not found.timers:
        return [{**common, "timers": 0}]
    return [{**common, **_columns(system, one, found)} for one in _bounded(found.timers)]


def _columns(system: str, one: QueueTimer, found: ServerTimers) -> dict[str, Any]:
    if any(abs(at) >= _NEVER_NS for at in (one.due_wall_ns, one.due_ns) if at is not None):
        one = replace(one, due_wall_ns=None, due_ns=None, unknown=one.unknown or "it is due after the year 2262")
    known = rule(system, one.kind, found.version, one.where)
    away = one.elsewhere or found.elsewhere
    why = one.unknown or away
    if known is None:
        why = f"not measured for {system} {found.version or 'of an unknown version'}"
    clock = None if known is None or away else known.clock
    due_wall_ns, due_ns = one.due_wall_ns, one.due_ns
    if due_wall_ns is not None and due_ns is not None and clock != "both":
        due_wall_ns, due_ns = (None, due_ns) if clock == "monotonic" else (due_wall_ns, None)
    return {
        "destination": one.destination,
        "object": one.object,
        "kind": one.kind,
        "timers": one.timers,
        "clock": clock,
        "due_wall_ns": due_wall_ns,
        "was_due_ns": due_ns,
        "consequence": why,
    }


def _bounded(timers: Iterable[QueueTimer]) -> list[QueueTimer]:
    """The first, one by one; the others as one for each queue and kind, and beyond as many for each kind. Timers on the
    wall clock come before those that no jump moves.
    """
    ordered = sorted(timers, key=lambda one: (one.due_wall_ns is None, one.due_wall_ns or one.due_ns or _NEVER_NS))
    groups: dict[tuple[bytes, str], list[QueueTimer]] = {}
    for one in ordered[MAX_TIMERS:]:
        key = one.destination, one.kind
        groups.setdefault(key if key in groups or len(groups) < MAX_TIMERS else (b"", one.kind), []).append(one)
    many = [
        replace(
            some[0], destination=destination, object=b"", timers=min(sum(one.timers for one in some), _NEVER_NS - 1)
        )
        for (destination, _), some in groups.items()
    ]
    return [*ordered[:MAX_TIMERS], *many]
