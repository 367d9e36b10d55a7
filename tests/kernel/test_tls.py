"""Handshakes of real programs: every one once, with role, result, version and times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.kernel.tls_rig import PROLOGUE, Rig, names

pytest_plugins = ["tests.kernel.tls_fixtures"]


def test_blocking_handshakes_at_both_ends(rig: Rig, certs: Path) -> None:
    rows = rig.python(
        PROLOGUE
        + """
for i in range(101):
    a, b = pair()
    if i % 2: cc.maximum_version = ssl.TLSVersion.TLSv1_2
    else: cc.maximum_version = ssl.TLSVersion.TLSv1_3
    def client():
        s = cc.wrap_socket(a, server_hostname="localhost"); s.send(b"x"); assert s.recv(10) == b"y"; s.close()
    def server():
        s = sc.wrap_socket(b, server_side=True); assert s.recv(10) == b"x"; s.send(b"y"); s.recv(10); s.close()
    both(client, server)
""",
        str(certs),
    )
    assert len(rows) == 202
    assert sorted(names(rows, "role")) == ["client"] * 101 + ["server"] * 101
    assert set(names(rows, "result")) == {"ok"}
    assert sorted(rows["tls_version"].tolist()) == [b"1.2"] * 100 + [b"1.3"] * 102
    assert set(rows["library"].tolist()) == {b"openssl"}
    assert (rows["calls"] == 1).all()
    assert ((rows["duration_ns"] >= rows["in_call_ns"]) & (rows["in_call_ns"] > 0)).all()
    assert rig.lost() == 0


def test_openssl_programs(rig: Rig, certs: Path) -> None:
    server = subprocess.Popen(
        [
            "openssl",
            "s_server",
            "-accept",
            "127.0.0.1:0",
            "-cert",
            certs / "cert",
            "-key",
            certs / "key",
            "-naccept",
            "23",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None and server.stdin is not None
    port = next(line for line in server.stdout if line.startswith("ACCEPT")).strip().rpartition(":")[2]
    clients = []
    for _ in range(23):
        done = subprocess.Popen(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{port}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        clients.append(done.pid)
        done.wait(10)
    server.stdin.close()
    server.wait(10)
    server.stdout.close()
    rig.settle()
    accepted, connected = rig.of(server.pid), rig.of(*clients)
    assert names(accepted, "role") == ["server"] * 23
    assert names(connected, "role") == ["client"] * 23
    assert set(connected["pid"].tolist()) == set(clients)
    assert set(names(accepted, "result") + names(connected, "result")) == {"ok"}
    assert set(connected["comm"].tolist()) == {b"openssl"}
    assert rig.lost() == 0


PUMP = """
def pump(a, b, ab, ba, pause):
    done = [False, False]
    for _ in range(50):
        for i, o in enumerate((a, b)):
            if not done[i]:
                try: o.do_handshake(); done[i] = True
                except ssl.SSLWantReadError: pass
            time.sleep(pause)
            (bx if i == 0 else ax).write((ay if i == 0 else by).read())
        if all(done): return
    raise SystemExit("no handshake")
"""


def test_memory_bio_handshakes_take_several_calls(rig: Rig, certs: Path) -> None:
    rows = rig.python(
        PROLOGUE
        + PUMP
        + """
for i in range(53):
    ax, ay, bx, by = (ssl.MemoryBIO() for _ in range(4))
    t = time.monotonic_ns()
    pump(cc.wrap_bio(ax, ay, server_hostname="localhost"), sc.wrap_bio(bx, by, server_side=True), 0, 0, 0.002)
""",
        str(certs),
    )
    assert len(rows) == 106
    assert names(rows, "role").count("client") == 53
    assert set(names(rows, "result")) == {"ok"}
    assert (rows["calls"] > 1).all()
    assert (rows["duration_ns"] >= rows["in_call_ns"] + 2_000_000).all()
    assert (rows["sock_id"] < 0).all()
    assert rig.lost() == 0


def test_non_blocking_sockets(rig: Rig, certs: Path) -> None:
    pid, out = rig.run(
        sys.executable,
        "-c",
        PROLOGUE
        + """
import select
out = []
def shake(s, pause):
    calls = 0
    while True:
        calls += 1
        try: s.do_handshake(); out.append(f"{'server' if s.server_side else 'client'} {calls}"); return
        except ssl.SSLWantReadError: select.select([s], [], []); time.sleep(pause)
        except ssl.SSLWantWriteError: select.select([], [s], [])
for i in range(17):
    a, b = pair(); a.setblocking(False); b.setblocking(False)
    c = cc.wrap_socket(a, server_hostname="localhost", do_handshake_on_connect=False)
    s = sc.wrap_socket(b, server_side=True, do_handshake_on_connect=False)
    both(lambda: shake(c, 0.003), lambda: shake(s, 0.003)); c.close(); s.close()
print("\\n".join(out))
""",
        certs,
    )
    rows = rig.of(pid)
    assert names(rows, "result") == ["ok"] * 34
    assert sorted(f"{role} {calls}" for role, calls in zip(names(rows, "role"), rows["calls"], strict=True)) == sorted(
        out.splitlines()
    )
    client = rows[(np.array(names(rows, "role")) == "client") & (rows["calls"] > 1)]
    assert len(client) > 0
    assert (client["duration_ns"] >= client["in_call_ns"] + 3_000_000).all()


def test_implicit_handshakes(rig: Rig, certs: Path) -> None:
    rows = rig.python(
        PROLOGUE
        + """
for i in range(19):
    a, b = pair()
    c = cc.wrap_socket(a, server_hostname="localhost", do_handshake_on_connect=False)
    s = sc.wrap_socket(b, server_side=True, do_handshake_on_connect=False)
    out = both(lambda: (c.write(b"hello"), c.read(9)), lambda: (s.read(9), s.write(b"there")))
    assert out[0] and len(out) == 2, out
    c.close(); s.close()
""",
        str(certs),
    )
    assert len(rows) == 38
    assert names(rows, "role").count("server") == 19
    assert set(names(rows, "result")) == {"ok"}


def test_failed_handshakes(rig: Rig, certs: Path) -> None:
    rows = rig.python(
        PROLOGUE
        + """
strict = ssl.create_default_context()
strict.maximum_version = ssl.TLSVersion.TLSv1_2
new = ssl.create_default_context(cafile=certs + "/cert"); new.minimum_version = ssl.TLSVersion.TLSv1_3
old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); old.load_cert_chain(certs + "/cert", certs + "/key")
old.maximum_version = ssl.TLSVersion.TLSv1_2
for i in range(7):
    a, b = pair()
    both(lambda: strict.wrap_socket(a, server_hostname="localhost"), lambda: sc.wrap_socket(b, server_side=True))
for i in range(11):
    a, b = pair()
    both(lambda: new.wrap_socket(a, server_hostname="localhost"), lambda: old.wrap_socket(b, server_side=True))
for i in range(13):
    a, b = pair(); both(lambda: cc.wrap_socket(a, server_hostname="localhost"), lambda: b.close())
""",
        str(certs),
    )
    assert len(rows) == 2 * 7 + 2 * 11 + 13
    assert set(names(rows, "result")) == {"failed"}
    errors = rows["error"].tolist()
    assert errors.count(b"certificate: self-signed") == 7
    assert errors.count(b"connection closed") == 13
    assert errors.count(b"handshake failed") == 7 + 2 * 11
    assert set(rows["tls_version"].tolist()) == {b""}


def test_abandoned_handshakes(rig: Rig, certs: Path) -> None:
    rows = rig.python(
        PROLOGUE
        + """
for i in range(29):
    ax, ay = ssl.MemoryBIO(), ssl.MemoryBIO()
    o = cc.wrap_bio(ax, ay, server_hostname="localhost")
    for _ in range(2):
        try: o.do_handshake()
        except ssl.SSLWantReadError: time.sleep(0.002)
    del o
left = []
for i in range(5):
    left.append(cc.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost"))
    try: left[-1].do_handshake()
    except ssl.SSLWantReadError: pass
a, b = pair()
def stuck(): cc.wrap_socket(a, server_hostname="localhost")
threading.Thread(target=stuck, daemon=True).start(); time.sleep(0.1)
import os; sys.stdout.flush(); os._exit(0)
""",
        str(certs),
    )
    assert len(rows) == 29 + 5 + 1
    assert set(names(rows, "result")) == {"abandoned"}
    assert sorted(rows["calls"].tolist()) == [0] + [1] * 5 + [2] * 29
    assert (rows["duration_ns"] >= rows["in_call_ns"]).all()
    assert set(names(rows, "role")) == {"client"}
    assert set(rows["library"].tolist()) == {b"openssl"}
    assert int(rig.source.control["tls_depth"][0]) == 0


def test_detached_probe_sees_nothing(rig: Rig, certs: Path) -> None:
    rig.targets.close()
    rig.sources.remove(rig.targets)
    rows = rig.python(
        PROLOGUE
        + "a, b = pair(); both(lambda: cc.wrap_socket(a, server_hostname='localhost'), lambda: sc.wrap_socket(b,"
        " server_side=True))",
        str(certs),
    )
    assert len(rows) == 0
