"""Programs that work slowly, hold messages back, or send too much, because of a setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from agent.lab.kind import Fault, Kind, Offender, Right, Size
from agent.lab.stage.stage import Stage


def setting_fault(
    setting: str, value: Callable[[Fault, Any], Any], programs: tuple[str, ...] = ()
) -> Callable[[Stage, Fault], AbstractContextManager[Offender]]:
    """Changes a setting of the target (or of ``programs``); ``value`` computes it from the fault and the usual
    value.
    """

    @contextmanager
    def inject(stage: Stage, fault: Fault) -> Iterator[Offender]:
        names = programs or (fault.target,)
        usual = {name: stage.programs[name].settings[setting] for name in names}
        for name in names:
            stage.processes.set_settings(name, **{setting: value(fault, usual[name])})
        try:
            yield Offender(fault.target)
        finally:
            for name in names:
                stage.processes.set_settings(name, **{setting: usual[name]})

    return inject


_CONSUMERS = ("consumer1", "consumer2", "consumer3")
#: What the limiters behind these programs allow per second; the Go API's limit is in its source.
ALLOWED = {"api-redis": 40.0, "api-redis-far": 40.0, "callers": 30.0}
_SLOW = Size("delay_s", 0.03, 1.0)
_SLEEPS = Right("process_wait", "clock_nanosleep", culprit=True)
KINDS = (
    Kind(
        "consumers_slow",
        "all consumers work slowly",
        Size("work_s", 0.4, 3.0),
        ("consumers",),
        (Right("process_wait", "clock_nanosleep"), Right("consumer_slow")),
        setting_fault("work_s", lambda f, _: f.size, _CONSUMERS),
        (6.0, 12.0),
        settle_s=3.0,
        touches={"consumers": ("group",)},
    ),
    Kind(
        "message_held",
        "one consumer holds what it took for long",
        Size("duration_s", 3.0, 14.0),
        _CONSUMERS,
        (_SLEEPS, Right("consumer_slow", culprit=True), Right("consumer_stopped", culprit=True)),
        setting_fault("work_s", lambda f, _: f.size),
    ),
    Kind(
        "producer_burst",
        "many more messages than usual",
        Size("times", 18.0, 36.0),
        ("producer",),
        (Right("load", culprit=True), Right("load")),
        setting_fault("per_s", lambda f, usual: usual * f.size),
        (2.5, 4.5),
        settle_s=8.0,
    ),
    Kind(
        "overload",
        "more is asked of a limiter than it allows",
        Size("of_limit", 1.4, 4.5),
        tuple(ALLOWED),
        (Right("load"),),
        setting_fault("per_s", lambda f, _: ALLOWED[f.target] * f.size),
        (4.0, 8.0),
    ),
    Kind(
        "limit_lowered",
        "a limiter allows less",
        Size("share", 0.1, 0.45),
        ("api-redis", "api-redis-other"),
        (Right("config"),),
        setting_fault("limit", lambda f, usual: max(1, int(usual * f.size))),
        (4.0, 8.0),
    ),
    Kind(
        "upstream_slow",
        "the HTTP server that others ask answers slowly",
        _SLOW,
        ("upstream",),
        (_SLEEPS, Right("broker_slow", culprit=True), Right("broker_slow")),
        setting_fault("delay_s", lambda f, _: f.size),
        (3.0, 8.0),
    ),
    Kind(
        "dns_slow",
        "the DNS server answers slowly",
        _SLOW,
        ("dns",),
        (_SLEEPS, Right("dns", culprit=True), Right("dns")),
        setting_fault("delay_s", lambda f, _: f.size),
        (3.0, 8.0),
    ),
    Kind(
        "acceptor_slow",
        "a server takes long for each connection, and its accept queue fills",
        Size("work_s", 0.07, 0.6),
        ("web",),
        (Right("accept_overflow", culprit=True), Right("accept_overflow"), Right("asleep", culprit=True), _SLEEPS),
        setting_fault("work_s", lambda f, _: f.size),
        (4.0, 8.0),
        settle_s=2.0,
    ),
    Kind(
        "receiver_not_reading",
        "a receiver does not read",
        Size("duration_s", 0.5, 6.0),
        ("receiver",),
        (Right("process_stopped", culprit=True), Right("peer_stopped", culprit=True)),
        setting_fault("reading", lambda _f, _u: False),
    ),
    Kind(
        "sender_not_sending",
        "a sender sends nothing",
        Size("duration_s", 0.5, 6.0),
        ("sender",),
        (Right("process_stopped", culprit=True), Right("peer_stopped", culprit=True)),
        setting_fault("sending", lambda _f, _u: False),
    ),
)
