"""Servers and their clients as processes of a test's own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]


class ServerProcess:
    """A server with a directory of its own, with its output. A ``with`` statement ends it."""

    directory: Path
    process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def log(self) -> Path:
        return self.directory / f"{type(self).__name__.lower()}.log"

    def run(self, command: Sequence[str], **more: Any) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, **more)

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def pause(self) -> None:
        """SIGSTOP; returns when all its threads are stopped."""
        self.signal(signal.SIGSTOP)
        until_stopped(self.process.pid)

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)

    def end(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()


def until_stopped(pid: int) -> None:
    """Returns when all threads of the process are stopped."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        while stat.read_text().rpartition(") ")[2][0] != "T":
            time.sleep(0.001)


@contextlib.contextmanager
def client(module: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process of ``module``, after its first line, "begun"; killed at the end."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            yield process
        finally:
            process.kill()


def paced(per_s: float) -> Iterator[None]:
    """So often a second, for ever; says that it begins."""
    print("begun", flush=True)
    at = time.monotonic()
    while True:
        yield
        at += 1 / per_s
        time.sleep(max(0.0, at - time.monotonic()))
