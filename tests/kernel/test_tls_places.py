"""Where handshakes happen, and what they leave alone: sockets, threads, mount namespaces, other programs, established
data.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from agent.kernel import bpf, syscall
from tests.kernel.tls_rig import PROLOGUE, Rig, names

pytest_plugins = ["tests.kernel.tls_fixtures"]

LIBRARIES = sorted(Path("/usr/lib").glob("*-linux-gnu/libssl.so.3")) + sorted(
    Path("/usr/lib").glob("*-linux-gnu/libssl.so.1.1")
)


@pytest.mark.parametrize("rig", [("tcp",)], indirect=True)
def test_the_socket_is_known(rig: Rig, certs: Path) -> None:
    pid, out = rig.run(
        "/usr/bin/python3",
        "-c",
        PROLOGUE
        + """
for i in range(31):
    a, b = pair()
    print(a.getsockname()[1], a.getpeername()[1])
    both(lambda: cc.wrap_socket(a, server_hostname="localhost"), lambda: sc.wrap_socket(b, server_side=True))
""",
        str(certs),
    )
    rows = rig.of(pid)
    pairs = {tuple(map(int, line.split())) for line in out.splitlines()}
    client, server = (rows[np.array(names(rows, "role")) == role] for role in ("client", "server"))
    assert len(client) == len(server) == 31
    assert set(zip(client["sport"].tolist(), client["dport"].tolist(), strict=True)) == pairs
    assert set(zip(server["dport"].tolist(), server["sport"].tolist(), strict=True)) == pairs
    assert (rows["sock_id"] > 0).all()
    assert rig.lost() == 0


@pytest.mark.parametrize("rig", [("tcp",)], indirect=True)
def test_the_socket_of_a_peer_that_reports_nothing(rig: Rig, certs: Path) -> None:
    """It closes at once: the thread sent, and never received."""
    pid, out = rig.run(
        "/usr/bin/python3",
        "-c",
        PROLOGUE
        + """
listener = socket.create_server(("127.0.0.1", 0))
for i in range(13):
    a = socket.create_connection(listener.getsockname())
    print(a.getsockname()[1])
    listener.accept()[0].close()
    try: cc.wrap_socket(a, server_hostname="localhost")
    except OSError: pass
""",
        str(certs),
    )
    rows = rig.of(pid)
    assert names(rows, "result") == ["failed"] * 13
    assert sorted(rows["sport"].tolist()) == sorted(map(int, out.split()))
    assert (rows["sock_id"] > 0).all()


def test_many_threads(rig: Rig, certs: Path) -> None:
    rows = rig.python(
        PROLOGUE
        + """
def many():
    for i in range(13):
        a, b = pair()
        both(lambda: cc.wrap_socket(a, server_hostname="localhost"), lambda: sc.wrap_socket(b, server_side=True))
threads = [threading.Thread(target=many) for _ in range(7)]
for t in threads: t.start()
for t in threads: t.join()
""",
        str(certs),
    )
    assert len(rows) == 2 * 7 * 13
    assert set(names(rows, "result")) == {"ok"}
    assert int(rig.source.control["tls_depth"][0]) == 0
    assert rig.lost() == 0


def test_another_mount_namespace(rig: Rig, certs: Path, tmp_path: Path) -> None:
    """A library that exists only inside the namespace, at a path that means nothing outside."""
    root = tmp_path / "image"
    root.mkdir()
    inside = Path("/mnt")
    for library in (LIBRARIES[0], LIBRARIES[0].with_name(LIBRARIES[0].name.replace("ssl", "crypto"))):
        shutil.copy(library, root / library.name)
    assert not (inside / LIBRARIES[0].name).exists()
    script = (
        PROLOGUE
        + """
time.sleep(0.6)
for i in range(37):
    a, b = pair()
    both(lambda: cc.wrap_socket(a, server_hostname="localhost"), lambda: sc.wrap_socket(b, server_side=True))
assert "/mnt/libssl" in open("/proc/self/maps").read()
"""
    )
    pid, _ = rig.run(
        "unshare",
        "-m",
        "sh",
        "-c",
        f'mount --bind {root} /mnt && LD_LIBRARY_PATH=/mnt exec /usr/bin/python3 -c "$0" "$1"',
        script,
        str(certs),
    )
    rows = rig.of(pid)
    assert len(rows) == 74
    assert set(names(rows, "result")) == {"ok"}
    version = subprocess.run(["openssl", "version"], capture_output=True, text=True, check=True).stdout.split()[1]
    assert set(rows["library_version"].tolist()) == {version.encode()}


def test_a_library_that_was_replaced_before_we_came(certs: Path, tmp_path: Path) -> None:
    """Upgrades unlink the file that running servers still use."""
    for library in (LIBRARIES[0], LIBRARIES[0].with_name(LIBRARIES[0].name.replace("ssl", "crypto"))):
        shutil.copy(library, tmp_path / library.name)
    child = subprocess.Popen(
        [
            "/usr/bin/python3",
            "-c",
            PROLOGUE
            + """
sys.stdin.readline()
for i in range(11):
    a, b = pair()
    both(lambda: cc.wrap_socket(a, server_hostname="localhost"), lambda: sc.wrap_socket(b, server_side=True))
""",
            str(certs),
        ],
        stdin=subprocess.PIPE,
        text=True,
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
    )
    while "libssl" not in Path(f"/proc/{child.pid}/maps").read_text():
        time.sleep(0.02)
    for library in tmp_path.iterdir():
        library.unlink()
    rig = Rig()
    try:
        child.communicate("go\n", timeout=10)
        rig.settle()
        assert len(rig.of(child.pid)) == 22
    finally:
        rig.close()


def test_a_library_that_a_wheel_bundles(rig: Rig, certs: Path, tmp_path: Path) -> None:
    """Under a name with a hash, which is also how it asks for its libcrypto."""
    soname = LIBRARIES[0].name.replace("ssl", "crypto").encode()
    renamed = b"libcrypto-a.so".ljust(len(soname), b"\0")
    copy = tmp_path / f"libssl-81ffa89e{LIBRARIES[0].name.removeprefix('libssl')}"
    copy.write_bytes(LIBRARIES[0].read_bytes().replace(b"\0" + soname + b"\0", b"\0" + renamed + b"\0"))
    shutil.copy(LIBRARIES[0].with_name(soname.decode()), tmp_path / "libcrypto-a.so")
    script = (
        PROLOGUE
        + """
time.sleep(0.6)
for i in range(19):
    a, b = pair()
    both(lambda: cc.wrap_socket(a, server_hostname="localhost"), lambda: sc.wrap_socket(b, server_side=True))
"""
    )
    environment = [f"LD_PRELOAD={copy}", f"LD_LIBRARY_PATH={tmp_path}"]
    pid, _ = rig.run("env", *environment, "/usr/bin/python3", "-c", script, str(certs))
    rows = rig.of(pid)
    assert len(rows) == 38
    assert set(names(rows, "result")) == {"ok"}
    version = subprocess.run(["openssl", "version"], capture_output=True, text=True, check=True).stdout.split()[1]
    assert set(rows["library_version"].tolist()) == {version.encode()}


@pytest.mark.skipif(not shutil.which("node"), reason="no node, a program with OpenSSL linked in")
def test_a_program_with_openssl_linked_in(rig: Rig, certs: Path) -> None:
    pid, _ = rig.run(
        "node",
        "-e",
        """
const tls = require('tls'), fs = require('fs'), d = process.argv[1];
const cert = fs.readFileSync(d + '/cert'), key = fs.readFileSync(d + '/key');
setTimeout(() => {
  const s = tls.createServer({cert, key}, c => c.on('data', x => c.end(x)).on('error', () => {}));
  s.listen(0, '127.0.0.1', () => {
    let left = 17;
    const one = () => {
      const to = {host: '127.0.0.1', port: s.address().port, ca: cert, servername: 'localhost'};
      const c = tls.connect(to, () => c.write('x'));
      c.on('data', () => {}).on('close', () => { if (--left) one(); else s.close(); });
    };
    one();
  });
}, 600);
""",
        str(certs),
    )
    rows = rig.of(pid)
    assert names(rows, "role").count("client") == 17
    assert len(rows) == 34
    assert set(names(rows, "result")) == {"ok"}
    assert (rows["calls"] > 1).all()


def _hits(rig: Rig) -> int:
    return sum(bpf.program_stats(fd)[1] for name, fd in rig.tls.programs.items() if name != "tls_exit")


def test_established_data_is_not_probed(rig: Rig, certs: Path) -> None:
    """10,000 writes and reads, new session tickets, key updates: no program runs."""
    stats = syscall.bpf(32, syscall.attributes(struct.pack("<I", 0)))  # BPF_ENABLE_STATS while the descriptor is open
    assert stats >= 0
    go, here = os.pipe()
    child = subprocess.Popen(
        [
            "/usr/bin/python3",
            "-c",
            PROLOGUE
            + f"""
import os
a, b = pair(); ends = []
both(
    lambda: ends.append(cc.wrap_socket(a, server_hostname="localhost")),
    lambda: ends.append(sc.wrap_socket(b, server_side=True)),
)
c, s = sorted(ends, key=lambda e: e.server_side)
s.send(b"x"); c.recv(9)
print("up", flush=True); os.read({go}, 1)
for i in range(10000): c.send(b"hello"); assert s.recv(9) == b"hello"
print("done", flush=True); os.read({go}, 1)
""",
            str(certs),
        ],
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[go],
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        rig.settle()
        before, mine = _hits(rig), len(rig.of(child.pid))
        others = len(rig.rows())
        os.write(here, b"x")
        assert child.stdout.readline() == "done\n"
        rig.settle()
        assert (before > 0, mine, len(rig.of(child.pid))) == (True, 2, 2)
        assert _hits(rig) - before <= 12 * (
            len(rig.rows()) - others
        )  # other programs of this host may shake hands meanwhile
    finally:
        os.write(here, b"xx")
        child.wait(10)
        for fd in (stats, go, here):
            os.close(fd)
        if child.stdout:
            child.stdout.close()


FOREIGN = """
#include <stdlib.h>
#include <unistd.h>
struct ssl { int calls, fails; };
__attribute__((noinline)) int SSL_do_handshake(struct ssl *s)
{ usleep(100); s->calls++; return s->fails ? 0 : s->calls < 2 ? -1 : 1; }
__attribute__((noinline)) int SSL_connect(struct ssl *s) { int r = SSL_do_handshake(s); usleep(100); return r; }
__attribute__((noinline)) void SSL_free(struct ssl *s) { free(s); }
int main(void)
{
	usleep(700000);
	for (int i = 0; i < 10; i++) {
		struct ssl *s = calloc(1, sizeof(*s));
		s->fails = i >= 7;
		while (SSL_connect(s) < 0)
			usleep(1000);
		if (!s->fails)
			SSL_do_handshake(s);
		SSL_free(s);
	}
	return 0;
}
"""


def test_a_library_that_is_not_quite_openssl(rig: Rig, tmp_path: Path) -> None:
    """Explicit handshakes by the exported functions, each once though one calls the other; and the state says what is
    missing.
    """
    (tmp_path / "foreign.c").write_text(FOREIGN)
    subprocess.run(["gcc", "-O1", "-rdynamic", "-o", tmp_path / "foreign", tmp_path / "foreign.c"], check=True)
    pid, _ = rig.run(tmp_path / "foreign")
    rows = rig.of(pid)
    assert names(rows, "result") == ["ok"] * 7 + ["failed"] * 3
    assert set(names(rows, "role")) == {"client"}
    assert rows["calls"].tolist() == [2] * 7 + [1] * 3
    assert (rows["duration_ns"][:7] >= rows["in_call_ns"][:7] + 1_000_000).all()
    assert any(
        "handshakes inside SSL_read and SSL_write are not seen" in one["reason"]
        for one in rig.targets.unprobed_programs.reported()
    )
