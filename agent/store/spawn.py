"""Starts the sealer's process, one at a time, when there is something to seal. Nothing waits for it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from agent.posix.supervisor import ChildProcess, Restarts, Supervised, how, spawn
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
    sealer's options.
    """

    def __init__(self, dir_fd: int, limits: Limits, command: Sequence[str] | None = None) -> None:
        self._dir_fd = dir_fd
        self.limits = limits
        self._command = command or "agent.store.seal"
        restarts = Restarts(_RETRY_S, _RETRY_S, in_a_row=None)
        self._child = Supervised("sealer", "seals the store", self._start, fault=self._fault, restarts=restarts)
        self._wanted = self._done = self._running = 0
        self._unreadable = ""

    @property
    def error(self) -> str:
        """Why the last sealer failed, or what it could not read."""
        return self._child.restarts.why or self._unreadable

    def request(self, below: int) -> None:
        """Requests that every hot segment below this sequence number is sealed soon."""
        self._wanted = max(self._wanted, below)
        self.poll()

    def poll(self) -> None:
        """Notes how a sealer ended, and starts the next if there is work."""
        self._child.check()

    def close(self) -> None:
        """Leaves a running sealer alone; it needs nothing from the agent. If it is killed, as systemd does, the next
        start seals again.
        """
        self._child.leave()

    def _start(self) -> tuple[ChildProcess, None] | None:
        if self._wanted <= self._done:
            return None
        self._running, limits = self._wanted, self.limits
        self._stderr = open(os.memfd_create("tickscope-sealer"), "rb")  # noqa: SIM115 - a pipe may fill up
        options = ("--dir-fd", self._dir_fd, "--below", self._running)
        bounds = ("--max-bytes", limits.max_bytes, "--max-age-s", limits.max_age_s)
        process = spawn(
            self._command,
            *options,
            *bounds,
            fds=(self._dir_fd,),
            environment=os.environ,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr.fileno(),
        )
        return process, None

    def _fault(self, code: int) -> str:
        with self._stderr:
            self._stderr.seek(0)
            line = self._stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
        if code not in (0, UNREADABLE):  # an unreadable segment stays unreadable, so no retry
            return line or f"the sealer ended with {how(code)}"
        self._done, self._unreadable = max(self._done, self._running), line
        return ""
