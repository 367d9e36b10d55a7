"""In a PID namespace, as in a container without the host's, processes have that namespace's numbers; those outside have
none.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

from agent.columns import NULL_I64

PROGRAM = """
import json, os, socket
from tests.kernel.conftest import Attached

tcp = Attached(("tcp",))
server = socket.create_server(("127.0.0.1", 0), backlog=64)
port = server.getsockname()[1]
print(port, flush=True)
input()
for _ in range(7):
    socket.create_connection(("127.0.0.1", port)).close()
rows = tcp.wait("tcp_connect", lambda r: r[r["dport"] == port], lambda r: len(r) >= 18)
print(json.dumps([os.getpid(), rows["pid"].tolist(), rows["tid"].tolist(), tcp.lost()]))
"""


#: As ``unshare`` runs a program there.
INSIDE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable]
CALLS = ("test_each_blocked_flock_is_one_row", "test_blocked_time_is_summed_by_process", "test_full_counts_every_call")
LOCKS = ("test_a_lock_wait_names_the_holder[here-flock]", "test_a_lock_wait_names_the_holder[apart-fcntl]")


def test_numbers_are_those_of_the_agents_namespace() -> None:
    with subprocess.Popen(
        [*INSIDE, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as inside:
        assert inside.stdin is not None
        assert inside.stdout is not None
        port = int(inside.stdout.readline())
        for _ in range(11):
            socket.create_connection(("127.0.0.1", port)).close()
        inside.stdin.write("\n")
        inside.stdin.flush()
        own, pids, tids, lost = json.loads(inside.stdout.read())
    assert sorted(pids) == sorted(tids) == [NULL_I64] * 11 + [own] * 7
    assert lost == 0


def test_system_calls_are_timed_there_as_everywhere() -> None:
    """The programs have a variant for it (LOAD in bpf/tickscope.h)."""
    tests = [f"tests/kernel/test_syscalls.py::{name}" for name in CALLS]
    tests += [f"tests/kernel/test_locks.py::{name}" for name in LOCKS]
    done = subprocess.run(
        [*INSIDE, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout
