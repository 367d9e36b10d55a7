"""Processes that are killed, and start again after a while."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from agent.lab.kind import Fault, Kind, Offender, Right, Size
from agent.lab.stage.stage import Stage


@contextmanager
def killed(stage: Stage, fault: Fault) -> Iterator[Offender]:
    stage.processes.kill(fault.target)
    try:
        yield Offender(fault.target)
    finally:
        stage.processes.start(stage.programs[fault.target])


@contextmanager
def restarted(stage: Stage, fault: Fault) -> Iterator[Offender]:
    """Restarts it as often as the fault's size, every quarter of a second, like a crash loop."""
    for _ in range(round(fault.size)):
        stage.processes.kill(fault.target)
        time.sleep(0.2)
        stage.processes.start(stage.programs[fault.target])
        time.sleep(0.05)
    yield Offender(fault.target)


_GONE = (Right("process_killed", culprit=True), Right("broker_down"))
KINDS = (
    Kind(
        "broker_killed",
        "Redis is killed, and starts again, empty",
        Size("duration_s", 0.5, 6.0),
        ("redis", "redis-other", "redis-far"),
        _GONE,
        killed,
    ),
    Kind(
        "upstream_killed",
        "the HTTP server that others ask is killed",
        Size("duration_s", 0.5, 5.0),
        ("upstream",),
        _GONE,
        killed,
    ),
    Kind(
        "dns_killed",
        "the DNS server is killed",
        Size("duration_s", 0.5, 5.0),
        ("dns",),
        (Right("dns", culprit=True), Right("process_killed", culprit=True)),
        killed,
    ),
    Kind(
        "limiter_killed",
        "the limiter's own process is killed",
        Size("duration_s", 0.5, 6.0),
        ("api-redis", "api-journal"),
        (Right("process_killed", culprit=True), Right("process_restarted", culprit=True)),
        killed,
    ),
    Kind(
        "limiter_restarted",
        "the limiter's own process is restarted again and again",
        Size("times", 4, 20),
        ("api-redis", "api-journal"),
        (Right("process_restarted", culprit=True),),
        restarted,
        (0.1, 0.3),
    ),
    Kind(
        "consumer_killed",
        "one of three consumers is killed, with what it holds",
        Size("duration_s", 2.0, 12.0),
        ("consumer1", "consumer2", "consumer3"),
        (Right("process_killed", culprit=True), Right("consumer_stopped"), Right("rebalance")),
        killed,
    ),
)
