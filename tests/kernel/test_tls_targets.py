"""Files found among real processes: offered once, let go of when nobody uses them, and harmless when they are
hostile.
"""

from __future__ import annotations

import mmap
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.kernel.steps import Steps
from agent.targets.asked import ProbeRequest, Target
from tests.kernel.tls_rig import PROLOGUE, Rig
from tests.patience import until

pytest_plugins = ["tests.kernel.tls_fixtures"]

LIBSSL = next(iter(sorted(Path("/usr/lib").glob("*-linux-gnu/libssl.so.*"))))
MAP = f"""
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
m = mmap.mmap(fd, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | {mmap.PROT_EXEC})
print("mapped", flush=True); sys.stdin.readline()
"""


@contextmanager
def mapping(path: Path) -> Iterator[int]:
    """A process that has a file mapped as code; its pid."""
    with subprocess.Popen(
        [sys.executable, "-c", MAP, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "mapped\n"
        yield child.pid
        child.communicate("\n")


def note(take: Callable[[Target], None]) -> ProbeRequest:
    """Asks for files only to see which are offered."""

    def found(target: Target, analysis: object) -> Steps[None]:
        del analysis
        take(target)
        return
        yield

    return ProbeRequest("functions", found, "test", {"names": []})


def full_scan(rig: Rig) -> None:
    """As the agent does every ten seconds; until it is over."""
    rig.targets._full_ns = 1
    rig.settle(0.2)
    until(lambda: not (rig.targets._scan or rig.targets._scans or rig.targets._waiting), turn=rig.pump)


def probes() -> int:
    links = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return sum(
        os.readlink(link) in ("anon_inode:[perf_event]", "anon_inode:bpf_link") for link in links if link.is_symlink()
    )


def test_a_file_is_offered_once_and_let_go_of(rig: Rig, tmp_path: Path) -> None:
    copy, offered = tmp_path / LIBSSL.name, list[str]()
    shutil.copy(LIBSSL, copy)
    rig.targets.library(rb"libssl\.so.*", note(lambda target: offered.append(target.path)))
    before = probes()
    with mapping(copy):
        rig.settle(0.5)
        attached = probes()
        assert attached > before
        with mapping(copy):
            rig.settle(0.5)
            full_scan(rig)
        assert offered.count(str(copy)) == 1
        assert probes() == attached
    for _ in range(3):
        full_scan(rig)
    assert probes() == before
    with mapping(copy):
        rig.settle(0.5)
        assert probes() == attached
    assert offered.count(str(copy)) == 2


def test_hostile_libraries_change_nothing(rig: Rig, certs: Path, tmp_path: Path) -> None:
    good = LIBSSL.read_bytes()
    before = probes()
    for number, content in enumerate(
        (b"\x7fELF" + bytes(8000), good[:70000], good[:64] + b"\xff" * 8000, b"libssl" * 2000)
    ):
        bad = tmp_path / f"libssl.so.{number}"
        bad.write_bytes(content)
        with mapping(bad):
            rig.settle(0.3)
    assert probes() == before
    assert rig.tls.state == "attached"
    reported = {one["reason"]: one for one in rig.targets.unprobed_programs.reported()}
    for number in (1, 2):  # the others are neither programs nor libraries
        reason = next(
            reason for reason in reported if reason.startswith(f"{tmp_path}/libssl.so.{number} (used by python")
        )
        assert reported[reason]["state"] == "unavailable"
    rows = rig.python(
        PROLOGUE
        + "a, b = pair(); both(lambda: cc.wrap_socket(a, server_hostname='localhost'), lambda: sc.wrap_socket(b,"
        " server_side=True))",
        str(certs),
    )
    assert len(rows) == 2


def test_an_executable_is_opened_once_an_exec(rig: Rig, tmp_path: Path) -> None:
    """However often its process is looked at while it grows; and used all the while."""
    copy, offered, opened = tmp_path / "program", list[int](), list[tuple[int, str]]()
    shutil.copy(sys.executable, copy)
    real = rig.attacher.open_proc
    rig.attacher.open_proc = lambda pid, what: (opened.append((pid, what)), real(pid, what))[1]  # type: ignore[method-assign]
    rig.targets.exe(note(lambda target: offered.append(target.pid)))
    grow = "import time\nkept = []\nfor _ in range(8): kept.append(bytes(9_000_000)); time.sleep(0.2)"
    with subprocess.Popen([copy, "-c", grow], env={**os.environ, "PYTHONHOME": sys.base_prefix}) as child:
        while child.poll() is None:
            rig.settle(0.05)
    assert opened.count((child.pid, "maps")) >= 3
    assert opened.count((child.pid, "exe")) == 1
    assert offered.count(child.pid) == 1


def test_a_copy_without_its_libcrypto_does_not_blur_the_version(rig: Rig, certs: Path, tmp_path: Path) -> None:
    """Two files with the same code, of which one tells its version: the code's version is known."""
    copy = tmp_path / LIBSSL.name
    shutil.copy(LIBSSL, copy)
    with mapping(copy) as pid:
        rig.know(pid)
        rows = rig.python(
            PROLOGUE
            + "a, b = pair(); both(lambda: cc.wrap_socket(a, server_hostname='localhost'), lambda: sc.wrap_socket(b,"
            " server_side=True))",
            str(certs),
        )
    assert set(rows["library_version"].tolist()) == {ssl.OPENSSL_VERSION.split()[1].encode()}


def test_a_late_dlopen_is_found(rig: Rig, tmp_path: Path) -> None:
    """A library that is loaded long after the program started is found by the next full scan."""
    copy = tmp_path / LIBSSL.name
    shutil.copy(LIBSSL, copy)
    before = probes()
    script = "import sys\nsys.stdin.readline()\n" + MAP
    with subprocess.Popen(
        [sys.executable, "-c", script, str(copy)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        rig.settle(0.5)
        rig.targets._due.clear()
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "mapped\n"
        assert probes() == before
        full_scan(rig)
        assert probes() > before
        child.communicate("\n")
