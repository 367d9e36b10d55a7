"""The workload's supervisor: starts the parts, stalls Redis now and then, and leaves nothing behind.

Run as a process of its own by agent.demo.session. It ends when its standard input closes, at SIGTERM or SIGINT, or when
the process that started it is gone; then it ends the agent too, whose pid it gets on standard input. (A parent-death
signal cannot do that: the agent's change of user clears it.) Its children die with it; should it be killed itself, the
next start removes its directory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from types import FrameType

from agent.demo import clock_part, files_part, go_part, limiter_part, redis_part, tls_part
from agent.demo.processes import Children, own_directory

BASE, PREFIX = Path("/var/tmp"), "tickscope-demo-"  # not /tmp: where that is memory, syncing a file is nothing
FIRST_STALL_S, STALL_EVERY_S, STALL_S = 15.0, 30.0, 1.5
STEP_US, STEP_BACK_S = 300, 1.0
INTAKE_S = 30.0


class Stopped(Exception):
    """Somebody asked us to end."""


class Supervisor:
    """Owns the directory, the processes and what happens when."""

    def __init__(self, intake: Path, duration_s: float | None, step_clock: bool) -> None:
        self._parent = os.pidfd_open(os.getppid())
        self._agent: int | None = None
        self._first_stall_s = FIRST_STALL_S if duration_s is None else min(FIRST_STALL_S, 0.4 * duration_s)
        self._intake, self._step_clock, self._stepped = intake, step_clock, False
        self.processes = Children()
        sweep()
        self.directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=BASE))
        self.directory.chmod(0o711)
        self._redis: redis_part.Server | None = None
        self._go: go_part.GoProgram | None = None

    def start(self) -> dict[str, object]:
        """Starts all parts. Returns the Redis URL and notes on what is left out."""
        notes = []
        self._redis = redis_part.start(self.processes, self.directory)
        if self._redis is None:
            notes.append(
                "Redis, its stream and the Python limiter are left out: redis-server is not installed (apt install"
                " redis-server)"
            )
        else:
            self.processes.fork("demo-producer", partial(redis_part.produce, self._redis))
            self.processes.fork("demo-consumer", partial(redis_part.consume, self._redis))
            self.processes.fork("demo-limiter", partial(limiter_part.decide, self._redis, self._intake))
        tls = tls_part.prepare(self.directory)
        if tls is None:
            notes.append("TLS is left out: openssl is not installed (apt install openssl)")
        else:
            self.processes.fork("demo-tls-server", tls[0])
            self.processes.fork("demo-tls-client", tls[1])
        self.processes.fork("demo-files", partial(files_part.sync_files, own_directory(self.directory / "files")))
        self._go = go_part.start(self.processes, self.directory)
        if self._go is None:
            notes.append(go_part.MISSING)
        return {"redis_url": self._redis and self._redis.url, "notes": notes}

    def run(self) -> None:
        """Until Ended. Times count from the moment that the agent is ready."""
        self._wait_for_agent()
        stall_at = time.monotonic() + self._first_stall_s
        while True:
            self._sleep(max(0.0, stall_at - time.monotonic()))
            stall_at += STALL_EVERY_S
            self._stall()
            if self._step_clock:
                self._step_clock = False
                self._sleep(STEP_BACK_S)
                self._step(STEP_US)
                self._sleep(STEP_BACK_S)
                self._step(-STEP_US)

    def _wait_for_agent(self) -> None:
        """Until it answers on its control socket, which it makes before the intake: its first start on a kernel
        compiles for a while.
        """
        until = time.monotonic() + INTAKE_S
        while not self._intake.exists() and time.monotonic() < until:
            self._sleep(0.1)
        path = self._intake.with_name("control.sock")
        with socket.socket(socket.AF_UNIX) as client:
            while path.exists():
                try:
                    client.connect(str(path))
                    client.sendall(b"status\n")
                    break
                except OSError:  # left behind by an agent that was killed, or not there yet
                    self._sleep(0.1)
            else:
                return
            while not select.select([client], [], [], 0)[0]:
                self._sleep(0.1)

    def close(self) -> None:
        """Undoes everything."""
        if self._stepped:
            self._step(-STEP_US)
        self.processes.stop()
        shutil.rmtree(self.directory)

    def _stall(self) -> None:
        if self._redis is not None:
            os.kill(self._redis.pid, signal.SIGSTOP)
            try:
                self._sleep(STALL_S)
            finally:
                os.kill(self._redis.pid, signal.SIGCONT)

    def _step(self, size_us: int) -> None:
        clock_part.step(size_us)
        self._stepped = size_us > 0

    def _sleep(self, seconds: float) -> None:
        """Raises Ended as soon as our parent has gone or closed our input. Meanwhile sees to the Go build."""
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            ready = select.select([0, self._parent], [], [], max(0.0, min(left, 0.5)))[0]
            typed = os.read(0, 64) if 0 in ready else b""
            if ready and not typed:
                self._end_agent()
                raise Stopped
            if typed:
                with contextlib.suppress(ProcessLookupError):
                    self._agent = os.pidfd_open(int(typed))
            if self._go is not None and (note := self._go.step()):
                print(f"demo: {note}", file=sys.stderr, flush=True)
                self._go = None
            if left <= 0:
                return

    def _end_agent(self) -> None:
        if self._agent is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._agent, signal.SIGTERM)


def sweep() -> None:
    """Removes directories of supervisors that are gone, ours only: the base directory is everybody's."""
    for path in BASE.glob(f"{PREFIX}*"):
        pid = path.name.removeprefix(PREFIX).partition("-")[0]
        if path.lstat().st_uid == os.geteuid() and not path.is_symlink() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(path)


def _end(number: int, frame: FrameType | None) -> None:
    raise Stopped


def main() -> int:
    """The supervisor's process."""
    parser = argparse.ArgumentParser(prog="agent.demo.workload", description=__doc__)
    parser.add_argument("--intake", type=Path, required=True)
    parser.add_argument("--duration", type=float)
    parser.add_argument("--step-clock", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)
    supervisor = Supervisor(options.intake, options.duration, options.step_clock)
    try:
        print(json.dumps(supervisor.start()), flush=True)
        supervisor.run()
    except Stopped:
        return 0
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        supervisor.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
