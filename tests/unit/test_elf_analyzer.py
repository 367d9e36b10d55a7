"""Files are examined by a process of its own, which cannot be made to take long, to grow, or to open anything."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.kernel.steps import pump_until
from agent.targets.analyzer_pool import READY, AnalysisFailed, AnalyzerPool
from tests.unit.hostile_elf import many_magics, many_pointers, many_returns

LIBSSL = next(iter(sorted(Path("/usr/lib").glob("*-linux-gnu/libssl.so.*"))))


@pytest.fixture
def analyzers() -> Iterator[AnalyzerPool]:
    one = AnalyzerPool(1)
    yield one
    one.close()


def ask(analyzers: AnalyzerPool, analysis: str, *paths: Path, **arguments: Any) -> Any:
    """The facts; raises Unexamined."""
    got: list[tuple[Any, Exception | None]] = []
    with contextlib.ExitStack() as files:
        fds = [files.enter_context(path.open("rb")).fileno() for path in paths]
        analyzers.analyze(analysis, fds, **arguments)(lambda facts, error: got.append((facts, error)))
    assert pump_until(lambda: bool(got), [analyzers], 60)
    facts, error = got[0]
    if error is not None:
        raise error
    return facts


def test_a_library_is_examined(analyzers: AnalyzerPool) -> None:
    (found,) = ask(analyzers, "openssl", LIBSSL, LIBSSL.with_name(LIBSSL.name.replace("ssl", "crypto")))
    facts = found["facts"]
    assert [one["program"] for one in found["attachments"]] == ["tls_return", "tls_free", "tls_client", "tls_server"]
    assert [role for role, _ in facts["sites"]] == ["client", "server"]
    assert (
        facts["version"]
        == subprocess.run(["openssl", "version"], capture_output=True, text=True, check=True).stdout.split()[1]
    )
    with pytest.raises(AnalysisFailed, match="not an ELF"):
        ask(analyzers, "openssl", Path("/etc/passwd"))
    assert len(analyzers.pids) == 1


def test_one_that_dies_or_hangs_is_replaced(analyzers: AnalyzerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, and stopped for longer than a file may take: the question is answered with the reason, the next one is
    examined.
    """
    assert ask(analyzers, "functions", LIBSSL, names=["SSL_free"])[0]["facts"]["offsets"]
    os.kill(analyzers.pids[0], signal.SIGKILL)
    with pytest.raises(AnalysisFailed, match="SIGKILL") as killed:
        ask(analyzers, "functions", LIBSSL, names=["SSL_free"])
    assert killed.value.passing
    assert ask(analyzers, "functions", LIBSSL, names=["SSL_free"])[0]["facts"]["offsets"]
    monkeypatch.setattr("agent.targets.analyzer_pool.ANALYZER_WALL_S", 0.5)
    os.kill(analyzers.pids[0], signal.SIGSTOP)
    with pytest.raises(AnalysisFailed, match="took more than"):
        ask(analyzers, "functions", LIBSSL, names=["SSL_free"])
    monkeypatch.undo()
    assert ask(analyzers, "functions", LIBSSL, names=["SSL_free"])[0]["facts"]["offsets"]
    assert analyzers.overruns["functions"] == 2


def test_its_start_is_not_the_files_fault(analyzers: AnalyzerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file has its time from when the process is ready; one that does not get ready in its own time is replaced."""
    monkeypatch.setattr("agent.targets.analyzer_pool.ANALYZER_WALL_S", 0.02)
    assert ask(analyzers, "functions", LIBSSL, names=["SSL_free"])[0]["facts"]["offsets"]
    analyzers.rest()
    monkeypatch.setattr("agent.targets.analyzer_pool.ANALYZER_START_S", 0.02)
    with pytest.raises(AnalysisFailed, match="did not start") as failed:
        ask(analyzers, "functions", LIBSSL, names=["SSL_free"])
    assert failed.value.passing


def test_an_answer_that_comes_too_late_wakes_nobody_again(analyzers: AnalyzerPool) -> None:
    ask(analyzers, "functions", LIBSSL, names=["SSL_free"])
    one = analyzers._processes[0]
    one.theirs.send(json.dumps([one.number, None, "", 0]).encode())
    analyzers.pump()
    waiting = select.poll()
    waiting.register(analyzers.fds()[0], select.POLLIN)
    assert waiting.poll(0) == []


def test_a_question_without_room_for_its_descriptors_leaves_none(analyzers: AnalyzerPool) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    got: list[Exception | None] = []
    with LIBSSL.open("rb") as file:
        first = os.dup(file.fileno())
        os.close(first)
        resource.setrlimit(resource.RLIMIT_NOFILE, (first + 1, hard))
        try:
            analyzers.analyze("functions", [file.fileno()] * 2)(lambda facts, error: got.append(error))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert isinstance(got[0], OSError)
        again = os.dup(file.fileno())
        os.close(again)
    assert again == first


@pytest.mark.parametrize("stopped", [False, True])
def test_it_ends_when_there_is_nothing_to_do(
    analyzers: AnalyzerPool, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    """It is not killed: another agent on this host would tell that."""
    ask(analyzers, "functions", LIBSSL, names=["SSL_free"])
    (pid,), child = analyzers.pids, analyzers._processes[0].child.process
    assert child is not None
    if stopped:
        os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr("agent.targets.analyzer_pool.ANALYZER_IDLE_S", 0.1)
    time.sleep(0.2)
    assert pump_until(lambda: not analyzers.pids, [analyzers], 10)
    assert child.wait(10) == -signal.SIGTERM
    assert pump_until(lambda: not Path(f"/proc/{pid}").exists() or analyzers.rest() is not None, [analyzers], 10)


CONFINED = """
import json, os, socket, sys
sys.argv[1:] = [sys.argv[1]]
from agent.binaries import analyses
from agent.targets import elf_analyzer
def attempt(fds, what):
    if what == "cpu":
        while True: pass
    if what == "memory":
        return len(bytearray(1 << 30))
    if what == "open":
        return os.open("/etc/passwd", os.O_RDONLY)
    if what == "fork":
        return os.fork()
    if what == "socket":
        socket.socket()
    return [l.split()[1] for l in open("/proc/self/status") if l.startswith(("CapEff", "NoNewPrivs"))]
analyses.KINDS["attempt"] = attempt
elf_analyzer.main()
"""


@pytest.mark.parametrize(
    ("what", "why"),
    [("open", "not permitted"), ("fork", "not permitted"), ("socket", "not permitted"), ("memory", "MB of memory")],
)
def test_what_it_may_not_do(what: str, why: str) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", CONFINED, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        env={**os.environ, "PYTHONPATH": root},
    ) as child:
        try:
            ours.settimeout(60)
            ours.send(json.dumps([1, "attempt", {"what": what}]).encode())
            assert json.loads(ours.recv(65536))[0] == READY
            number, facts, problem, _ = json.loads(ours.recv(65536))
            assert (number, facts) == (1, None)
            assert why in problem
            status = Path(f"/proc/{child.pid}/status").read_text()
            assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status and "CapEff:\t0000000000000000" in status
        finally:
            child.kill()


def test_a_computation_without_end_is_ended() -> None:
    """By the kernel, after the processor time that a question may take."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", CONFINED, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        env={**os.environ, "PYTHONPATH": root},
    ) as child:
        ours.send(json.dumps([1, "attempt", {"what": "cpu"}]).encode())
        assert child.wait(60) == -signal.SIGXCPU


@pytest.mark.parametrize(
    ("make", "analysis"),
    [
        (many_magics, "go limiters"),
        (many_pointers, "go limiters"),
        (many_returns, "go limiters"),
        (many_pointers, "go resolver"),
    ],
)
def test_files_that_take_long_are_refused_with_a_reason(analyzers: AnalyzerPool, make: Any, analysis: str) -> None:
    """No question takes as much CPU time as the limit: the algorithms themselves are bounded."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(make())
        file.flush()
        found = ask(analyzers, analysis, Path(file.name))
    assert found == [] or [(one["state"], bool(one["reason"])) for one in found] == [("unavailable", True)]
    assert analyzers.overruns.total() == 0
