"""Things that go wrong around the agent: it says so, degrades, and loses nothing it does not report."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from typing import Any

import pytest

from agent.store import frames
from tests.inject import injected
from tests.system.agent import TICKSCOPE, Agent


def loaders(agent: Agent) -> list[int]:
    """Loader processes of this agent."""
    out = subprocess.run(
        ["pgrep", "-f", "-P", str(agent.process.pid), "loader.py"], capture_output=True, text=True
    ).stdout
    return [int(pid) for pid in out.split()]


def kill_next_loader(agent: Agent) -> None:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        for pid in loaders(agent):
            time.sleep(0.02)
            os.kill(pid, signal.SIGKILL)
            while pid in loaders(agent):
                time.sleep(0.001)
            return
        time.sleep(0.001)
    raise AssertionError("no loader was seen")


def test_a_killed_loader_is_run_again(start: Callable[..., Agent]) -> None:
    agent = start()
    kill_next_loader(agent)
    agent.ready()
    assert {p["state"] for p in agent.status()["probes"]} - {"off"} == {"attached"}


def test_a_loader_killed_twice_leaves_an_agent_that_reports_it(start: Callable[..., Agent]) -> None:
    agent = start()
    kill_next_loader(agent)
    kill_next_loader(agent)
    agent.ready()
    probes = [p for p in agent.status()["probes"] if p["state"] != "off"]
    assert {p["state"] for p in probes} == {"unavailable"}
    assert all("SIGKILL" in p["reason"] and p["remedy"] for p in probes)
    assert agent.some("socket_queue", "true")


def test_without_btf_the_rest_runs(start: Callable[..., Agent]) -> None:
    agent = start(wrap=("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /sys/kernel/btf && exec "$@"', "sh")).ready()
    probes = [p for p in agent.status()["probes"] if p["state"] != "off"]
    assert {p["state"] for p in probes} == {"unavailable"}
    assert all("type information" in p["reason"] and "CONFIG_DEBUG_INFO_BTF" in p["remedy"] for p in probes)
    assert agent.some("socket_queue", "true")


def test_a_killed_helper_is_reported_and_the_rest_goes_on(start: Callable[..., Agent]) -> None:
    agent = start().ready()
    os.kill(agent.pid("helper"), signal.SIGKILL)
    programs = {"syscalls": "syscalls_on_sys_exit", "tcp": "on_tcp_send"}

    def reported() -> dict[str, Any] | None:
        status = agent.status()
        degraded = {p["probe"] for p in status["probes"] if p["state"] == "degraded"}
        return status if "gone" in status["helper"] and degraded >= set(programs) else None

    status = agent.until(reported)
    probes = {p["probe"]: p for p in status["probes"]}
    for family, program in programs.items():
        assert f"{program}: attach: " in probes[family]["reason"]
        assert "not seen: " in probes[family]["reason"]
    assert probes["clock"]["state"] == "attached"
    assert [p["role"] for p in status["processes"]] == ["agent", "clock watch"]
    assert agent.json("query", "tcp_rtt", "--since", "1h") is not None
    assert agent.stop() == 130


def test_killed_while_writing_the_store_opens_with_a_marked_gap(start: Callable[..., Agent]) -> None:
    first = start().ready()
    writer = subprocess.Popen(["sh", "-c", "while :; do true | cat; done"])
    try:
        time.sleep(2)
        pid = first.pid()
        os.kill(pid, signal.SIGKILL)
        killed_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        first.process.wait()
    finally:
        writer.kill()
        writer.wait()
    rows = first.json("query", "syscall_latency")["rows"]
    assert rows
    assert killed_ns - max(r["t_ns"] for r in rows) < 2_500_000_000  # one-second intervals, and at most one second lost
    second = start(root=first.root).ready()
    document = second.json("query", "syscall_latency")
    gaps = [g for g in document["gaps"] if g["stage"] == "store"]
    assert len(gaps) == 1
    assert gaps[0]["count"] is None
    assert killed_ns - 1_500_000_000 < gaps[0]["from_ns"] <= killed_ns + 100_000_000
    assert len(document["rows"]) >= len(rows)


@pytest.mark.parametrize(("variable", "place"), [("TICKSCOPE_STORE", "store"), ("TICKSCOPE_RUN_DIR", "run_dir")])
def test_a_second_agent_at_a_place_in_use_is_refused(
    shared: Agent, start: Callable[..., Agent], variable: str, place: str
) -> None:
    second = start(env={variable: str(getattr(shared, place))})
    assert second.process.wait(30) == 4
    assert str(shared.pid()) in second.log()
    assert shared.process.poll() is None
    assert shared.status()["pid"] == shared.pid()


def test_a_wrong_configuration_names_the_line(start: Callable[..., Agent]) -> None:
    agent = start(config="store: /tmp/x\nsyscals: full\n")
    assert agent.process.wait(30) == 2
    assert "tickscope.yaml:2" in agent.log()
    assert "syscalls" in agent.log()


def test_a_terminal_that_is_closed_ends_the_agent_cleanly(start: Callable[..., Agent]) -> None:
    agent = start()
    agent.ready()
    assert agent.stop() == 130
    ours, theirs = pty.openpty()
    on_terminal = subprocess.Popen(
        [str(TICKSCOPE), "run"],
        env=agent.env,
        stdin=theirs,
        stdout=theirs,
        stderr=agent.errors.open("wb"),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    while b"ready attached=" not in agent.errors.read_bytes():
        assert on_terminal.poll() is None, agent.log()
        time.sleep(0.05)
    os.close(ours)
    assert on_terminal.wait(30) == 0, agent.log()
    assert "stopped after" in agent.log()
    assert not list(agent.run_dir.glob("*.sock"))


def report(agent: Agent, *messages: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.setsockopt(socket.SOL_SOCKET, 32, 64 << 20)  # SO_SNDBUFFORCE: so many wait at once
        client.connect(str(agent.run_dir / "intake.sock"))
        for message in messages:
            client.send(message)


def decision(limiter: str) -> bytes:
    return json.dumps({"limiter": limiter, "result": "allowed"}).encode()


def test_decisions_that_wait_when_the_agent_is_asked_to_stop_are_stored_and_malformed_ones_counted(
    start: Callable[..., Agent],
) -> None:
    agent = start().ready()
    os.kill(agent.process.pid, signal.SIGSTOP)
    report(agent, *[decision("last")] * 4001, *[b"{"] * 7)
    os.kill(agent.process.pid, signal.SIGINT)
    os.kill(agent.process.pid, signal.SIGCONT)
    assert agent.process.wait(30) == 130
    document = agent.json("query", "limiter_decision", "--where", "limiter_id = 'last'", "--limit", "5000")
    assert len(document["rows"]) == 4001
    assert [(g["stage"], g["source"], g["count"]) for g in document["gaps"]] == [("intake", "intake", 7)]
    assert "7 of intake (intake)" in agent.log()


def test_reporters_that_have_ended_and_many_at_once_do_not_end_the_agent(start: Callable[..., Agent]) -> None:
    """1,061 processes report, more than the kernel's map of them holds, and all have ended, unwaited for, when the
    agent reads.
    """
    agent = start().ready()
    os.kill(agent.process.pid, signal.SIGSTOP)
    code = (
        "import os, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "s.setsockopt(socket.SOL_SOCKET, 32, 64 << 20)\n"
        "s.connect(sys.argv[1])\n"
        "for _ in range(1061):\n"
        "    pid = os.fork()\n"
        "    if not pid:\n"
        "        s.send(sys.argv[2].encode())\n"
        "        os._exit(0)\n"
        "    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)\n"
        "print('sent', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(agent.run_dir / "intake.sock"), decision("brief").decode()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as senders:
        assert senders.stdout is not None
        assert senders.stdout.readline() == "sent\n"
        os.kill(agent.process.pid, signal.SIGCONT)
        agent.json("status", "--wait", "20")
        agent.until(lambda: agent.status()["rows"].get("limiter_decision", 0) >= 1061)
        senders.communicate("")
    report(agent, decision("after"))
    assert agent.some("limiter_decision", "limiter_id = 'after'")
    failed = [one for one in agent.status()["sources"] if not one["source"].startswith("chrony")]  # another test's
    assert failed == []
    assert (
        len(agent.json("query", "limiter_decision", "--where", "limiter_id = 'brief'", "--limit", "5000")["rows"])
        == 1061
    )
    assert agent.stop() == 130


FAILING = """
import agent.service.loop
step = agent.service.loop.Loop.step
def failing(self, now_ns):
    self.beats = getattr(self, "beats", 0) + 1
    if self.beats == 20:
        raise RuntimeError("the loop itself")
    return step(self, now_ns)
agent.service.loop.Loop.step = failing
"""


def test_an_agent_whose_loop_fails_ends_with_its_store_closed(start: Callable[..., Agent]) -> None:
    with injected(FAILING) as env:
        agent = start(env=env)
        assert agent.process.wait(60) == 1
    assert "RuntimeError: the loop itself" in agent.log()
    assert "stopped after" in agent.log()
    newest = max(agent.store.glob("hot-*.tsl"))
    assert list(frames.read(newest.read_bytes()))[-1].kind == frames.FrameKind.END
    assert (agent.store / "lock").read_bytes() == b""
    assert not list(agent.run_dir.glob("*.sock"))
