"""OpenSSL 1.1.1 and 3.5 beside the host's own: other Debian releases' (tests/releases.py)."""

from __future__ import annotations

import os
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.tls_rig import Rig, names
from tests.releases import program, unpacked

pytest_plugins = ["tests.kernel.tls_fixtures"]

RELEASES = {
    "bullseye": ("1.1.1", ("libssl1.1", "openssl", "libc6")),
    "trixie": ("3.5.", ("libssl3t64", "openssl", "libc6", "libzstd1", "zlib1g")),
}


class Tree:
    """An unpacked release: ``openssl(*arguments)`` is the command line of its openssl program."""

    def __init__(self, release: str) -> None:
        self.version, packages = RELEASES[release]
        self.root = unpacked(release, release, packages)

    def openssl(self, *arguments: str | Path) -> list[str]:
        return [*program(self.root, "usr/bin/openssl"), *map(str, arguments)]


@pytest.fixture(scope="module", params=sorted(RELEASES))
def tree(request: pytest.FixtureRequest) -> Tree:
    return Tree(request.param)


@contextmanager
def _server(tree: Tree, certs: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    server = subprocess.Popen(
        tree.openssl("s_server", "-accept", "127.0.0.1:0", "-cert", certs / "cert", "-key", certs / "key", *more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OPENSSL_CONF": "/dev/null"},
    )
    assert server.stdout is not None
    try:
        accept = next(line for line in server.stdout if line.startswith("ACCEPT"))
        yield server, accept.strip().rpartition(":")[2]
    finally:
        server.kill()
        server.communicate()


def test_handshakes_of_another_release(rig: Rig, certs: Path, tree: Tree) -> None:
    """Its s_server against the host's Python, and its s_client: roles, versions, failures, and which library it was."""
    with _server(tree, certs) as (server, port):
        rig.know(server.pid)
        rows = rig.python(
            f"""
import socket, ssl, sys
good = ssl.create_default_context(cafile=sys.argv[1] + "/cert"); bad = ssl.create_default_context()
for i in range(23):
    good.maximum_version = ssl.TLSVersion.TLSv1_2 if i % 2 else ssl.TLSVersion.TLSv1_3
    good.wrap_socket(socket.create_connection(("127.0.0.1", {port})), server_hostname="localhost").close()
bad.maximum_version = ssl.TLSVersion.TLSv1_2
for i in range(5):
    try: bad.wrap_socket(socket.create_connection(("127.0.0.1", {port})), server_hostname="localhost")
    except ssl.SSLError: pass
for i in range(3):
    socket.create_connection(("127.0.0.1", {port})).close()
""",
            str(certs),
        )
        mine = rig.of(server.pid)
        assert names(rows, "result") == ["ok"] * 23 + ["failed"] * 5
        assert names(mine, "result") == ["ok"] * 23 + ["failed"] * 8
        assert names(mine, "role") == ["server"] * 31
        assert sorted(mine["tls_version"].tolist()) == [b""] * 8 + [b"1.2"] * 11 + [b"1.3"] * 12
        assert mine["error"].tolist()[-3:] == [b"connection closed"] * 3
        assert all(v.startswith(tree.version.encode()) for v in mine["library_version"].tolist())
        assert set(rows["library_version"].tolist()) == {ssl.OPENSSL_VERSION.split()[1].encode()}
        client, _ = rig.run(
            "sh",
            "-c",
            'sleep 0.5; exec "$@" < /dev/null',
            "sh",
            *tree.openssl("s_client", "-connect", f"127.0.0.1:{port}"),
        )
        assert names(rig.of(client), "role") == ["client"]
        assert rig.lost() == 0


def test_messages_after_the_handshake_are_none(rig: Rig, certs: Path, tree: Tree) -> None:
    """Key updates, new tickets, renegotiation and resumed sessions: one row a connection and side."""
    with _server(tree, certs, *([] if tree.version == "1.1.1" else ["-client_renegotiation"])) as (server, port):
        rig.know(server.pid)
        clients = []
        for version, keys in (("-tls1_3", "K\nk\nK\n"), ("-tls1_2", "R\nR\n")):
            client = subprocess.Popen(
                tree.openssl("s_client", "-connect", f"127.0.0.1:{port}", version),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            clients.append(client.pid)
            rig.settle(0.5)
            assert client.stdin is not None
            for key in keys.splitlines():
                client.stdin.write(key + "\n")
                client.stdin.flush()
                rig.settle(0.3)
            client.stdin.write("Q\n")
            client.stdin.close()
            client.wait(5)
        rig.settle()
        assert names(rig.of(server.pid), "result") == ["ok", "ok"]
        assert names(rig.of(*clients), "result") == ["ok", "ok"]
        resumer, _ = rig.run(
            "sh",
            "-c",
            'exec "$@" < /dev/null',
            "sh",
            *tree.openssl("s_client", "-connect", f"127.0.0.1:{port}", "-tls1_2", "-reconnect"),
        )
        assert len(rig.of(server.pid)) == 2 + 6
        assert len(rig.of(resumer)) == 6
