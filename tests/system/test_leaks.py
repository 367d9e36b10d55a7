"""What comes and goes leaves nothing behind: descriptors and memory of the agent's processes after many short-lived
programs.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.kernel.go_fixture import go_binary
from tests.patience import until
from tests.ports import free_port
from tests.servers.certificates import self_signed
from tests.system.agent import Agent

PROGRAMS, CONNECTIONS, LIMITERS = 1009, 53, 11


def descriptors(agent: Agent) -> dict[str, int]:
    return {p["role"]: len(list(Path(f"/proc/{p['pid']}/fd").iterdir())) for p in agent.status()["processes"]}


def memory(agent: Agent) -> int:
    return sum(p["pss_bytes"] for p in agent.status()["processes"])


def test_many_programs_leave_nothing_behind(start: Callable[..., Agent], tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (key, certificate), port = self_signed(tmp_path), free_port()
    agent = start().ready()
    time.sleep(1)
    before, held = descriptors(agent), memory(agent)
    subprocess.run(["sh", "-c", f"for i in $(seq {PROGRAMS}); do /bin/true; done"], check=True)
    server = subprocess.Popen(
        ["openssl", "s_server", "-quiet", "-accept", f"127.0.0.1:{port}", "-key", key, "-cert", certificate],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        client = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}"]
        for _ in range(CONNECTIONS):
            until(lambda: subprocess.run(client, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0)
    finally:
        server.kill()
        server.communicate()
    binary = go_binary()
    for i in range(LIMITERS):
        copy = tmp_path / f"limiter{i}"
        shutil.copy(binary, copy)
        with subprocess.Popen([copy, "allow", "3"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as program:
            time.sleep(0.4)
            program.communicate(b"\n\n")
        copy.unlink()
    grown = descriptors(agent)
    assert grown["agent"] > before["agent"], "the copies of the limiter were never attached to"
    assert {role: grown[role] for role in ("helper", "clock watch")} == {
        role: before[role] for role in ("helper", "clock watch")
    }
    until(lambda: descriptors(agent)["agent"] <= before["agent"], 90, 1, why=lambda: f"{before}, {descriptors(agent)}")
    assert memory(agent) < held + (8 << 20)
    assert (
        len(agent.rows("tls_handshake", f"role = 'client' AND dport = {port} AND result = 'ok'", CONNECTIONS))
        == CONNECTIONS
    )
    assert not agent.status()["loss"]
