"""One unprivileged user floods the host with connections, handshakes and decisions: all rows of another user are there,
and what is missing of his own is counted. The rows are taken as seldom as a busy agent takes them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.kernel.loaded_families import BPF_DIR
from tests.kernel.conftest import Attached
from tests.kernel.go_fixture import go_binary
from tests.kernel.limiter_rig import Watch
from tests.kernel.test_storms import losses
from tests.kernel.tls_rig import Rig

pytest_plugins = ["tests.kernel.tls_fixtures"]

NOBODY, OTHER = 65534, 1
#: Between two times at which the rows are taken.
TURN_S = 0.1
#: Makes so many connections with itself and ends, which closes all of them, so many times; holds the last for so long.
CONNECTIONS = """
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	int many = atoi(argv[1]), times = atoi(argv[2]), hold_s = atoi(argv[3]);
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(to);
	for (int n = 0; n < times; n++) {
		if (!fork()) {
			int listens = socket(AF_INET, SOCK_STREAM, 0);
			if (bind(listens, (void *)&to, size) || listen(listens, 64) || getsockname(listens, (void *)&to, &size))
				_exit(1);
			for (int i = 0; i < many; i++) {
				int client = socket(AF_INET, SOCK_STREAM, 0);
				if (connect(client, (void *)&to, size) || accept(listens, 0, 0) < 0)
					_exit(2);
			}
			if (n == times - 1)
				write(1, "\\n", 1), sleep(hold_s);
			_exit(0);
		}
		int status;
		wait(&status);
		if (status)
			return WEXITSTATUS(status);
	}
	return 0;
}
"""
#: A few connections a second, with itself.
FEW = """
import socket, sys, time
with socket.create_server(("127.0.0.1", 0)) as listener:
    for _ in range(int(sys.argv[1])):
        client = socket.create_connection(listener.getsockname())
        accepted = listener.accept()[0]
        client.sendall(b"?"); accepted.recv(1)
        client.close(); accepted.recv(1); accepted.close()
        time.sleep(0.005)
"""
#: A server with so many connections, and their client. When they end, the kernel closes all at once.
SERVES = """
import os, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, 2 * [resource.getrlimit(resource.RLIMIT_NOFILE)[1]])
with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
    print(listener.getsockname()[1], flush=True)
    kept = [listener.accept()[0] for _ in range(int(sys.argv[1]))]
print(flush=True); sys.stdin.readline(); os._exit(0)
"""
CONNECTS = """
import os, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, 2 * [resource.getrlimit(resource.RLIMIT_NOFILE)[1]])
kept = [socket.create_connection(("127.0.0.1", int(sys.argv[2]))) for _ in range(int(sys.argv[1]))]
print(flush=True); sys.stdin.readline(); os._exit(0)
"""
#: Begins so many handshakes: gives them up at once, or keeps them.
HANDSHAKES = """
import ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
context.maximum_version = ssl.TLSVersion.TLSv1_2
kept = []
print(flush=True); sys.stdin.readline()
for _ in range(int(sys.argv[1])):
    one = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO())
    try: one.do_handshake()
    except ssl.SSLWantReadError: pass
    if sys.argv[2] == "keep": kept.append(one)
print(flush=True); sys.stdin.readline()
"""
#: A few whole ones.
SHAKES = """
import ssl, sys, time
server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
server.load_cert_chain(sys.argv[1] + "/cert", sys.argv[1] + "/key")
client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
print(flush=True); sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    waiting = [client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)]
    while waiting:
        for end in list(waiting):
            try: end.do_handshake(); waiting.remove(end)
            except ssl.SSLWantReadError: pass
    time.sleep(0.01)
print(flush=True); sys.stdin.readline()
"""


def defined(file: str, name: str) -> int:
    """A number of the kernel's side."""
    words = (line.split() for line in (BPF_DIR / file).read_text().splitlines() if line.startswith("#define"))
    return next(int(w[2]) for w in words if w[1] == name)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Readable to all users, as pytest's own is not."""
    made = Path(tempfile.mkdtemp(prefix="tickscope-test-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def run_as() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A program of a user. It ends with the test."""
    live = list[subprocess.Popen[str]]()

    def start(uid: int, *command: str | Path) -> subprocess.Popen[str]:
        live.append(
            subprocess.Popen(
                [str(word) for word in command],
                user=uid,
                group=uid,
                extra_groups=(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        return live[-1]

    yield start
    for one in live:
        one.kill()
        one.communicate()


def ended(pump: Callable[[], None], *programs: subprocess.Popen[str]) -> float:
    """Takes rows until they have ended; how many seconds that took."""
    begun = time.monotonic()
    while any(one.poll() is None for one in programs):
        time.sleep(TURN_S)
        pump()
    assert [one.returncode for one in programs] == [0] * len(programs)
    time.sleep(2 * TURN_S)
    pump()
    return time.monotonic() - begun


def line(program: subprocess.Popen[str]) -> None:
    """Waits for its line."""
    assert program.stdout is not None and program.stdout.readline() == "\n"


def go_on(program: subprocess.Popen[str]) -> None:
    assert program.stdin is not None
    program.stdin.write("\n")
    program.stdin.flush()


@pytest.fixture
def flooding(folder: Path) -> Path:
    program = folder / "connections"
    subprocess.run(["gcc", "-x", "c", "-O2", "-", "-o", program], input=CONNECTIONS, text=True, check=True)
    return program


def test_connections(
    attach: Callable[..., Attached], run_as: Callable[..., subprocess.Popen[str]], flooding: Path
) -> None:
    """Both ends of his connections count for him."""
    attached, few, pairs, times = attach("tcp"), 401, 4001, 13
    flood = run_as(NOBODY, flooding, str(pairs), str(times), "0")
    other = run_as(OTHER, sys.executable, "-c", FEW, str(few))
    took_s = ended(attached.pump, other, flood)
    closes, connects = attached.rows("tcp_close"), attached.rows("tcp_connect")
    mine = closes[closes["pid"] == other.pid]
    assert Counter(mine["role"].tolist()) == {0: few, 1: few}
    assert (mine["duration_ns"] > 0).all()
    assert (connects["pid"] == other.pid).sum() == few
    assert np.isin(mine["sock_id"], attached.rows("tcp_rtt")["sock_id"]).all()
    his, most = int((closes["comm"] == b"connections").sum()), defined("tcp_state.bpf.c", "TCP_CLOSE_MOST")
    lost = losses(attached.rows("loss"))
    assert most <= his <= most + 1e9 / defined("tcp_state.bpf.c", "TCP_CLOSE_EACH_NS") * took_s
    assert set(lost) == {"tcp_shares"} and his + lost["tcp_shares"] >= 2 * pairs * times


def test_connections_to_the_server_of_another_user(
    attach: Callable[..., Attached], run_as: Callable[..., subprocess.Popen[str]]
) -> None:
    """They count for him, not for the server's user."""
    attached, few, many = attach("tcp"), 401, 7001
    server = run_as(OTHER, sys.executable, "-c", SERVES, str(many))
    assert server.stdout is not None
    flood = run_as(NOBODY, sys.executable, "-c", CONNECTS, str(many), server.stdout.readline().strip())
    line(flood)
    line(server)
    attached.pump()
    other = run_as(OTHER, sys.executable, "-c", FEW, str(few))
    for one in (flood, server):
        go_on(one)
    ended(attached.pump, flood, server, other)
    closes, lost = attached.rows("tcp_close"), losses(attached.rows("loss"))
    assert (closes["pid"] == other.pid).sum() == 2 * few
    ends = int(np.isin(closes["pid"], [server.pid, flood.pid]).sum())
    assert ends < 2 * many <= ends + lost["tcp_shares"] and set(lost) == {"tcp_shares"}


def test_connections_that_stay(
    attach: Callable[..., Attached], run_as: Callable[..., subprocess.Popen[str]], flooding: Path
) -> None:
    """He has a quarter of the places, and again once his connections have ended."""
    attached, few, places = attach("tcp", options={"TCP_SOCKETS": 4096}), 53, 1024
    for _ in range(2):
        flood = run_as(NOBODY, flooding, "2503", "1", "60")
        line(flood)
        other = run_as(OTHER, sys.executable, "-c", FEW, str(few))
        ended(attached.pump, other)
        closes = attached.rows("tcp_close")
        mine = closes[closes["pid"] == other.pid]
        assert len(mine) == 2 * few and (mine["duration_ns"] > 0).all()
        os.killpg(flood.pid, signal.SIGKILL)
        flood.wait()
        time.sleep(1)
        attached.pump()
        closes = attached.rows("tcp_close")
        known = closes[(closes["comm"] == b"connections") & (closes["duration_ns"] > 0)]
        assert places - 8 <= len(known) <= places
        attached._rows.clear()


def test_handshakes(rig: Rig, certs: Path, run_as: Callable[..., subprocess.Popen[str]]) -> None:
    few, many = 53, 20011
    certs.parent.parent.chmod(0o755)
    certs.parent.chmod(0o755)
    certs.chmod(0o755)
    (certs / "key").chmod(0o644)
    flood = run_as(NOBODY, sys.executable, "-c", HANDSHAKES, str(many), "drop")
    other = run_as(OTHER, sys.executable, "-c", SHAKES, certs, str(few))
    for one in (flood, other):
        line(one)
        rig.know(one.pid)
    begun = time.monotonic()
    for one in (flood, other):
        go_on(one)  # begins
        go_on(one)  # may end
    ended(rig.pump, flood, other)
    assert len(rig.of(other.pid)) == 2 * few
    his, most = len(rig.of(flood.pid)), defined("tls.bpf.c", "TLS_MOST")
    lost = losses(rig.rows("loss"))
    took_s = time.monotonic() - begun
    assert most <= his <= most + 1e9 / defined("tls.bpf.c", "TLS_EACH_NS") * took_s
    assert set(lost) == {"tls_shares"} and his + lost["tls_shares"] == many


def test_handshakes_that_do_not_end(rig: Rig, run_as: Callable[..., subprocess.Popen[str]]) -> None:
    """He has a quarter of the places, and again once his program has ended."""
    most = defined("tls.bpf.c", "TLS_OPEN_MOST")
    for _ in range(2):
        flood = run_as(NOBODY, sys.executable, "-c", HANDSHAKES, str(most + 211), "keep")
        line(flood)
        rig.know(flood.pid)
        before = losses(rig.rows("loss"))
        go_on(flood)
        line(flood)
        rig.settle()
        assert losses(rig.rows("loss")) - before == {"tls_shares": 211}
        go_on(flood)
        ended(rig.pump, flood)


def test_decisions(watch: Callable[..., Watch], run_as: Callable[..., subprocess.Popen[str]], folder: Path) -> None:
    """Without sampling, which ends a flood of a single program, but not of many."""
    programs = dict[str, Any]()
    for name, uid, load in (("flood", NOBODY, ["-callers", "2"]), ("other", OTHER, ["-rate", "100"])):
        path = shutil.copy(go_binary("plain", "hot"), folder / name)
        programs[name] = run_as(uid, path, "-for", "3", *load), path
    w = watch()
    for _, path in programs.values():
        w.until(lambda path=path: w.attached_to(path, "golang.org/x/time/rate"), 60)
    flood, other = (one for one, _ in programs.values())
    for one in (flood, other):
        go_on(one)
    truth, begun = dict[str, dict[str, int]](), time.monotonic()
    while time.monotonic() < begun + 4:
        time.sleep(TURN_S)
        w.turn()
    for name, one in (("flood", flood), ("other", other)):
        assert one.stdout is not None
        truth[name] = json.loads(one.stdout.readline())
        go_on(one)
    ended(w.turn, flood, other)
    made = {name: one["allowed"] + one["refused"] for name, one in truth.items()}
    rows = w.attached.rows("limiter_decision")
    assert (rows["pid"] == other.pid).sum() == made["other"] > 250
    his, most = int((rows["pid"] == flood.pid).sum()), defined("limiter_decision.h", "LIMITER_MOST")
    lost = losses(w.attached.rows("loss"))
    assert (
        most <= his <= most + 1e9 / defined("limiter_decision.h", "LIMITER_EACH_NS") * (truth["flood"]["seconds"] + 1)
    )
    assert set(lost) == {"limiter_shares"} and his + lost["limiter_shares"] == made["flood"]
