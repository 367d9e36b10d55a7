"""Processes that are stopped (SIGSTOP) for a while."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from agent.lab.kind import Fault, Kind, Offender, Right, Size
from agent.lab.stage.stage import Stage


@contextmanager
def stopped(stage: Stage, fault: Fault) -> Iterator[Offender]:
    stage.processes.signal(fault.target, signal.SIGSTOP)
    try:
        yield Offender(fault.target)
    finally:
        stage.processes.signal(fault.target, signal.SIGCONT)


@contextmanager
def all_stopped(stage: Stage, fault: Fault, group: str = "group") -> Iterator[Offender]:
    """All consumers of the group."""
    names = [name for name, program in stage.programs.items() if group in program.uses]
    with ExitStack() as undo:
        for name in names:
            undo.enter_context(stopped(stage, replace(fault, target=name)))
        yield Offender(pids=tuple(stage.processes.members[name].pid for name in names))


_SERVER = (Right("process_stopped", culprit=True), Right("peer_stopped", culprit=True), Right("broker_slow"))
KINDS = (
    Kind(
        "broker_stopped",
        "Redis is stopped",
        Size("duration_s", 0.2, 4.0),
        ("redis", "redis-other", "redis-far"),
        _SERVER,
        stopped,
    ),
    Kind(
        "tls_peer_stopped",
        "the TLS server is stopped",
        Size("duration_s", 0.2, 4.0),
        ("nginx", "tls-server"),
        (
            Right("process_stopped", culprit=True),
            Right("peer_stopped", culprit=True),
            Right("tls"),
            Right("broker_slow"),
        ),
        stopped,
    ),
    Kind(
        "upstream_stopped",
        "the HTTP server that others ask is stopped",
        Size("duration_s", 0.2, 4.0),
        ("upstream",),
        _SERVER,
        stopped,
    ),
    Kind(
        "dns_stopped",
        "the DNS server is stopped",
        Size("duration_s", 0.3, 5.0),
        ("dns",),
        (Right("dns", culprit=True), Right("process_stopped", culprit=True), Right("peer_stopped", culprit=True)),
        stopped,
    ),
    Kind(
        "limiter_stopped",
        "the limiter's own process is stopped",
        Size("duration_s", 0.5, 5.0),
        ("api-redis", "api-journal", "api-http"),
        (Right("process_stopped", culprit=True),),
        stopped,
    ),
    Kind(
        "consumer_stopped",
        "one of three consumers is stopped, with what it holds",
        Size("duration_s", 1.0, 12.0),
        ("consumer1", "consumer2", "consumer3"),
        (Right("consumer_stopped", culprit=True), Right("process_stopped", culprit=True)),
        stopped,
    ),
    Kind(
        "consumers_stopped",
        "all consumers are stopped",
        Size("duration_s", 1.0, 12.0),
        ("consumers",),
        (Right("consumer_stopped"), Right("process_stopped", culprit=True)),
        all_stopped,
        settle_s=2.0,
        touches={"consumers": ("group",)},
    ),
    Kind(
        "acceptor_stopped",
        "a server is stopped, and its accept queue fills",
        Size("duration_s", 0.3, 5.0),
        ("web",),
        (Right("process_stopped", culprit=True), Right("accept_overflow", culprit=True)),
        stopped,
    ),
)
