"""``tickscope demo``: what a newcomer runs first."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.patience import until
from tests.system.agent import TICKSCOPE, Agent


def left(env: dict[str, str]) -> list[str]:
    """Programs of the demo of that environment that run."""
    mine = f"TICKSCOPE_RUN_DIR={env['TICKSCOPE_RUN_DIR']}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mine in (process / "environ").read_bytes() and b"demo" in (process / "cmdline").read_bytes():
                found.append(process.name)
        except OSError:  # it ended
            continue
    return found


def test_it_has_a_finding_and_leaves_nothing(tmp_path: Path) -> None:
    env = {**os.environ, "TICKSCOPE_RUN_DIR": str(tmp_path / "run"), "TICKSCOPE_CONFIG": "/dev/null"}
    store, log = str(tmp_path / "store"), tmp_path / "log"
    with log.open("wb") as out, subprocess.Popen([TICKSCOPE, "demo", "--store", store], env=env, stderr=out) as demo:

        def findings() -> str:
            asked = [TICKSCOPE, "findings", "--cause", "process_stopped", "--store", store, "-o", "ndjson"]
            return subprocess.run(asked, env=env, capture_output=True, text=True, check=False).stdout

        until(lambda: "demo:api" in findings() and "redis-server" in findings(), 60, 0.5, why=log.read_text)
        demo.send_signal(signal.SIGINT)
        assert demo.wait(30) == 0
    assert left(env) == []


def test_beside_an_agent_it_starts_the_workload_only(start: Callable[..., Agent]) -> None:
    agent = start().ready()
    with subprocess.Popen([TICKSCOPE, "demo"], env=agent.env, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stderr is not None
        assert any(f"(pid {agent.pid()}) observes the workload" in line for line in demo.stderr)
        assert agent.some("limiter_decision", "limiter_id = 'demo:api'")
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(30) == 0
    until(lambda: left(agent.env) == [], 10)
    assert agent.cli("demo", "--duration", "1s").returncode == 0
    assert agent.process.poll() is None
