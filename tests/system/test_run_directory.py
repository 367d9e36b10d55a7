"""The sockets of a whole agent: while it starts, a process of its own user swaps their names; later somebody removes
them, or the directory.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE
from tests.system.agent import Agent

NAMES = ("control.sock", "intake.seq.sock", "intake.sock", "intake.stream.sock", "notices.sock")
#: Puts a link to the second argument in the place of every socket that is there, as the agent's own user, once.
SWAP = """
import os, pwd, sys, time
user = pwd.getpwnam("tickscope")
directory, secret, names = sys.argv[1], sys.argv[2], sys.argv[3:]
os.setgroups([]); os.setgid(user.pw_gid); os.setuid(user.pw_uid)
os.chdir(directory)
for name in set(names) & set(os.listdir()):
    os.unlink(name)
    os.symlink(secret, name)
"""


@pytest.fixture
def secret() -> Iterator[Path]:
    """A file of root's, in a directory that anybody may enter."""
    file = Path("/tmp") / f"tickscope-secret-{os.getpid()}"
    file.touch(0o600)
    yield file
    file.unlink()


def wait(what: Callable[[], Any]) -> Any:
    end = time.monotonic() + 20 * PATIENCE
    while not (got := what()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return got


def loader_of(agent: Agent) -> int:
    """The loader's pid, 0 where there is none yet."""
    for child in Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children").read_text().split():
        if b"loader.py" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    return 0


def test_a_name_swapped_while_the_programs_load_gives_nobody_a_file_of_root_s(
    start: Callable[..., Agent], secret: Path
) -> None:
    agent = start()
    agent.root.chmod(0o755)
    loader = wait(lambda: loader_of(agent))
    os.kill(loader, signal.SIGSTOP)  # a load that takes long
    try:
        subprocess.run([sys.executable, "-c", SWAP, str(agent.run_dir), str(secret), *NAMES], check=True)
    finally:
        os.kill(loader, signal.SIGCONT)
    wait(lambda: b"ready attached=" in agent.errors.read_bytes() or agent.process.poll() is not None)
    found = secret.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, 0, 0o600)
    assert agent.process.poll() is None, agent.log()
    wait(lambda: "intake.sock is not a socket" in agent.log())
    for name in NAMES:
        (agent.run_dir / name).unlink()
    assert wait(lambda: (agent.run_dir / "control.sock").exists() and agent.status())["pid"]


def test_sockets_that_were_removed_come_back_and_serve(start: Callable[..., Agent]) -> None:
    agent = start().ready()
    agent.root.chmod(0o755)
    user = pwd.getpwnam("tickscope").pw_uid
    watcher = socket.socket(socket.AF_UNIX)
    watcher.connect(str(agent.run_dir / "notices.sock"))
    early = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    early.connect(str(agent.run_dir / "intake.sock"))
    for name in NAMES:
        (agent.run_dir / name).unlink()
    wait(lambda: all((agent.run_dir / name).exists() for name in NAMES))
    assert {p.name: p.stat().st_uid for p in agent.run_dir.iterdir()} == dict.fromkeys(NAMES, user)
    late = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    late.connect(str(agent.run_dir / "intake.seq.sock"))
    late.send(b'{"limiter": "late", "result": "allowed"}')
    early.send(b'{"limiter": "early", "result": "allowed"}')
    lines = socket.socket(socket.AF_UNIX)
    lines.connect(str(agent.run_dir / "intake.stream.sock"))
    lines.send(b'{"limiter": "line", "result": "allowed"}\n')
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as new:
        new.sendto(b'{"limiter": "new", "result": "allowed"}', str(agent.run_dir / "intake.sock"))
    second = socket.socket(socket.AF_UNIX)
    second.connect(str(agent.run_dir / "notices.sock"))
    assert wait(lambda: agent.status()["notices"]["subscribers"] == 2)
    assert {r["limiter_id"] for r in agent.rows("limiter_decision", "true", 4)} == {"late", "early", "new", "line"}
    assert agent.stop() == 130
    assert not list(agent.run_dir.iterdir())
    for sock in (watcher, early, late, lines, second):
        sock.close()


def test_a_directory_that_was_removed_comes_back(start: Callable[..., Agent]) -> None:
    agent = start().ready()
    pid = agent.pid()
    shutil.rmtree(agent.run_dir)
    wait(lambda: all((agent.run_dir / name).exists() for name in NAMES))
    assert agent.status()["pid"] == pid
    assert agent.status()["sources"] == []
    found = agent.run_dir.stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (pwd.getpwnam("tickscope").pw_uid, 0o755)
    assert agent.stop() == 130
    assert not list(agent.run_dir.iterdir())
