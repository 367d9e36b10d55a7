"""Programs that do their work in other ways than C libraries do: io_uring, Java's own TLS, Node's OpenSSL within its
executable.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.servers.certificates import self_signed
from tests.system.agent import Agent

PROGRAMS = Path(__file__).parent / "programs"
OPERATIONS, HANDSHAKES = 211, 7


@contextmanager
def finished(*command: str) -> Iterator[tuple[int, str]]:
    """(pid, what it printed) of a program that has done its work, and lives until the block's end, so that it can be
    looked at.
    """
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        try:
            yield program.pid, program.stdout.readline().strip()
        finally:
            program.communicate()


@contextmanager
def server(folder: Path) -> Iterator[int]:
    """The port of a TLS server."""
    (key, certificate), port = self_signed(folder), free_port()
    with subprocess.Popen(
        ["openssl", "s_server", "-accept", f"127.0.0.1:{port}", "-key", key, "-cert", certificate],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        while "ACCEPT" not in process.stdout.readline():
            assert process.poll() is None
        try:
            yield port
        finally:
            process.kill()


def intact(agent: Agent) -> None:
    status = agent.status()
    assert {p["role"] for p in status["processes"]} == {"agent", "clock watch", "helper"}
    assert {p["state"] for p in status["probes"]} - {"off"} == {"attached"}
    assert not status["loss"]
    assert "left out" not in agent.log()


def test_io_uring(start: Callable[..., Agent], tmp_path: Path) -> None:
    """Its calls are counted; what the ring does meanwhile is a wait of theirs, never a slow read, write or fsync of the
    program's.
    """
    if (
        Path("/proc/sys/kernel/io_uring_disabled").exists()
        and Path("/proc/sys/kernel/io_uring_disabled").read_text().strip() == "2"
    ):
        pytest.skip("io_uring is turned off on this host (kernel.io_uring_disabled = 2)")
    binary = tmp_path / "uring"
    subprocess.run(["gcc", "-O1", "-o", binary, PROGRAMS / "uring.c"], check=True)
    agent = start("--syscalls", "full").ready()
    with finished(str(binary), str(tmp_path / "data"), str(OPERATIONS)) as (pid, good):
        assert good == str(3 * OPERATIONS)
        rows = agent.rows("syscall_latency", f"pid = {pid} AND basis = 'all' AND syscall = 'io_uring_enter'", 1)
        assert sum(r["count"] for r in rows) == 3 * OPERATIONS
        assert {r["errors"] for r in rows} == {0}
    assert {r["syscall"] for r in agent.rows("slow_syscall", f"pid = {pid} AND kind = 'slow'")} <= {"openat", "execve"}
    intact(agent)


def check(agent: Agent, pid: int, port: int, output: str, handshakes: int) -> None:
    """That the program's connections and calls are seen, and as many of its handshakes."""
    assert output == "done"
    assert len(agent.rows("tcp_connect", f"pid = {pid} AND dport = {port} AND result = 'ok'", HANDSHAKES)) == HANDSHAKES
    assert (
        sum(
            r["count"] for r in agent.rows("syscall_latency", f"pid = {pid} AND syscall = 'fsync' AND basis = 'all'", 1)
        )
        == HANDSHAKES
    )
    rows = agent.rows("tls_handshake", f"pid = {pid}", handshakes)
    assert [(r["role"], r["result"], r["library"]) for r in rows] == [("client", "ok", "openssl")] * handshakes
    assert (
        len(agent.rows("tls_handshake", f"role = 'server' AND sport = {port} AND result = 'ok'", HANDSHAKES))
        == HANDSHAKES
    )


@pytest.mark.parametrize(("program", "handshakes"), [("node", HANDSHAKES), ("java", 0)])
def test_runtimes_with_a_tls_of_their_own(
    start: Callable[..., Agent], tmp_path: Path, program: str, handshakes: int
) -> None:
    """Node's is OpenSSL and is seen, Java's is its own and is not (docs/kernels.md); connections and calls of both
    are.
    """
    if not shutil.which(program):
        pytest.skip(f"there is no {program} on this host")
    agent = start("--syscalls", "full").ready()
    command = (program, os.fspath(PROGRAMS / {"node": "shake.js", "java": "Shake.java"}[program]))

    def seen() -> bool:
        """Whether the program's handshakes are seen. Those of a file's first process may be over before the file has
        been analyzed.
        """
        with (
            server(tmp_path) as port,
            finished(*command, str(port), "1", str(tmp_path / "file")) as (first, _),
        ):
            return len(agent.rows("tls_handshake", f"pid = {first}", 1, limit_s=2)) == 1

    if handshakes:
        agent.until(seen)
    with (
        server(tmp_path) as port,
        finished(*command, str(port), str(HANDSHAKES), str(tmp_path / "file")) as (pid, output),
    ):
        check(agent, pid, port, output, handshakes)
    intact(agent)
