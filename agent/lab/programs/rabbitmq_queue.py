"""RabbitMQ: a node, a producer that waits for confirms, and two consumers of a durable queue."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agent.common.clocks import boot_ns
from agent.lab.program import FAR, Run
from agent.lab.programs.queue_work import BROKERS, OrderWork, broker_programs, produce

SYSTEM, QUEUE = "rabbitmq", "shipments"
PORT, METRICS_PORT, PREFETCH = BROKERS[SYSTEM].port, 15692, 10
TOOLS = Path("/usr/lib/rabbitmq/bin")
_CONFIG = f"""
listeners.tcp.1 = {FAR}:{PORT}
prometheus.tcp.ip = {FAR}
prometheus.tcp.port = {METRICS_PORT}
loopback_users = none
collect_statistics_interval = 1000
disk_free_limit.absolute = 1MB
log.console = true
log.console.level = critical
log.file = false
"""


def available(_shared: Path) -> None:
    if not (TOOLS / "rabbitmq-server").exists():
        raise FileNotFoundError("RabbitMQ is not installed (apt install rabbitmq-server)")
    if find_spec("amqp") is None:
        raise FileNotFoundError("a client of RabbitMQ is not installed (pip install amqp)")


def environment(place: Path) -> dict[str, str]:
    """Of the node, and of rabbitmqctl. place: the node's directory."""
    return {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(place),
        "LANG": "C.UTF-8",
        "RABBITMQ_NODENAME": "lab@localhost",
        "RABBITMQ_MNESIA_BASE": str(place / "data"),
        "RABBITMQ_LOG_BASE": str(place / "log"),
        "RABBITMQ_CONFIG_FILE": str(place / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(place / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(place / "enabled_plugins"),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none",
    }


def serve(run: Run) -> None:
    place = run.directory
    (place / "rabbitmq.conf").write_text(_CONFIG)
    (place / "enabled_plugins").write_text("[rabbitmq_prometheus].\n")
    (place / "advanced.config").write_text("[].\n")
    os.chdir(place)
    program = str(TOOLS / "rabbitmq-server")
    os.execve(program, [program], environment(place))


def _channel() -> tuple[Any, Any]:
    """A connection and its channel. Raises OSError, or an error of amqp."""
    import amqp

    connection = amqp.Connection(f"{FAR}:{PORT}", "guest", "guest", confirm_publish=True, connect_timeout=5)
    connection.connect()
    channel = connection.channel()
    channel.queue_declare(QUEUE, durable=True, auto_delete=False)
    return connection, channel


def consume(run: Run) -> None:
    import amqp

    run.listen()
    work = OrderWork(run)
    while True:
        try:
            connection, channel = _channel()

            def take(message: Any, channel: Any = channel) -> None:
                order = json.loads(message.body)
                if work(order["sent_ns"], order["poison"]):
                    channel.basic_ack(message.delivery_tag)
                else:
                    channel.basic_reject(message.delivery_tag, requeue=True)

            channel.basic_qos(0, PREFETCH, False)
            channel.basic_consume(QUEUE, callback=take)
            while True:
                connection.drain_events()
        except (amqp.AMQPError, OSError):
            run.log("handle", boot_ns(), "down")
            time.sleep(0.2)


def send(run: Run) -> None:
    import amqp

    def connect() -> Callable[[int, bool], object]:
        channel = _channel()[1]

        def publish(sent_ns: int, poison: bool) -> None:
            order = json.dumps({"sent_ns": sent_ns, "poison": poison})
            channel.basic_publish(amqp.Message(order, delivery_mode=2), routing_key=QUEUE)

        return publish

    produce(run, connect, amqp.AMQPError, OSError)


PROGRAMS = broker_programs(
    SYSTEM,
    QUEUE,
    serve,
    send,
    consume,
    names=(f"{FAR}:{PORT}", f"{FAR}:{METRICS_PORT}"),
    uses=("link",),
    comm="beam.smp",
    group="",
    polled=("rabbitmq", f"http://{FAR}:{METRICS_PORT}?queues={QUEUE}&amqp={PORT}"),
    prepare=available,
)
