"""What the first children inherit, and that they end where the agent does not get as far as telling them to begin."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.clock import first
from agent.clock.watch_process import start as start_watch
from agent.errors import AgentError
from agent.kernel import helper, helper_client
from agent.posix.child import Child, fork
from agent.posix.supervisor import begun
from tests.lab import sockets

ROOT = Path(__file__).parents[2]
#: Each is 0.4 to 2 MB, which every child would keep for itself.
LARGE = (
    "agent.config",
    "agent.errors",
    "agent.main",
    "dataclasses",
    "inspect",
    "json",
    "numpy",
    "pathlib",
    "re",
    "subprocess",
    "threading",
    "typing",
)


def test_little_is_imported_before_the_first_children() -> None:
    code = f"import sys, agent.start; print(*(name for name in {LARGE} if name in sys.modules))"
    assert (
        subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
        == "\n"
    )


def test_the_hook_is_forked_before_the_agent_is_large() -> None:
    code = "import sys, agent.main, agent.clock.watch_process, agent.clock.hooks; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("serve", [helper.serve, first.serve])
def test_a_child_that_is_never_asked_to_begin_ends_with_the_agent(serve: object) -> None:
    sock, pid = fork("child", serve)  # type: ignore[arg-type]
    assert Path(f"/proc/{pid}/comm").parent.exists()
    sock.close()
    assert os.waitpid(pid, 0) == (pid, 0)


def test_a_later_child_does_not_keep_an_earlier_one() -> None:
    (sock, pid), (later, its) = fork("first", first.serve), fork("second", helper.serve)
    sock.close()
    assert os.waitpid(pid, 0) == (pid, 0)
    later.close()
    assert os.waitpid(its, 0) == (its, 0)


def test_a_child_that_fails_reports_why_and_exits_with_1(capfd: pytest.CaptureFixture[str]) -> None:
    def serve(sock: socket.socket, parent: int) -> None:
        raise KeyError("gone wrong")

    sock, pid = fork("child", serve)
    with sock:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    output = capfd.readouterr().err
    assert output.startswith("child: Traceback") and output.endswith("KeyError: 'gone wrong'\n")


def test_a_child_whose_parent_is_gone_reports_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """What it has sent and nobody read makes its next look at the socket a reset."""

    def answering(sock: socket.socket, parent: int) -> None:
        sock.send(b"x")
        sock.recv(1)
        sock.recv(1)

    sock, pid = fork("child", answering)
    sock.send(b"go")
    sock.close()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "start",
    [
        lambda child, _: helper_client.start(child, 65534, 65534, ""),
        lambda child, path: start_watch(child, sockets.notices(path), 65534, 65534),
    ],
)
def test_a_child_that_ended_before_it_was_asked_to_begin_is_named(
    start: Callable[[Child, Path], object], tmp_path: Path
) -> None:
    sock, pid = fork("early", helper.serve)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with (
        sock,
        pytest.raises(
            AgentError,
            match=rf"tickscope-help \(pid {pid}\) ended before it could begin\n  why: killed by SIGKILL\n  try: ",
        ),
    ):
        begun("tickscope-help", start, (sock, pid), tmp_path / "x")


#: As a user who may have no further process.
NO_MORE = """
import os, resource
import agent.errors, agent.log, agent.start
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
agent.start.main()
"""


def test_where_no_process_can_be_made_that_is_reported() -> None:
    done = subprocess.run([sys.executable, "-c", NO_MORE], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    assert done.stderr.splitlines()[:2] == [
        "tickscope: the agent's first processes cannot be started",
        "  why: fork: Resource temporarily unavailable",
    ]
    assert "TasksMax=" in done.stderr and "Traceback" not in done.stderr
