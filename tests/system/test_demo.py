"""``tickscope demo``: what a newcomer runs first."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.patience import until
from tests.system.agent import TICKSCOPE, Agent


@contextmanager
def demo(env: dict[str, str], *options: str) -> Iterator[subprocess.Popen[str]]:
    """A demo, which is stopped as by Ctrl-C; then nothing of it is left."""
    with subprocess.Popen([TICKSCOPE, "demo", *options], env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()
    assert process.returncode == 130
    until(lambda: left(env) == [], 10)


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


def test_it_has_a_finding_and_leaves_nothing(start: Callable[..., Agent]) -> None:
    agent = start().ready()  # it makes the directories, and stays away from the rest
    agent.stop()
    agent.root.chmod(0o755)  # the demo's programs are user nobody
    asked = "findings", "--cause", "process_stopped"
    with demo(agent.env, "--store", str(agent.store)):
        until(lambda: "limiter demo:api" in str(agent.json(*asked)["rows"]), 60, 0.5)


def test_beside_an_agent_it_starts_the_workload_only(start: Callable[..., Agent]) -> None:
    agent = start().ready()
    agent.root.chmod(0o755)
    with demo(agent.env) as process:
        assert process.stderr is not None
        assert any(f"(pid {agent.pid()}) observes the workload" in line for line in process.stderr)
        assert agent.some("limiter_decision", "limiter_id = 'demo:api'")
    assert agent.process.poll() is None
    assert agent.cli("demo", "--duration", "1s").returncode == 0
