"""Starts the sealer in a process of its own, one at a time, without waiting for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.store import UNREADABLE

_RETRY_S = 30.0


@dataclass(frozen=True)
class Limits:
    """Sizes and ages of a store. A segment is sealed at rotate_bytes or rotate_s; while the disk refuses writes,
    buffer_bytes of rows wait in memory; sealed segments beyond max_bytes in all or max_age_s are removed, oldest first,
    all but their findings (see agent/store/retention.py)."""

    rotate_bytes: int = 32 << 20
    rotate_s: float = 600.0
    buffer_bytes: int = 2 << 20
    max_bytes: int = 1 << 30
    max_age_s: float = 7 * 86400.0


class SealerProcess:
    """The sealer's parent side. limits: what the next one is told. command: argv to which the sealer's options are
    added; by default this interpreter.
    """

    def __init__(self, dir_fd: int, limits: Limits, command: Sequence[str] | None = None) -> None:
        self._dir_fd = dir_fd
        self.limits = limits
        self._command = list(command or (sys.executable, "-P", "-m", "agent.store.seal"))
        self._child: subprocess.Popen[str] | None = None
        self._wanted = 0
        self._done = 0
        self._running = 0
        self._retry_at = 0.0
        self.error = ""

    def request(self, below: int) -> None:
        """Have every hot segment below this sequence number sealed, soon."""
        self._wanted = max(self._wanted, below)
        self.poll()

    def poll(self) -> None:
        """Reap a sealer that ended, and start the next when there is work."""
        self._reap()
        if self._child is None and self._wanted > self._done and time.monotonic() >= self._retry_at:
            self._start()

    def close(self) -> None:
        """Leave a running sealer to itself; it needs nothing from the agent. Where it is killed, as systemd does, the
        next start seals again.
        """
        self._reap()
        if self._child is not None:
            if self._child.stderr is not None:
                self._child.stderr.close()
            self._child.returncode = 0  # Not ours to wait for any more: keeps Popen from warning when collected.
            self._child = None

    def wait(self, timeout_s: float) -> None:
        """Wait until nothing is left to seal. Raises subprocess.TimeoutExpired."""
        while self._wanted > self._done or self._child is not None:
            self.poll()
            if self._child is None:
                return
            self._child.wait(timeout_s)

    def _reap(self) -> None:
        child = self._child
        if child is None or child.poll() is None:
            return
        errors = child.stderr.read() if child.stderr else ""
        if child.stderr:
            child.stderr.close()
        self._child = None
        reason = errors.strip().rpartition("\n")[2]
        if child.returncode in (0, UNREADABLE):  # what cannot be read now cannot be read in 30 s either
            self._done, self.error = max(self._done, self._running), reason
        else:
            self._failed(reason or f"the sealer ended with status {child.returncode}")

    def _start(self) -> None:
        limits = self.limits
        self._running = self._wanted
        argv = [
            *self._command,
            "--dir-fd",
            str(self._dir_fd),
            "--below",
            str(self._running),
            "--max-bytes",
            str(limits.max_bytes),
            "--max-age-s",
            str(limits.max_age_s),
        ]
        root = str(Path(__file__).resolve().parents[2])
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))}
        try:
            self._child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(self._dir_fd,),
                env=env,
                text=True,
                errors="replace",
            )
        except OSError as error:
            self._failed(f"cannot start the sealer: {error}")

    def _failed(self, reason: str) -> None:
        self.error = reason
        self._retry_at = time.monotonic() + _RETRY_S
