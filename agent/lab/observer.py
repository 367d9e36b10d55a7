"""The agent that observes a session, and its recorder. It runs in the node's namespace, with a store and sockets of its
own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent.errors import AgentError
from agent.lab.stage.processes import wait_for
from agent.lab.stage.stage import Stage

READY_S, STOP_S = 60.0, 20.0


class Observer:
    """polled: servers to poll, as ``LabProgram.polled``. recording: the file that ``stop`` completes. patience:
    factor for the time limits of start and end. Raises AgentError if the agent or the recorder does not become ready.
    """

    def __init__(
        self,
        stage: Stage,
        polled: Sequence[tuple[str, str | Mapping[str, str]]],
        recording: Path,
        patience: float = 1.0,
    ) -> None:
        self._stage, root, self._stop_s = stage, stage.directory, STOP_S * patience
        config = root / "tickscope.yaml"
        settings: dict[str, object] = {"prometheus": ""}
        for system in {system for system, _ in polled}:
            settings[system] = [server for key, server in polled if key == system]
        config.write_text(json.dumps(settings))
        self._store = root / "store"
        code = str(Path(__file__).resolve().parents[2])
        self._env = {
            **os.environ,
            "TICKSCOPE_RUN_DIR": str(root / "run"),
            "TICKSCOPE_STORE": str(self._store),
            "TICKSCOPE_CONFIG": str(config),
            "PYTHONFAULTHANDLER": "1",
            "PYTHONPATH": os.pathsep.join(p for p in (code, os.environ.get("PYTHONPATH")) if p),
        }
        self._log = root / "agent.log"
        self._processes: list[subprocess.Popen[bytes]] = []
        stage.children.append(lambda: {process.pid for process in self._processes if process.poll() is None})
        self._agent = self._start("run")
        if (
            not wait_for(
                lambda: b"ready attached=" in self._log.read_bytes() or self._agent.poll() is not None,
                READY_S * patience,
            )
            or self._agent.poll() is not None
        ):
            raise AgentError("the laboratory's agent did not start", why=self._stderr_text())
        self._recorder = self._start("record", "-o", str(recording), "--store", str(self._store))
        if (
            not wait_for(lambda: recording.exists() or self._recorder.poll() is not None, READY_S * patience)
            or not recording.exists()
        ):
            raise AgentError("the laboratory's recorder did not start", why=self._stderr_text())

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a command in the node's network namespace and the run's cgroups, so that the clean-up process ends it
        like the programs.
        """
        with self._log.open("ab") as log, self._stage.node.entered():
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "agent", *arguments],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: self._stage.groups.enter("agent"),
            )
        self._processes.append(process)
        return process

    def check(self) -> None:
        """Raises AgentError if either has ended."""
        for process, what in ((self._agent, "agent"), (self._recorder, "recorder")):
            if process.poll() is not None:
                raise AgentError(f"the laboratory's {what} ended early", why=self._stderr_text())

    def stop(self) -> str:
        """Completes the recording. Returns a message if the agent did not end in time; it is killed then. Raises
        AgentError if the recorder did not end, since the recording is incomplete then.
        """
        self._recorder.send_signal(signal.SIGINT)
        try:
            self._recorder.wait(self._stop_s)
        except subprocess.TimeoutExpired as error:
            raise AgentError("the laboratory's recorder did not end", why=self._stderr_text()) from error
        self._agent.send_signal(signal.SIGINT)
        try:
            self._agent.wait(self._stop_s)
        except subprocess.TimeoutExpired:
            self._agent.send_signal(signal.SIGABRT)  # faulthandler logs its stacks
            self._agent.wait()
            return f"the agent did not end within {self._stop_s:.0f} s of SIGINT: {self._stderr_text()}"
        return ""

    def _stderr_text(self) -> str:
        return self._log.read_text().strip()[-3000:]
