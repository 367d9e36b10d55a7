"""Faults of Celery on Redis, of RabbitMQ, Kafka and PostgreSQL, their consumers, and what those depend on. Their names
are ``BROKER_FAULT``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from agent.lab.kind import Fault, Kind, Offender, Right, Size
from agent.lab.kinds.disks import frozen, slowed
from agent.lab.kinds.killed import killed
from agent.lab.kinds.network import treated
from agent.lab.kinds.redis import full_of_data, read_only
from agent.lab.kinds.stopped import all_stopped, stopped
from agent.lab.kinds.workers import setting_fault
from agent.lab.programs import kafka_queue, rabbitmq_queue
from agent.lab.programs.queue_work import BROKERS, ledger
from agent.lab.stage.stage import DISK, GUESTS, Stage

Injection = Callable[[Stage, Fault], AbstractContextManager[Offender]]
_TOOL_S = 60.0


def poisoned(system: str) -> Injection:
    """The producer sends one message that the consumers cannot handle: each time they work on it for the fault's size,
    and give it back.
    """

    @contextmanager
    def inject(stage: Stage, fault: Fault) -> Iterator[Offender]:
        for name in BROKERS[system].consumers:
            stage.processes.set_settings(name, poison_s=fault.size)
        stage.processes.set_settings(BROKERS[system].producer, poison=True)
        try:
            yield Offender()
        finally:
            for name in BROKERS[system].consumers:
                stage.processes.set_settings(name, poison_s=0.0)

    return inject


def alarmed(limit: str, far: str, usual: str) -> Injection:
    """The node's limit (a verb of rabbitmqctl) is set so far that it has an alarm, and blocks publishers."""

    @contextmanager
    def inject(stage: Stage, fault: Fault) -> Iterator[Offender]:
        _set_limit(stage, limit, far)
        try:
            yield Offender(fault.target)
        finally:
            _set_limit(stage, limit, usual)

    return inject


def _set_limit(stage: Stage, limit: str, value: str) -> None:
    """Raises OSError if the node refuses it."""
    place = stage.processes.members[BROKERS["rabbitmq"].server].directory

    def ask() -> None:
        tool = str(rabbitmq_queue.TOOLS / "rabbitmqctl")
        command = [tool, "-q", limit, value]
        subprocess.run(command, env=rabbitmq_queue.environment(place), check=True, timeout=_TOOL_S)

    pid = stage.processes.fork(ask, GUESTS, "far", "lab-operator", root=False)
    if os.waitpid(pid, 0)[1]:
        raise OSError("rabbitmqctl failed: see logs/errors.txt")


def ending_workers(injection: Injection) -> Injection:
    """Workers of Celery end when their server refuses what they ask; they start again after that."""

    @contextmanager
    def inject(stage: Stage, fault: Fault) -> Iterator[Offender]:
        for name in BROKERS["celery"].consumers:
            stage.processes.expect_end(name)
        try:
            with injection(stage, fault) as culprit:
                yield culprit
        finally:
            for name in BROKERS["celery"].consumers:
                stage.processes.revive(name)

    return inject


@contextmanager
def storming(stage: Stage, fault: Fault) -> Iterator[Offender]:
    """Another consumer joins the group and leaves it, again and again."""

    def join() -> None:
        from confluent_kafka import Consumer

        while True:
            consumer = Consumer({**kafka_queue.CONSUMING, "client.id": "visitor"})
            consumer.subscribe([kafka_queue.TOPIC])
            until = time.monotonic() + fault.size
            while time.monotonic() < until:
                consumer.poll(0.1)  # what it gets is lost: it commits when it leaves
            consumer.close()

    pid = stage.processes.fork(join, GUESTS, "node", "lab-visitor", root=False)
    try:
        yield Offender("lab-visitor", "visitor", (pid,))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _all_stopped(system: str) -> Injection:
    return lambda stage, fault: all_stopped(stage, fault, BROKERS[system].group)


_DISK = (Right("disk"), Right("syscall", "fsync"), Right("broker_slow"))
_STOPPED = (Right("consumer_stopped"), Right("process_stopped", culprit=True))


def _of(system: str) -> Iterator[Kind]:
    server, consumers, group = BROKERS[system].server, BROKERS[system].consumers, BROKERS[system].group
    everywhere = {group: (group,)}
    yield Kind(
        f"{system}_consumers_stopped",
        f"all consumers of {system} are stopped",
        Size("duration_s", 3.0, 12.0),
        (group,),
        _STOPPED if system == "kafka" else (*_STOPPED, Right("prefetch_full")),
        _all_stopped(system),
        settle_s=4.0,
        touches=everywhere,
        system=system,
    )
    yield Kind(
        f"{system}_consumer_killed",
        f"one of the two consumers of {system} is killed, with what it holds",
        Size("duration_s", 4.0, 12.0),
        consumers,
        (
            Right("process_killed", culprit=True),
            Right("consumer_stopped"),
            Right("rebalance"),
        ),
        killed,
        settle_s=20.0 if system == "celery" else 6.0,  # what it held is delivered again after that time
        touches={name: (name, group) for name in consumers},
        system=system,
    )
    yield Kind(
        f"{system}_ledger_slow",
        f"the database of the consumers of {system} answers slowly",
        Size("sleep_s", 0.6, 3.0),
        (ledger(system),),
        (
            Right("process_wait", "clock_nanosleep", culprit=True),
            Right("consumer_slow", "dependency"),
            Right("asleep", "clock_nanosleep", culprit=True),
            Right("broker_slow"),
        ),
        setting_fault("sleep_s", lambda f, _: f.size),
        (6.0, 10.0),
        settle_s=6.0,
        system=system,
    )
    yield Kind(
        f"{system}_server_stopped",
        f"the server of {system} is stopped",
        Size("duration_s", 1.0, 5.0),
        (server,),
        (Right("process_stopped", culprit=True), Right("peer_stopped", culprit=True), Right("broker_slow")),
        stopped,
        settle_s=3.0,
        system=system,
    )
    yield Kind(
        f"{system}_network_delay",
        f"packets to and from {system} take longer",
        Size("delay_s", 0.15, 0.5),
        (system,),
        (Right("network_rtt"),),
        treated("delay_s"),
        (4.0, 8.0),
        settle_s=3.0,
        touches={system: (server,)},
        system=system,
    )
    yield Kind(
        f"{system}_network_loss",
        f"packets to and from {system} are lost",
        Size("loss", 0.1, 0.4),
        (system,),
        (Right("network_loss"),),
        treated("loss"),
        (5.0, 9.0),
        settle_s=3.0,
        touches={system: (server,)},
        system=system,
    )
    if system != "rabbitmq":
        yield Kind(
            f"{system}_disk_slow",
            f"the disk of {system} writes slowly",
            Size("bytes_per_s", 4e4, 4e3),
            (server,),
            _DISK,
            slowed,
            (4.0, 7.0),
            ("blkio",),
            settle_s=4.0,
            touches={server: (DISK,)},
            system=system,
        )
        yield Kind(
            f"{system}_disk_frozen",
            f"the file system of {system} is frozen, as for a snapshot",
            Size("duration_s", 1.0, 4.0),
            (server,),
            _DISK,
            frozen,
            settle_s=4.0,
            touches={server: (DISK,)},
            system=system,
        )
    if system != "kafka":  # its consumers choose what they read again
        yield Kind(
            f"{system}_poison",
            f"a message of {system} cannot be handled, and is delivered again and again",
            Size("work_s", 0.4, 2.0),
            (group,),
            (Right("poison_message"),),
            poisoned(system),
            (8.0, 14.0),
            settle_s=3.0,
            touches=everywhere,
            system=system,
        )
    if system in ("celery", "rabbitmq"):  # the others' consumers hold one message
        yield Kind(
            f"{system}_prefetch_full",
            f"the consumers of {system} hold all that they may hold, and do nothing",
            # Rates of a Celery queue that is read are not known, so its age must rise for some seconds. Shorter than
            # Celery's visibility timeout.
            Size("duration_s", 11.0, 14.0),
            (group,),
            (
                Right("process_wait", "clock_nanosleep", culprit=True),
                Right("prefetch_full"),
                Right("consumer_stopped"),
            ),
            setting_fault("hold", lambda _f, _u: True, consumers),
            settle_s=4.0,
            touches=everywhere,
            system=system,
        )


KINDS = (
    *(kind for system in BROKERS for kind in _of(system)),
    *(
        Kind(
            f"rabbitmq_{what}_alarm",
            f"RabbitMQ has a {what} alarm, and blocks publishers",
            Size("duration_s", 4.0, 10.0),
            (BROKERS["rabbitmq"].server,),
            (Right("resource_limit", detail),),
            alarmed(*setting),
            settle_s=3.0,
            system="rabbitmq",
        )
        for what, detail, setting in (
            ("memory", "memory", ("set_vm_memory_high_watermark", "0.001", "0.4")),
            ("disk", "disk_full", ("set_disk_free_limit", "9000GB", "1MB")),
        )
    ),
    Kind(
        "celery_full_memory",
        "the Redis of Celery refuses to write: its memory is full",
        Size("duration_s", 2.0, 8.0),
        (BROKERS["celery"].server,),
        (Right("resource_limit", "memory"),),
        ending_workers(full_of_data),
        settle_s=8.0,
        system="celery",
    ),
    Kind(
        "celery_failover",
        "the Redis of Celery refuses to write: it was made a replica, as in a fail-over",
        Size("duration_s", 2.0, 8.0),
        (BROKERS["celery"].server,),
        (Right("failover", culprit=True), Right("broker_down")),
        ending_workers(read_only),
        settle_s=8.0,
        system="celery",
    ),
    Kind(
        "kafka_rebalance_storm",
        "a consumer joins the group and leaves it, again and again",
        Size("stays_s", 2.0, 0.5),
        (BROKERS["kafka"].group,),
        (Right("rebalance", "storm"), Right("rebalance")),
        storming,
        (10.0, 16.0),
        settle_s=4.0,
        touches={BROKERS["kafka"].group: (BROKERS["kafka"].group,)},
        system="kafka",
    ),
)
