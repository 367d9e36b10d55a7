"""A Celery application on RabbitMQ with quorum queues, whose delayed tasks wait in queues of RabbitMQ.

BROKER_URL of the environment names the server. ``python -m celery -A tests.servers.celery_rabbitmq worker`` runs it,
``python -m tests.servers.celery_rabbitmq FILE N SECONDS`` sends tasks with that countdown.
"""

from __future__ import annotations

import os
import sys

from celery import Celery
from kombu import Exchange, Queue

app = Celery("shop", broker=os.environ.get("BROKER_URL", "amqp://"))
app.conf.update(
    task_queues=[
        Queue("shop", Exchange("shop", "topic"), routing_key="shop", queue_arguments={"x-queue-type": "quorum"})
    ],
    task_default_queue="shop",
    task_default_exchange="shop",
    task_default_exchange_type="topic",
    task_default_routing_key="shop",
    task_default_queue_type="quorum",
    worker_prefetch_multiplier=2,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
)


@app.task(name="shop.note")
def note(path: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write("done\n")


if __name__ == "__main__":
    for _ in range(int(sys.argv[2])):
        note.apply_async((sys.argv[1],), countdown=int(sys.argv[3]))
