"""Two network namespaces, as of two containers, each with its Redis at the same address: a stall is blamed on the one
that stalls.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patience import PATIENCE, until
from tests.system.agent import Agent

PROGRAM = Path(__file__).parent / "programs" / "limited.py"
REDIS = "ip link set lo up && exec redis-server --port 6379 --bind 127.0.0.1 --save ''"


@pytest.fixture
def servers(tmp_path: Path) -> list[subprocess.Popen[bytes]]:
    found = [
        subprocess.Popen(["unshare", "-n", "sh", "-c", REDIS], cwd=tmp_path, stdout=subprocess.DEVNULL)
        for _ in range(2)
    ]
    for one in found:
        until(lambda comm=Path(f"/proc/{one.pid}/comm"): comm.read_text() == "redis-server\n")
    return found


def test_each_container_s_stall_names_its_own_server(
    start: Callable[..., Agent], servers: list[subprocess.Popen[bytes]]
) -> None:
    agent = start(config="prometheus: ''\nwithout: [tls]\n").ready()
    intake = str(agent.run_dir / "intake.sock")
    clients = [
        subprocess.Popen(["nsenter", "-t", str(one.pid), "-n", sys.executable, str(PROGRAM), "6379", name, intake])
        for one, name in zip(servers, ("first", "second"), strict=True)
    ]
    try:
        time.sleep(12)  # its start, and as long as it takes to know what is usual
        for one in servers:  # not in one go, which is one act of somebody's
            os.kill(one.pid, signal.SIGSTOP)
            time.sleep(0.4)
        time.sleep(1.2)
        for one in servers:
            os.kill(one.pid, signal.SIGCONT)
        end, reported = time.monotonic() + 15 * PATIENCE, {}
        while len(reported) < 2 and time.monotonic() < end:
            time.sleep(0.5)
            rows = agent.json("findings")["rows"]
            reported = {
                name: r
                for r in rows
                for name in ("first", "second")
                if r["symptom"] == "decision_latency" and f"limiter {name} " in r["subject"]
            }
        assert [reported[name]["cause"] for name in ("first", "second")] == ["process_stopped"] * 2
        for one, name in zip(servers, ("first", "second"), strict=True):
            assert f"redis-server pid {one.pid} was stopped" in reported[name]["sentence"]
        assert reported["first"]["finding_id"] != reported["second"]["finding_id"]
    finally:
        for process in (*clients, *servers):
            process.kill()
            process.wait()
