"""Starts the sealer's process, one at a time, when there is something to seal. Nothing waits for it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from agent.posix.supervisor import Restarts, Supervised, spawn
from agent.store import UNREADABLE

_RETRY_S = 30.0


@dataclass(frozen=True)
class Limits:
    """Sizes and ages of a store. A segment is sealed at rotate_bytes or rotate_s. While the disk refuses writes,
    buffer_bytes of rows wait in memory. Sealed segments beyond max_bytes in all or max_age_s are removed, oldest first,
    except their findings (see agent/store/retention.py).
    """

    rotate_bytes: int = 32 << 20
    rotate_s: float = 600.0
    buffer_bytes: int = 2 << 20
    max_bytes: int = 1 << 30
    max_age_s: float = 7 * 86400.0


class SealerProcess:
    """The sealer's parent side. limits: passed to the next sealer. command: run instead of the sealer, with the
    sealer's options. error: the last line of the last sealer's stderr.
    """

    def __init__(self, dir_fd: int, limits: Limits, command: Sequence[str] | None = None) -> None:
        self._dir_fd = dir_fd
        self.limits = limits
        self._command = command or "agent.store.seal"
        self._process: subprocess.Popen[bytes] | None = None
        self._child = Supervised("sealer", "seals the store", restarts=Restarts(_RETRY_S, _RETRY_S, in_a_row=None))
        self._wanted = self._done = self._running = 0
        self.error = ""

    def request(self, below: int) -> None:
        """Requests that every hot segment below this sequence number is sealed soon."""
        self._wanted = max(self._wanted, below)
        self.poll()

    def poll(self) -> None:
        """Reaps a sealer that ended, and starts the next if there is work."""
        self._reap()
        self._child.reap()
        if self._process is None and self._wanted > self._done and self._child.restarts.due(time.monotonic()):
            self._start()

    def close(self) -> None:
        """Leaves a running sealer alone; it needs nothing from the agent. If it is killed, as systemd does, the next
        start seals again.
        """
        self._reap()
        if self._process is not None:
            if self._process.stderr is not None:
                self._process.stderr.close()
            self._process.returncode = 0  # no longer waited for: prevents Popen's warning when collected
            self._process = None

    def wait(self, timeout_s: float) -> None:
        """Waits until nothing is left to seal. Raises subprocess.TimeoutExpired."""
        while self._wanted > self._done or self._process is not None:
            self.poll()
            if self._process is None:
                return
            self._process.wait(timeout_s)

    def _reap(self) -> None:
        process = self._process
        if process is None or (code := process.poll()) is None:
            return
        stderr = b""
        if process.stderr:
            stderr = process.stderr.read()
            process.stderr.close()
        self._process = None
        reason = stderr.decode(errors="replace").strip().rpartition("\n")[2]
        if code in (0, UNREADABLE):  # an unreadable segment stays unreadable, so no retry
            self._child.end()
            self._done, self.error = max(self._done, self._running), reason
        else:
            self._failed(reason or f"the sealer ended with status {code}")

    def _start(self) -> None:
        limits = self.limits
        self._running = self._wanted
        options = ("--dir-fd", self._dir_fd, "--below", self._running)
        bounds = ("--max-bytes", limits.max_bytes, "--max-age-s", limits.max_age_s)
        try:
            self._process = spawn(
                self._command,
                *options,
                *bounds,
                fds=(self._dir_fd,),
                environment=os.environ,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            self._failed(f"cannot start the sealer: {error}")
        else:
            self._child.adopt(self._process)

    def _failed(self, reason: str) -> None:
        self.error = reason
        self._child.fail(reason)
