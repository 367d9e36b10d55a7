"""A Celery application for tests. Its worker writes what it does to the file of the variable LOG: a line ``EVENT TASK``
each. BROKER is the URL, OPTIONS the transport's options as JSON, SETTINGS other ones.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import worker_ready

LOG = Path(os.environ["LOG"])
app = Celery("tests", broker=os.environ["BROKER"])
app.conf.update(
    broker_transport_options=json.loads(os.environ["OPTIONS"]),
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
)
app.conf.update(json.loads(os.environ.get("SETTINGS", "{}")))


def note(event: str, task: str) -> None:
    with LOG.open("a") as file:
        file.write(f"{event} {task}\n")


def work(task: Any, seconds: float) -> None:
    note("begin", task.request.id)
    time.sleep(seconds)
    note("end", task.request.id)


@worker_ready.connect
def ready(**_: Any) -> None:
    note("ready", "-")


@app.task(bind=True, name="early")
def early(self: Any, seconds: float) -> None:
    work(self, seconds)


@app.task(bind=True, name="late", acks_late=True)
def late(self: Any, seconds: float) -> None:
    work(self, seconds)


@app.task(bind=True, name="fails", autoretry_for=(ValueError,), retry_backoff=600, retry_jitter=False)
def fails(self: Any) -> None:
    note("begin", self.request.id)
    raise ValueError
