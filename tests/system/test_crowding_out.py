"""What any user may map and run, made to take all that the agent has for files: it goes on, says what it left out, and
still sees what root's programs do.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from agent.binaries.gopcln import magics
from tests.patience import PATIENCE, until
from tests.servers.certificates import self_signed
from tests.system.agent import Agent
from tests.unit.hostile_elf import elf, note

LIBSSL = next(iter(sorted(Path("/usr/lib").glob("*-linux-gnu/libssl.so.3"))))
NOBODY = "import ctypes, os, sys\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
#: Maps a page of each file as code so many times, as the user nobody, and says so.
MAPPER = f"""{NOBODY}
mmap = ctypes.CDLL(None, use_errno=True).mmap
mmap.argtypes, mmap.restype = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long], ctypes.c_void_p
for path in sys.argv[2:]:
    fd = os.open(path, os.O_RDONLY)
    for _ in range(int(sys.argv[1])):
        at = mmap(None, 4096, {mmap.PROT_READ | mmap.PROT_EXEC}, {mmap.MAP_PRIVATE}, fd, 0)
        assert at != ctypes.c_void_p(-1).value
    os.close(fd)
print("mapped", flush=True); sys.stdin.read()
"""
#: With this limit a user has a share of 64 probe descriptors; a library takes four.
FILES, DESCRIPTORS = 60, 512
#: pause(2), for ever.
PAUSE = b"\xb8\x22\x00\x00\x00\x0f\x05\xeb\xf7"


@contextmanager
def running(*command: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A program that has said what it has to say; it ends with its input."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


@contextmanager
def mapping(times: int, paths: list[Path]) -> Iterator[int]:
    with running(sys.executable, "-c", MAPPER, str(times), *paths) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "mapped\n"
        yield child.pid


@contextmanager
def asked_all_the_time(agent: Agent) -> Iterator[list[float]]:
    """How long each answer of the agent took, in seconds; a question has 20 s."""
    took: list[float] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(0.02):
            begun = time.monotonic()
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(20 * PATIENCE)
                sock.connect(str(agent.run_dir / "control.sock"))
                sock.sendall(b"status\n")
                text = b"".join(iter(lambda: sock.recv(1 << 16), b""))
            assert json.loads(text)["pid"]
            took.append(time.monotonic() - begun)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield took
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Open to the user nobody, as pytest's own is not."""
    made = Path(tempfile.mkdtemp(prefix="tickscope-test-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def shake(tmp_path: Path) -> Callable[[Agent], int]:
    """Three handshakes of root's openssl with the system's library; how many of them the agent saw."""
    key, certificate = self_signed(tmp_path)

    def make(agent: Agent) -> int:
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = int(found.getsockname()[1])
        with running(
            "openssl", "s_server", "-quiet", "-accept", f"127.0.0.1:{port}", "-key", key, "-cert", certificate
        ):
            client = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}"]
            for _ in range(3):
                until(lambda: subprocess.run(client, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0)
        return len(agent.rows("tls_handshake", f"role = 'client' AND dport = {port} AND result = 'ok'", 3))

    return make


def copies(folder: Path, count: int) -> list[Path]:
    made = [folder / str(i) / LIBSSL.name for i in range(count)]
    for path in made:
        path.parent.mkdir()
        shutil.copy(LIBSSL, path)
    return made


def whole(agent: Agent) -> None:
    status = agent.status()
    assert status["helper"] == "running"
    assert status["sources"] == []
    assert {p["state"] for p in status["probes"]} - {"off"} == {"attached"}
    assert "Traceback" not in agent.log()


def test_a_user_who_maps_many_libraries_takes_only_his_share_of_the_descriptors(
    start: Callable[..., Agent], folder: Path, shake: Callable[[Agent], int]
) -> None:
    agent = start(wrap=("prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}")).ready()
    paths = copies(folder, FILES)
    with ExitStack() as stack:
        for at in range(0, FILES, 4):
            stack.enter_context(mapping(1, paths[at : at + 4]))
        agent.until(
            lambda: any("share of probe descriptors is used up" in p["reason"] for p in agent.status()["programs"])
        )
        assert shake(agent) == 3
        analysis = agent.status()["analysis"]
        assert analysis["probe_descriptors"] <= analysis["probe_descriptors_limit"] * 3 // 4
        assert len(os.listdir(f"/proc/{agent.process.pid}/fd")) < DESCRIPTORS * 5 // 6  # some 300 are its own
        rows = agent.rows("probe_status", "probe = 'tls:libssl.so.3'", 1)
        assert any("user 65534's share" in r["reason"] and "LimitNOFILE" in r["remedy"] for r in rows)
    whole(agent)
    assert "EMFILE" not in agent.log() and "Too many open files" not in agent.log()


def test_programs_that_take_long_to_examine_hold_nobody_up(
    start: Callable[..., Agent], folder: Path, shake: Callable[[Agent], int]
) -> None:
    """500 empty segments and 120,000 function tables of Go: run by nobody, eight times."""
    data = note().ljust(64, b"\0") + magics(1)[0] * 120_000
    content = bytearray(elf(data + PAUSE, [(4096 * i, 0, 0) for i in range(500)]))
    struct.pack_into("<Q", content, 24, 0x400000 + len(data))
    agent = start().ready()
    with asked_all_the_time(agent) as took, ExitStack() as stack:
        children = []
        for number in range(8):
            path = folder / f"hostile{number}"
            path.write_bytes(bytes(content) + bytes([number]))
            path.chmod(0o755)
            children.append(
                stack.enter_context(running(sys.executable, "-c", f"{NOBODY}os.execv(sys.argv[1], sys.argv[1:])", path))
            )
        assert shake(agent) == 3
        agent.until(
            lambda: (
                {f"limiter:hostile{number}" for number in range(8)} <= {p["probe"] for p in agent.status()["programs"]}
            )
        )
        assert [child.poll() for child in children] == [None] * len(children)
    assert max(took) < 5 * PATIENCE  # it was 46 s a file: this is no measure of speed
    whole(agent)


@pytest.mark.parametrize("system", [False, True])
def test_a_library_that_is_mapped_60_000_times_costs_nobody_else_a_probe(
    start: Callable[..., Agent], folder: Path, shake: Callable[[Agent], int], system: bool
) -> None:
    """His own copy while the agent runs; the system's before it starts."""
    path = LIBSSL.resolve() if system else copies(folder, 1)[0]
    with ExitStack() as stack:
        if system:
            stack.enter_context(mapping(60_000, [path]))
        agent = start().ready()
        if not system:
            stack.enter_context(mapping(60_000, [path]))
            agent.until(lambda: any("mapp" in p["reason"] for p in agent.status()["programs"]))
        assert shake(agent) == 3
        whole(agent)
    assert shake(agent) == 3
    whole(agent)
