"""What the consumers of the brokers do for each message, and the server that they ask for it: a ledger, one for each
broker, which stands for a consumer's database.

Messages are sent with their time (CLOCK_BOOTTIME); the consumers' logs have the time from then until a message is done.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from agent.common.clocks import boot_ns
from agent.lab.program import FAR, OTHER, LabProgram, Run


@dataclass(frozen=True)
class BrokerNames:
    """The names of a broker's programs. port: of its server, on the far side; ledger_port: of its ledger; group: the
    name of all consumers.
    """

    port: int
    ledger_port: int
    server: str
    producer: str
    consumers: tuple[str, str]
    group: str


BROKERS = {
    "celery": BrokerNames(6380, 8091, "celery-redis", "celery-send", ("celery1", "celery2"), "celery-workers"),
    "rabbitmq": BrokerNames(5672, 8093, "rabbitmq", "rabbit-send", ("rabbit1", "rabbit2"), "rabbitmq-consumers"),
    "kafka": BrokerNames(9092, 8092, "kafka", "kafka-send", ("kafka1", "kafka2"), "kafka-consumers"),
    "postgresql": BrokerNames(
        5432, 8094, "postgresql", "postgres-send", ("postgres1", "postgres2"), "postgresql-consumers"
    ),
}
_REQUEST, _ANSWER = b"GET / HTTP/1.1\r\nHost: ledger\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n"
_TIMEOUT_S = 20.0
#: Settings of a consumer. hold: it keeps what it has, and does nothing; poison_s: time for which it works on a message
#: that it cannot handle, before it gives it back; 0: it can handle it.
CONSUMER = {"work_s": 0.01, "hold": False, "poison_s": 0.0}
#: Settings of a producer. poison: the next message is one that no consumer can handle.
PRODUCER = {"per_s": 12.0, "poison": False}


def ledger(system: str) -> str:
    """The name of a broker's ledger."""
    return f"{system}-ledger"


class OrderWork:
    """A consumer's work. Threads of it have a connection each."""

    def __init__(self, run: Run) -> None:
        self._run, self._own = run, threading.local()

    def __call__(self, sent_ns: int, poison: bool) -> bool:
        """Whether the message is done; if not, it must be given back."""
        settings = self._run.settings
        while settings["hold"]:
            time.sleep(0.02)
        if poison and settings["poison_s"]:
            time.sleep(settings["poison_s"])
            return False
        time.sleep(settings["work_s"])
        self._run.log("handle", sent_ns, self._ask())
        return True

    def _ask(self) -> str:
        try:
            if getattr(self._own, "connection", None) is None:
                address = OTHER, BROKERS[self._run.program.system].ledger_port
                self._own.connection = socket.create_connection(address, _TIMEOUT_S)
            self._own.connection.sendall(_REQUEST)
            if self._own.connection.recv(4096):
                return "ok"
        except OSError:
            pass
        self._own.connection = None
        return "no_answer"


class Orders:
    """What a producer sends: a message each tick. ``next`` waits for the tick, and returns the time of sending and
    whether this is a poison message.
    """

    def __init__(self, run: Run) -> None:
        run.listen()
        self._run, self._tick = run, run.every(run.settings["per_s"])

    def next(self) -> tuple[int, bool]:
        self._tick()
        poison, self._run.settings["poison"] = bool(self._run.settings["poison"]), False
        return boot_ns(), poison


def produce(run: Run, connect: Callable[[], Callable[[int, bool], object]], *errors: type[Exception]) -> None:
    """Sends ``Orders``. connect: returns what sends one (its time, whether it is poison) and raises ``errors``, after
    which it is called again.
    """
    orders, send = Orders(run), None
    while True:
        start_ns, poison = orders.next()
        try:
            send = send or connect()
            send(start_ns, poison)
        except errors:
            send = None
            run.log("add", start_ns, "down")
            time.sleep(0.2)
        else:
            run.log("add", start_ns)


def broker_programs(
    system: str,
    queue: str,
    serve: Callable[[Run], None],
    send: Callable[[Run], None],
    consume: Callable[[Run], None],
    **server: Any,
) -> tuple[LabProgram, ...]:
    """A broker's server, producer and consumers, by their bodies. server: more of the server's declaration."""
    its = BROKERS[system]
    usual: dict[str, Any] = {"names": (f"{FAR}:{its.port}",), "uses": ("disk", "link"), "group": "disk"}
    uses = its.server, its.producer, ledger(system), its.group
    return (
        LabProgram(its.server, serve, "far", server=True, system=system, listens=(FAR, its.port), **(usual | server)),
        LabProgram(its.producer, send, settings=PRODUCER, names=(queue,), uses=(its.server,), system=system),
        *(
            LabProgram(name, consume, settings=CONSUMER, names=(queue,), uses=uses, system=system)
            for name in its.consumers
        ),
    )


def serve(system: str, run: Run) -> None:
    """Each answer waits for ``sleep_s``."""
    run.listen()

    def answer(connection: socket.socket) -> None:
        with connection:
            while connection.recv(4096):
                if run.settings["sleep_s"]:
                    time.sleep(run.settings["sleep_s"])
                connection.sendall(_ANSWER)

    listener = socket.create_server((OTHER, BROKERS[system].ledger_port), backlog=64)
    while True:
        threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()


PROGRAMS = tuple(
    LabProgram(
        ledger(system),
        partial(serve, system),
        settings={"sleep_s": 0.0},
        names=(f"{OTHER}:{names.ledger_port}",),
        server=True,
        root=True,  # a user's share of on-demand profiles is small
        comm=f"lab-{system[:5]}-db",
        system=system,
    )
    for system, names in BROKERS.items()
)
