"""What a handshake's end was: with early data, not before the peer's half; and what became of the peer's
certificate.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from agent.columns import NULL_I64
from tests.kernel.tls_rig import PROLOGUE, Rig, names

pytest_plugins = ["tests.kernel.tls_fixtures"]


@contextmanager
def server(certs: Path, *more: str) -> Iterator[tuple[int, str]]:
    """(pid, port) of openssl's own."""
    process = subprocess.Popen(
        ["openssl", "s_server", "-accept", "127.0.0.1:0", "-cert", certs / "cert", "-key", certs / "key", *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.pid, next(line for line in process.stdout if line.startswith("ACCEPT")).strip().rpartition(":")[2]
    finally:
        process.kill()
        process.communicate()


def test_a_server_that_takes_early_data_waits_for_the_clients_half(rig: Rig, certs: Path, tmp_path: Path) -> None:
    """The handshake function says 1 before early data: a client may refuse the certificate after that."""
    with server(certs, "-early_data") as (pid, port):
        rig.python(
            PROLOGUE
            + f"""
def connect(context):
    s = context.wrap_socket(socket.create_connection(("127.0.0.1", {port})), server_hostname="localhost")
    s.send(b"x"); s.close()
for i in range(5):
    try: connect(ssl.create_default_context())
    except ssl.SSLError: pass
for i in range(7): connect(cc)
""",
            str(certs),
        )
        rows = rig.of(pid)
        assert names(rows, "result") == ["failed"] * 5 + ["ok"] * 7
        assert rows["error"].tolist() == [b"handshake failed"] * 5 + [b""] * 7
        session, early = tmp_path / "session", tmp_path / "early"
        early.write_bytes(b"GET /\r\n")
        client = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-CAfile", str(certs / "cert")]
        rig.run("sh", "-c", f"(sleep 0.3; echo Q) | {' '.join(client)} -sess_out {session} > /dev/null 2>&1")
        _, out = rig.run(
            "sh", "-c", f"(sleep 0.3; echo Q) | {' '.join(client)} -sess_in {session} -early_data {early} 2>&1"
        )
        assert "Early data was accepted" in out
        assert names(rig.of(pid)[12:], "result") == ["ok", "ok"]
        clients = rig.rows()
        clients = clients[(clients["comm"] == b"openssl") & (clients["pid"] != pid)]
        assert names(clients, "result") == ["ok", "ok"]
    assert rig.lost() == 0


#: haproxy takes the listening socket over, so that nobody else gets its port.
HAPROXY = """
defaults
  mode http
  timeout connect 5s
  timeout client 5s
  timeout server 5s
frontend f
  bind fd@{fd} ssl crt {pem} allow-0rtt
  http-request return status 200
"""


@pytest.mark.parametrize("rig", [("tcp",)], indirect=True)
@pytest.mark.skipif(not shutil.which("haproxy") and not Path("/usr/sbin/haproxy").exists(), reason="no haproxy")
def test_haproxy_that_allows_early_data(rig: Rig, certs: Path, tmp_path: Path) -> None:
    pem, config = tmp_path / "pem", tmp_path / "config"
    pem.write_bytes((certs / "cert").read_bytes() + (certs / "key").read_bytes())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config.write_text(HAPROXY.format(fd=listener.fileno(), pem=pem))
        port = listener.getsockname()[1]
        process = subprocess.Popen(
            [shutil.which("haproxy") or "/usr/sbin/haproxy", "-db", "-f", config],
            pass_fds=[listener.fileno()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    try:
        rig.know(process.pid)
        rig.python(
            PROLOGUE
            + f"""
for i in range(12):
    s = socket.create_connection(("127.0.0.1", {port}))
    try:
        t = (cc if i % 2 else ssl.create_default_context()).wrap_socket(s, server_hostname="localhost")
        t.send(b"GET / HTTP/1.0\\r\\n\\r\\n"); assert b"200" in t.recv(99)
    except ssl.SSLError: assert not i % 2
    s.close()
for i in range(5):  # resets the connection in place of its half
    s, out = socket.create_connection(("127.0.0.1", {port})), ssl.MemoryBIO()
    try: cc.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError: pass
    s.send(out.read()); s.recv(1); s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1] + [0] * 7)); s.close()
""",
            str(certs),
        )
        rows = rig.of(process.pid)
        results = names(rows, "result")
        # without its socket, a handshake that the peer cut off cannot be told from one that haproxy gave up
        assert results == ["failed", "ok"] * 6 + ["failed"] * 5, (rig.lost(), rows["peer"].tolist(), rows["calls"])
        errors = rows["error"].tolist()  # haproxy need not read an alert behind which the connection was reset
        assert set(errors[:12:2]) <= {b"handshake failed", b"connection closed"}
        assert errors[12:] == [b"connection closed"] * 5
    finally:
        process.terminate()
        process.wait()


def test_the_verification_result_is_reported_whether_or_not_it_matters(rig: Rig, certs: Path) -> None:
    rows = rig.python(
        PROLOGUE
        + """
careless = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
careless.check_hostname = False; careless.verify_mode = ssl.CERT_NONE
for context in (cc, careless, ssl.create_default_context()):
    for i in range(5):
        a, b = pair()
        both(lambda: context.wrap_socket(a, server_hostname="localhost"), lambda: sc.wrap_socket(b, server_side=True))
""",
        str(certs),
    )
    client = rows[np.array(names(rows, "role")) == "client"]
    assert names(client, "result") == ["ok"] * 10 + ["failed"] * 5
    assert client["verify_result"].tolist() == [0] * 5 + [18] * 10
    assert client["error"].tolist() == [b""] * 10 + [b"certificate: self-signed"] * 5
    server_rows = rows[np.array(names(rows, "role")) == "server"]
    assert set(server_rows["verify_result"].tolist()) == {NULL_I64}, "the clients had no certificate"
