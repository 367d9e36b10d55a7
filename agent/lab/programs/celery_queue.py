"""Celery on a Redis of its own, which syncs each write to the run's disk: a producer and two workers."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agent.lab.program import FAR, Run
from agent.lab.programs.queue_work import BROKERS, OrderWork, broker_programs, produce

SYSTEM, QUEUE = "celery", "invoices"
PORT, VISIBILITY_S, THREADS, MULTIPLIER = BROKERS[SYSTEM].port, 15, 2, 4
URL = f"redis://{FAR}:{PORT}/0"


def available(_shared: Path) -> None:
    if shutil.which("redis-server") is None:
        raise FileNotFoundError("redis-server is not installed (apt install redis-server)")
    if any(find_spec(name) is None for name in ("celery", "redis")):
        raise FileNotFoundError("Celery is not installed (pip install 'celery[redis]')")


def serve(run: Run) -> None:
    program = shutil.which("redis-server") or ""
    place = run.shared / "disk" / "celery"
    place.mkdir(exist_ok=True)
    durable = ("--save", "", "--appendonly", "yes", "--appendfsync", "always", "--dir", str(place))
    where = ("--port", str(PORT), "--bind", FAR, "--protected-mode", "no", "--daemonize", "no")
    os.execve(program, [program, *where, *durable], {"PATH": os.environ.get("PATH", "")})


def _app() -> Any:
    from celery import Celery

    app = Celery("lab", broker=URL)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        broker_transport_options={"visibility_timeout": VISIBILITY_S, "socket_timeout": 30},
        task_acks_late=True,
        task_default_queue=QUEUE,
        task_ignore_result=True,
        worker_prefetch_multiplier=MULTIPLIER,
    )
    return app


def consume(run: Run) -> None:
    """A worker with threads."""
    from celery.exceptions import Reject

    os.chdir(run.directory)
    run.listen()
    app, work = _app(), OrderWork(run)

    def bill(sent_ns: int, poison: bool) -> None:
        if not work(sent_ns, poison):
            raise Reject("cannot be handled", requeue=True)

    app.task(bill, name="bill")
    quiet = ("--without-gossip", "--without-mingle", "--loglevel=CRITICAL", f"--hostname={run.program.name}@lab")
    app.worker_main(["worker", "--pool=threads", f"--concurrency={THREADS}", *quiet])


def send(run: Run) -> None:
    from kombu.exceptions import OperationalError

    app = _app()
    produce(run, lambda: lambda *order: app.send_task("bill", order, retry=False), OperationalError, OSError)


PROGRAMS = broker_programs(
    SYSTEM,
    QUEUE,
    serve,
    send,
    consume,
    comm="redis-server",
    polled=("celery", f"{URL}?queues={QUEUE}&visibility_timeout={VISIBILITY_S}"),
    prepare=available,
)
