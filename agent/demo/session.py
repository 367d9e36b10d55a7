"""Starts and ends the workload from the agent's process; imports nothing that the agent would have to keep."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agent.errors import AgentError

STOP_S = 10.0


class Workload:
    """Context manager: the workload runs inside.

    It ends with the block and also when this process dies in any way, even by SIGKILL: its supervisor watches it.

    intake: the socket that the Python limiter reports to; it may appear later.
    duration_s: how long the demo lasts, None for endless: says when Redis is stalled.
    step_clock: move the clock by +0.3 ms and back again, once.
    redis_url: of the private Redis; None where redis-server is not installed.
    notes: what was left out, and why.
    """

    def __init__(self, intake: Path, duration_s: float | None = None, step_clock: bool = False) -> None:
        self._command = [sys.executable, "-P", "-m", "agent.demo.workload", "--intake", str(intake)]
        self._command += [] if duration_s is None else ["--duration", str(duration_s)]
        self._command += ["--step-clock"] if step_clock else []
        self.redis_url: str | None = None
        self.notes: list[str] = []

    def __enter__(self) -> Self:
        """Returns once Redis answers. Raises AgentError when the supervisor does not start."""
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
        # A session of its own: Ctrl-C reaches the agent, which then ends the workload in order.
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AgentError(
                "the demo's workload did not start",
                why=f"its supervisor ended with status {self._process.wait()}",
                remedy="see the message above; `tickscope run` works without it",
            )
        ready: dict[str, Any] = json.loads(line)
        self.redis_url, self.notes = ready["redis_url"], ready["notes"]
        return self

    def adopt(self, pid: int) -> None:
        """Should this process die, the workload's supervisor ends that one too (SIGTERM)."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % pid)
        self._process.stdin.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # the supervisor is gone already
                self._process.stdin.close()
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        finally:
            self._process.stdout.close()
