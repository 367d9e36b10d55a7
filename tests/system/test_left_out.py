"""What the correlator does not look at is reported by the agent and by its store."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable

from tests.system.conftest import Agent

LIMITERS = 300
WATCHED = 256


def test_limiters_beyond_those_that_are_watched(start: Callable[..., Agent]) -> None:
    agent = start().ready()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(agent.run_dir / "intake.sock"))
        for i in range(LIMITERS):
            sender.send(json.dumps({"limiter": f"shop-{i}", "result": "allowed"}).encode())
            if i % 50 == 49:
                time.sleep(0.05)  # a socket holds but so many
    assert len(agent.rows("limiter_decision", "limiter_id LIKE 'shop-%'", LIMITERS)) == LIMITERS
    (row, *_) = agent.some("probe_status", "probe = 'correlator'")
    assert row["state"] == "degraded" and "seconds of limiters" in row["reason"]
    assert any(
        agent.status()["correlator_dropped"]["subjects"] >= LIMITERS - WATCHED or time.sleep(0.1) for _ in range(300)
    )
    assert agent.status()["loss"] == []
    assert "not evaluated for findings" in agent.cli("findings", check=False).stderr
