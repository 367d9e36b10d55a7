"""Files that anybody may run or map, made to hurt whoever examines them: the whole agent lives on, and still finds what
it should.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.binaries.gobuild import INLINE, MAGIC
from tests.system.agent import Agent

SLEEP = Path("/bin/sleep").read_bytes()
LIBSSL = next(iter(sorted(Path("/usr/lib").glob("*-linux-gnu/libssl.so.3"))))
#: Maps a library and keeps it.
MAPPER = "import ctypes, sys, time; ctypes.CDLL(sys.argv[1]); time.sleep(600)"
#: Handshakes in memory, of anonymous ciphers and hence without certificates, twice a second.
SHAKER = """
import ssl, time
def context(side):
    made = ssl.SSLContext(side)
    made.check_hostname, made.verify_mode, made.maximum_version = False, ssl.CERT_NONE, ssl.TLSVersion.TLSv1_2
    made.set_ciphers("aNULL:@SECLEVEL=0")
    return made
client, server = context(ssl.PROTOCOL_TLS_CLIENT), context(ssl.PROTOCOL_TLS_SERVER)
while True:
    a, b = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(a, b), server.wrap_bio(b, a, server_side=True)]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                pass
    time.sleep(0.5)
"""


def field(content: bytes, at: int, form: str, value: int) -> bytes:
    out = bytearray(content)
    struct.pack_into(form, out, at, value)
    return bytes(out)


def sections(content: bytes) -> range:
    """Offsets of the section headers."""
    start, count = struct.unpack_from("<Q", content, 40)[0], struct.unpack_from("<H", content, 60)[0]
    return range(start, start + 64 * count, 64)


def every_section(content: bytes, at: int, form: str, value: int) -> bytes:
    for header in sections(content):
        content = field(content, header + at, form, value)
    return content


def go_that_lies(folder: Path) -> bytes:
    """A program that says it was built by Go, with a text of no end; its data is found by its segment, without section
    headers.
    """
    note = (MAGIC + bytes((8, INLINE))).ljust(32, b"\0") + b"\xff" * 64
    source = (
        f"#include <unistd.h>\nchar note[] __attribute__((aligned(16))) = {{{', '.join(map(str, note))}}};\nint"
        " main(void) { return sleep(600) + note[0]; }"
    )
    subprocess.run(
        ["gcc", "-x", "c", "-Wno-overflow", "-o", folder / "lying", "-"], input=source, text=True, check=True
    )
    return field(field((folder / "lying").read_bytes(), 60, "<H", 0), 40, "<Q", 0)


#: What is run: the kernel looks at program headers only, so these programs all work.
PROGRAMS = {
    "no end of sections": field(SLEEP, 60, "<H", 0xFFFF),
    "sections beyond the file": field(SLEEP, 40, "<Q", (1 << 64) - 64),
    "sections that are this file's header": field(SLEEP, 40, "<Q", 0),
    "sections of all sizes": every_section(SLEEP, 32, "<Q", (1 << 64) - 1),
    "sections before the file": every_section(SLEEP, 24, "<Q", (1 << 64) - 4096),
    "all are symbols of all": every_section(every_section(SLEEP, 4, "<I", 11), 40, "<I", 0),
    "all are relocations": every_section(SLEEP, 4, "<I", 4),
    "names beyond the table": every_section(SLEEP, 0, "<I", 0xFFFFFFFF),
}
#: Of these a terabyte, none of which is stored.
TERABYTES = {"sections of all sizes", "Go that lies"}


@contextmanager
def running(*command: str | bytes, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(command, env={**os.environ, **(env or {})})
    try:
        yield child
    finally:
        child.kill()
        child.wait()


@pytest.fixture
def agent(start: Callable[..., Agent]) -> Agent:
    return start().ready()


def analyzed(agent: Agent, library: Path, seconds: float = 40) -> list[dict[str, object]]:
    """Handshakes of a process that uses this copy of OpenSSL, which nobody has seen before."""
    with running(sys.executable, "-c", SHAKER, env={"LD_LIBRARY_PATH": str(library.parent)}) as child:
        return agent.rows("tls_handshake", f"pid = {child.pid} AND result = 'ok'", 2, seconds)


def intact(agent: Agent) -> None:
    """All processes are there, nothing is left out, and the loop turns."""
    status = agent.status()
    assert {p["role"] for p in status["processes"]} == {"agent", "clock watch", "helper"}, agent.log()
    assert status["helper"] == "running"
    assert "left out" not in agent.log()
    assert {p["probe"] for p in status["probes"] if p["state"] not in ("attached", "off")} <= {"tls"}


def test_programs_made_to_hurt(agent: Agent, tmp_path: Path) -> None:
    """Section headers of all kinds of nonsense, some in files of a terabyte; then a new copy of OpenSSL is found as
    ever.
    """
    tmp_path.chmod(0o755)
    memory = agent.status()["processes"][0]["pss_bytes"]
    children = []
    try:
        for name, content in {**PROGRAMS, "Go that lies": go_that_lies(tmp_path)}.items():
            path = tmp_path / name
            path.write_bytes(content)
            if name in TERABYTES:
                os.truncate(path, 1 << 40)
            path.chmod(0o755)
            children.append(subprocess.Popen([path, "600"]))
        time.sleep(1)
        assert [child.poll() for child in children] == [None] * len(children)
        copy = tmp_path / "lib" / LIBSSL.name
        copy.parent.mkdir()
        copy.write_bytes(LIBSSL.read_bytes())
        assert analyzed(agent, copy, 90)
    finally:
        for child in children:
            child.kill()
            child.wait()
    intact(agent)
    assert agent.status()["processes"][0]["pss_bytes"] < memory + (24 << 20)


def test_libraries_made_to_hurt_below_names_that_are_no_text(agent: Agent, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/\xff\xfe \xf0\n\\x"
    os.mkdir(odd)
    good = LIBSSL.read_bytes()
    broken = {
        b"libssl.so": field(good, 60, "<H", 0xFFFF),
        b"libssl.so.1": every_section(good, 32, "<Q", (1 << 63) - 1),
        b"libssl.so.2": every_section(good, 40, "<I", 0xFFFFFFFF),
        b"libssl.so.4": every_section(good, 24, "<Q", 1 << 62),
    }
    paths = []
    for name, content in broken.items():
        paths.append(odd + b"/" + name)
        with open(paths[-1], "wb") as file:
            file.write(content)
    children = [subprocess.Popen([sys.executable, "-c", MAPPER, path]) for path in paths]
    try:
        copy = Path(os.fsdecode(odd)) / LIBSSL.name
        copy.write_bytes(good)
        assert analyzed(agent, copy)
        assert [child.poll() for child in children] == [None] * len(children)
    finally:
        for child in children:
            child.kill()
            child.wait()
    intact(agent)
    assert any("libssl.so" in reported["reason"] for reported in agent.status()["programs"])
    assert agent.stop(signal.SIGINT) == 130
