"""What one user's programs can take of the room for connections to Redis that are read in TLS, and what is told of
it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.probes import discover
from tests.kernel.test_redis_tls import ASYNC, CLIENT, TlsRig, counted, rigged, running, serving
from tests.kernel.test_redis_wire import told

pytest_plugins = ["tests.kernel.tls_fixtures"]

#: As nobody: asks by as many SSL objects as each line of stdin says, each three times, and keeps them. argv: a Redis
#: port.
MANY = r"""
import os, socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT); context.check_hostname = False
os.setuid(65534)
plain, kept = socket.create_connection(("127.0.0.1", int(sys.argv[1]))), []
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        kept.append(context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO()))
        for _ in range(3):
            try: kept[-1].write(b"*3\r\n$4\r\nEVAL\r\n$5\r\nrate:\r\n$1\r\n0\r\n")
            except ssl.SSLError: pass
    print("done", flush=True)
"""

#: In a network namespace of its own, as nobody: a connection with the ends of somebody else's, over which a limiter is
#: asked. argv: the server's port, the client's.
TWIN = r"""
import os, socket, ssl, subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT); context.check_hostname = False
os.setuid(65534)
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
plain = socket.create_connection(("127.0.0.1", int(sys.argv[1])), source_address=("127.0.0.1", int(sys.argv[2])))
plain.setblocking(False)
client = context.wrap_socket(plain, do_handshake_on_connect=False)
print("ready", flush=True)
for line in sys.stdin:
    try: client.write(b"*3\r\n$4\r\nEVAL\r\n$5\r\nrate:\r\n$1\r\n0\r\n")
    except ssl.SSLError: pass
    print("done", flush=True)
"""


class Many:
    def __init__(self, *argv: str) -> None:
        self.child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.child.stdout and self.child.stdout.readline() == "ready\n"

    def ask(self, objects: int) -> None:
        assert self.child.stdin and self.child.stdout
        print(objects, file=self.child.stdin, flush=True)
        assert self.child.stdout.readline() == "done\n"


@contextlib.contextmanager
def many(rig: TlsRig, port: int, *argv: str) -> Iterator[Many]:
    one = Many(*(argv or (sys.executable, "-c", MANY)), str(port))
    try:
        rig.reads(one.child.pid)
        yield one
    finally:
        one.child.kill()
        one.child.communicate()


def held(rig: TlsRig, one: Many) -> int:
    return int((rig.tls._connections.read()[0]["pid"] == one.child.pid).sum())


def test_a_connection_without_room_is_left_out_once_however_often_it_asks(
    tmp_path: Path, certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.probes.beside.redis_tls.CLIENTS_CONNECTIONS", 7)
    with serving(tmp_path, certs) as server, rigged(server.tls_port) as rig, many(rig, server.tls_port) as one:
        one.ask(11)
        assert held(rig, one) == 7
        assert rig.tls.state()["connections_left_out"] == 4


def test_what_one_user_has_leaves_others_room(tmp_path: Path, certs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By however many processes; who ends gives back what it had."""
    monkeypatch.setitem(discover()["redis_tls"].options, "REDIS_TLS_A_USER", 7)  # type: ignore[arg-type]
    with serving(tmp_path, certs) as server, rigged(server.tls_port) as rig, many(rig, server.tls_port) as one:
        with many(rig, server.tls_port) as two:
            for each in (one, two):
                each.ask(5)
            assert [held(rig, each) for each in (one, two)] == [5, 2]
            assert rig.tls.state()["connections_left_out"] == 3
            with running(CLIENT, server, certs) as client:
                rig.reads(client.child.pid)
                log = client.decide("rate:a", 13)
                assert told(rig.take(13)) == counted(log)
        rig.until(lambda: two.child.pid not in rig.tls._users)
        one.ask(5)
        assert held(rig, one) == 7


def test_a_twin_in_a_network_namespace_of_its_own_silences_nobody(tmp_path: Path, certs: Path) -> None:
    with (
        serving(tmp_path, certs) as server,
        rigged(server.tls_port, servers=(server.process.pid,)) as rig,
        running(ASYNC, server, certs) as client,
    ):
        rig.reads(server.process.pid)
        ends = [line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        (own,) = (
            int(local[-4:], 16)
            for local, remote, state in ends
            if (remote[-4:], state) == (f"{server.tls_port:04X}", "01")
        )
        argv = "unshare", "-n", "--", sys.executable, "-c", TWIN, str(server.tls_port)
        with many(rig, own, *argv) as twin:
            twin.ask(1)
            assert held(rig, twin) == 1
            log = client.decide("rate:a", 13)
            rows = rig.take(13)
            assert told(rows) == counted(log)
            assert set(rows["pid"].tolist()) == {client.child.pid}
