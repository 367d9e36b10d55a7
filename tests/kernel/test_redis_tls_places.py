"""What is kept of processes whose OpenSSL is read for Redis: gone with another program, with the file, with the
setting; and no more of it with each attempt.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from agent.binaries.openssl import facts
from agent.config import Config
from agent.kernel import bpf
from agent.kernel.attaching import attach_uprobe, knows_processes
from agent.kernel.loader import load_program
from agent.service.redis_said import appliers
from agent.targets.asked import FileId
from tests.kernel.test_redis_tls import CLIENT, TlsRig, counted, rigged, running, serving, told

pytest_plugins = ["tests.kernel.tls_fixtures"]

#: As CLIENT; a line "exec" makes it another program, "load PATH" has it map a library, "close" ends its connections.
MORE = CLIENT.replace(
    "    key, count = line.split()\n",
    """    key, count = line.split()
    if key == "exec":
        import os
        os.execvp("sleep", ["sleep", count])
    if key == "load":
        import ctypes
        kept = ctypes.CDLL(count)
        print("[]", flush=True)
        continue
    if key == "close":
        client.close()
        print("[]", flush=True)
        continue
""",
)
LIBSSL = next(Path("/usr/lib").glob("*/libssl.so.3"))


def place(rig: TlsRig, path: Path) -> FileId | None:
    """Of a file that is known to have an OpenSSL."""
    inode = path.stat().st_ino
    return next((file for file in rig.tls._libraries if file.inode == inode), None)


def kept(rig: TlsRig, pid: int) -> int:
    """Connections of interest that the kernel's side counts."""
    value = bpf.lookup(rig.tls._processes, struct.pack("<I", pid), 24)
    return struct.unpack("<iiIIII", value)[-1] if value else -1


def test_another_program_in_the_same_process_is_another(tmp_path: Path, certs: Path) -> None:
    with serving(tmp_path, certs) as server, rigged(server.tls_port) as rig, running(MORE, server, certs) as client:
        rig.reads(client.child.pid)
        log = client.decide("rate:a", 7)
        assert told(rig.take(7)) == counted(log) and kept(rig, client.child.pid) == 1
        assert rig.targets.shares.used > 0 and "1 processes" in rig.loaded.families["redis_tls"].reason
        assert client.child.stdin
        client.child.stdin.write("exec 60\n")
        client.child.stdin.flush()
        rig.until(lambda: client.child.pid not in rig.tls._users)
        assert not rig.tls._connections.read()[0].size and kept(rig, client.child.pid) == -1
        assert "0 processes" in rig.loaded.families["redis_tls"].reason


def test_a_server_by_its_name_at_once(tmp_path: Path) -> None:
    """Without a search through all processes, which anybody could have made again and again."""
    name = tmp_path / "redis-server"
    shutil.copy("/bin/sleep", name)
    with rigged(1) as rig, subprocess.Popen([name, "60"]) as child:
        rig.until(lambda: child.pid in rig.tls._users and rig.tls._users[child.pid].server, 2)
        child.kill()
        rig.until(lambda: child.pid not in rig.tls._users)


def test_a_library_that_cannot_be_probed_costs_nothing_again_and_again(tmp_path: Path, certs: Path) -> None:
    other = tmp_path / "libssl.so.3"
    shutil.copy(LIBSSL, other)
    with serving(tmp_path, certs) as server, rigged(server.tls_port) as rig, running(MORE, server, certs) as client:
        rig.reads(client.child.pid)
        one = rig.tls._users[client.child.pid]
        client.decide("rate:a", 3)
        assert len(rig.take(3)) == 3 and kept(rig, one.pid) == 1
        before = rig.targets.shares.used
        client.decide("load", str(other))  # type: ignore[arg-type]
        rig.until(lambda: place(rig, other) is not None)
        odd = place(rig, other)
        assert odd
        library = rig.tls._libraries[odd]
        rig.tls._libraries[odd] = library._replace(data={"write": 1 << 40})
        for _ in range(5):
            one.next_ns = 0
            rig.pump()
        assert len(one.links) == 1 and "no probes" in one.why
        assert rig.targets.shares.used <= before + 2  # what the other families have of the file
        assert kept(rig, one.pid) == 1
        log = client.decide("rate:b", 7)
        assert told(rig.take(7)) == counted(log)
        client.decide("close", 0)
        rig.until(lambda: kept(rig, one.pid) == 0)


def test_a_file_that_was_written_to_gets_no_probes(tmp_path: Path, certs: Path) -> None:
    """Where nobody tells of it, as of a file that the agent may not read."""
    other = tmp_path / "libssl.so.3"
    shutil.copy(LIBSSL, other)
    text = (
        "import ctypes, socket, sys; kept = ctypes.CDLL(sys.argv[1]); print(flush=True); input(); s ="
        " socket.create_connection(('127.0.0.1', int(sys.argv[2]))); input()"
    )
    with serving(tmp_path, certs) as server, rigged(server.tls_port) as rig:
        argv = [sys.executable, "-c", text, str(other), str(server.tls_port)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdin and child.stdout and child.stdout.readline() == b"\n"
            rig.until(lambda: place(rig, other) is not None)
            rig.targets.files.writes.close()
            with other.open("r+b") as file:
                file.seek(0, os.SEEK_END)
                file.write(b"\0")
            child.stdin.write(b"\n")
            child.stdin.flush()
            rig.until(lambda: child.pid in rig.tls._users and "written to" in rig.tls._users[child.pid].why)
            assert not rig.tls._users[child.pid].links
            child.kill()


def test_nothing_is_attached_while_limiters_are_off(tmp_path: Path, certs: Path) -> None:
    with serving(tmp_path, certs) as server, rigged(server.tls_port) as rig, running(CLIENT, server, certs) as client:
        rig.reads(client.child.pid)
        use = appliers([rig.wire, rig.tls])["redis_limiters"]
        off = Config(redis_limiters="off")
        use(off)
        client.decide("rate:a", 5)
        rig.pump()
        assert not rig.tls._users and rig.loaded.families["redis_tls"].reason == "redis_limiters is off"
        use(dataclasses.replace(off, redis_limiters="on", redis_decisions_per_s=20_000))
        assert "0 processes" in rig.loaded.families["redis_tls"].reason
        rig.reads(client.child.pid)
        client.decide("rate:a", 1)
        rig.take(0)
        log = client.decide("rate:b", 7)
        assert told(rig.take(7)) == counted(log)


@pytest.mark.skipif(not knows_processes(), reason="links know processes since Linux 6.10")
def test_a_probe_for_one_process_is_never_one_for_all(tmp_path: Path) -> None:
    """A program that was not loaded for such links: without them a perf event would be for everybody."""
    other = tmp_path / "libssl.so.3"
    shutil.copy(LIBSSL, other)
    program = load_program(bytes.fromhex("b7000000000000009500000000000000"), "nothing", 2)  # r0 = 0; exit
    with other.open("rb") as file:
        found = facts([file.fileno()])
        assert found
        with pytest.raises(OSError) as refused:
            attach_uprobe(program, file.fileno(), [found["free"]], ret=False, pid=os.getpid())
    os.close(program)
    assert refused.value.errno == errno.EINVAL
