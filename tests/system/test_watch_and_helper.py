"""The agent's processes killed and stopped while it runs: reported at once, back when they go on, started again where
that can be.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.posix.privilege import effective_capabilities
from tests.system.agent import Agent

CAP_SYS_RESOURCE = 24


def until(agent: Agent, what: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """The status once it is so."""
    (status,) = agent.until(lambda: [status for status in (agent.status(),) if what(status)])
    return dict(status)


def test_stopped_ones_are_reported_and_are_back_when_they_go_on(start: Callable[..., Agent]) -> None:
    agent = start().ready()
    pids = [agent.pid("helper"), agent.pid("clock watch")]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        status = until(agent, lambda s: "no heartbeat" in s["helper"] and "no heartbeat" in s["clock"]["watch"])
        assert "restart tickscope" in status["helper"]
        assert "notices socket" in [s["source"] for s in status["sources"]]
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    until(agent, lambda s: s["helper"] == "running" and s["clock"]["watch"] == "running")
    until(agent, lambda s: "notices socket" not in [one["source"] for one in s["sources"]])
    assert [agent.pid("helper"), agent.pid("clock watch")] == pids
    until(agent, lambda s: {p["state"] for p in s["probes"]} - {"off"} == {"attached"})
    assert "clock watch: the process that watches the clock sends no heartbeat" in agent.log()
    until(agent, lambda _: "clock watch: running" in agent.log())
    assert agent.stop() == 130
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_killed_ones_are_started_again_or_reported_with_the_remedy(start: Callable[..., Agent]) -> None:
    agent = start().ready()
    helper, watch = agent.pid("helper"), agent.pid("clock watch")
    os.kill(helper, signal.SIGKILL)
    os.kill(watch, signal.SIGKILL)
    status = until(
        agent,
        lambda s: (
            "gone" in s["helper"] and s["clock"]["watch"].startswith("running") and s["clock"]["watch_restarts"] == 1
        ),
    )
    assert "restart tickscope" in status["helper"]
    again = {p["role"]: p for p in status["processes"]}["clock watch"]
    assert again["pid"] != watch
    assert int(again["cap_eff"], 16) == 0
    assert again["no_new_privs"] is True
    policies = [os.sched_getscheduler(int(tid)) for tid in os.listdir(f"/proc/{again['pid']}/task")]
    may = (
        effective_capabilities() >> CAP_SYS_RESOURCE & 1 or resource.getrlimit(resource.RLIMIT_RTPRIO)[1]
    )  # as the agent, which is not root any more, might
    assert (os.SCHED_RR in policies) == bool(may)
    assert ("without real-time priority (RLIMIT_RTPRIO" in status["clock"]["watch"]) == (not may)
    held = [os.readlink(f.path) for f in os.scandir(f"/proc/{again['pid']}/fd") if int(f.name) > 2]
    assert not [name for name in held if not name.startswith(("socket:", "anon_inode:", "/memfd:tickscope-pulse"))], (
        held
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as subscriber:
        Path(agent.root).chmod(0o755)
        subscriber.connect(str(agent.run_dir / "notices.sock"))
        until(agent, lambda s: s["notices"]["subscribers"] == 1)
    assert agent.stop() == 130
    assert not os.path.exists(f"/proc/{again['pid']}")


def test_an_agent_ends_though_its_watch_is_stopped(start: Callable[..., Agent]) -> None:
    agent = start().ready()
    os.kill(agent.pid("clock watch"), signal.SIGSTOP)
    assert agent.stop() == 130
