"""A real Celery application: workers as processes of their own, and what they did according to themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from celery import Celery

from tests.patience import until

ROOT = Path(__file__).parents[2]


class Worker:
    """A worker with one or more processes, in a process group of its own. It is ready once made."""

    def __init__(
        self,
        broker: str,
        directory: Path,
        processes: int = 1,
        queues: str = "celery",
        options: Any = None,
        settings: Any = None,
    ) -> None:
        self.log = directory / f"worker{time.monotonic_ns()}"
        self.log.touch()
        env = {**os.environ, "BROKER": broker, "OPTIONS": json.dumps(options or {}), "LOG": str(self.log)}
        env["SETTINGS"] = json.dumps(settings or {})
        self.name = f"{self.log.name}@test"
        command = f"-A tests.servers.celery_app worker -n {self.name} --without-mingle --without-gossip -l warning"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "celery", *command.split(), "-c", str(processes), "-Q", queues],
            cwd=ROOT,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=self.log.with_suffix(".err").open("wb"),
            start_new_session=True,
        )
        until(lambda: self.did("ready"), 60)

    def did(self, event: str) -> list[str]:
        """The tasks with this event, in order."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return [task for its, task in lines if its == event]

    def addresses(self, port: int) -> list[str]:
        """Its own ends of its connections to that port."""
        command = ["ss", "-Htnp", "state", "established", f"( dport = :{port} )"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        return [line.split()[2] for line in lines if f"pid={self.process.pid}," in line]

    def signal(self, number: int) -> None:
        """To all of its processes."""
        os.killpg(self.process.pid, number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
            self.process.wait()


def application(broker: str, **options: Any) -> Celery:
    """What sends tasks."""
    app = Celery(broker=broker)
    app.conf.update(broker_transport_options=options)
    return app
