"""The helper is a process of its own: the agent never waits for it longer than it says, and it is back with its next
answer.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.kernel import helper as server
from agent.kernel.helper_client import Helper, start
from agent.kernel.steps import Wait, pump_until
from agent.posix.child import fork
from tests.patience import until

NOBODY = 65534


@pytest.fixture
def helper(tmp_path: Path) -> Iterator[Helper]:
    one = start(fork("helper", server.serve), NOBODY, NOBODY, str(tmp_path / "settings"))
    yield one
    if one.alive:
        os.kill(one.pid, signal.SIGCONT)
    one.close()


def answer(helper: Helper, wait: Wait, limit_s: float = 10) -> Any:
    got: list[tuple[Any, Exception | None]] = []
    wait(lambda value, error: got.append((value, error)))
    assert pump_until(lambda: bool(got), [helper], limit_s)
    value, error = got[0]
    if error is not None:
        raise error
    return value


def opened(helper: Helper, what: str, pid: int = 0) -> bytes:
    fd = answer(helper, helper.opening(pid or os.getpid(), what))
    with open(fd, "rb") as file:
        return file.read()


def test_it_opens_programs_and_reports_mappings(helper: Helper) -> None:
    assert opened(helper, "exe") == Path(sys.executable).resolve().read_bytes()
    assert opened(helper, "maps").splitlines()[0] == Path("/proc/self/maps").read_bytes().splitlines()[0]
    for what in ("root:/etc/shadow", "root:/etc/passwd", "map:0-1", "environ"):
        with pytest.raises(OSError):
            opened(helper, what)


def test_it_reports_how_much_room_is_left_where_a_process_writes(helper: Helper, tmp_path: Path) -> None:
    there = os.statvfs(tmp_path)
    child = subprocess.Popen(["sleep", "60"], stdout=(tmp_path / "written").open("wb"))
    try:
        lines = [line.split() for line in opened(helper, "spaces", child.pid).splitlines()]
    finally:
        child.kill()
        child.wait()
    assert there.f_blocks * there.f_frsize in [int(line[0]) for line in lines]
    with pytest.raises(OSError):
        opened(helper, "spaces", child.pid)


def test_it_opens_the_settings_that_only_root_may_read(helper: Helper, tmp_path: Path) -> None:
    """Whichever file has the name now; no other user's file, link or FIFO."""
    settings = tmp_path / "settings"
    tmp_path.chmod(0o700)
    for text in ("poll_s: 2", "poll_s: 3"):
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").chmod(0o600)
        (tmp_path / "new").rename(settings)
        with open(answer(helper, helper.opening_settings())) as file:
            assert file.read() == text
    os.chown(settings, NOBODY, NOBODY)
    for make in (lambda: None, lambda: settings.symlink_to("/etc/shadow"), lambda: os.mkfifo(settings)):
        make()
        with pytest.raises(OSError):
            answer(helper, helper.opening_settings())
        settings.unlink()


def test_a_folder_stands_for_a_root(helper: Helper, tmp_path: Path) -> None:
    """Links resolve inside of it, absolute ones too; other mounts below it, and what is neither program nor library,
    are not opened.
    """
    layer, outside = tmp_path / "layer", tmp_path / "outside"
    (layer / "usr/lib").mkdir(parents=True)
    shutil.copy("/bin/true", layer / "usr/lib/libssl.so.3")
    (layer / "usr/lib/notes").write_text("text")
    (layer / "lib").symlink_to("/usr/lib")
    shutil.copy("/bin/true", outside)
    (layer / "usr/lib/other").symlink_to(outside)
    (layer / "usr/lib/mounted").symlink_to("../../proc/self/exe")
    (layer / "proc").mkdir()
    assert opened(helper, f"below:{layer}\0root:/lib/libssl.so.3") == Path("/bin/true").read_bytes()
    subprocess.run(["mount", "--bind", "/proc", layer / "proc"], check=True)
    try:
        for what in (
            "root:/usr/lib/other",
            "root:/usr/lib/notes",
            "root:/usr/lib/mounted",
            "root:/../outside",
            "linker-cache",
            "maps",
            "exe",
        ):
            with pytest.raises(OSError):
                opened(helper, f"below:{layer}\0{what}")
    finally:
        subprocess.run(["umount", layer / "proc"], check=True)
    (layer / "etc").mkdir()
    (layer / "etc/ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1")
    assert opened(helper, f"below:{layer}\0linker-cache")


@pytest.mark.parametrize("order", [1, 2])
def test_core_dumps_and_object_files_are_not_opened(helper: Helper, tmp_path: Path, order: int) -> None:
    """Of all ELF files only executables and shared libraries, in either byte order."""
    for kind, allowed in ((0, False), (1, False), (2, True), (3, True), (4, False), (0xFE00, False)):
        path = tmp_path / f"elf{kind}"
        path.write_bytes(
            b"\x7fELF\x02"
            + bytes([order, 1])
            + bytes(9)
            + kind.to_bytes(2, "little" if order == 1 else "big")
            + bytes(100)
        )
        if allowed:
            assert opened(helper, f"root:{path}")
        else:
            with pytest.raises(OSError, match="Exec format"):
                opened(helper, f"root:{path}")


def test_a_core_dump_of_the_kernel_is_not_opened(helper: Helper, tmp_path: Path) -> None:
    core = tmp_path / "core"
    with subprocess.Popen(["sleep", "60"]) as child:
        time.sleep(0.1)
        made = (
            subprocess.run(["gcore", "-o", str(core), str(child.pid)], capture_output=True, check=False)
            if Path("/usr/bin/gcore").exists()
            else None
        )
        child.kill()
    if made is None or made.returncode:
        pytest.skip("needs gcore")
    with pytest.raises(OSError, match="Exec format"):
        opened(helper, f"root:{next(tmp_path.glob('core.*'))}")


def test_only_regular_files_are_opened(helper: Helper, tmp_path: Path) -> None:
    """Whoever waits for a reader of a FIFO goes on waiting; the same way leads to devices, where to open is to act."""
    fifo = tmp_path / "libssl.so.3"
    os.mkfifo(fifo)
    (tmp_path / "link").symlink_to(fifo)
    with subprocess.Popen([sys.executable, "-c", f"open({str(fifo)!r}, 'wb')"]) as writer:
        wait_channel = Path(f"/proc/{writer.pid}/wchan")
        until(lambda: wait_channel.read_text() == "wait_for_partner")
        for name in (fifo, tmp_path / "link"):
            with pytest.raises(OSError, match="Exec format"):
                opened(helper, f"root:{name}")
        time.sleep(0.1)
        waits = writer.poll() is None
        writer.kill()
    assert waits


def test_stopped_for_long_it_is_back_with_its_next_answer(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request fails at its deadline, others at once; the late answer is dropped, and its descriptor closed."""
    monkeypatch.setattr("agent.kernel.helper_client.DEADLINE_S", 0.3)
    before = len(os.listdir("/proc/self/fd"))
    os.kill(helper.pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        opened(helper, "exe")
    assert helper.silent and helper.alive and helper.busy
    with pytest.raises(TimeoutError, match="does not answer"):
        opened(helper, "maps")
    with pytest.raises(TimeoutError):
        helper.attach_raw_tracepoints([0], ["sys_enter"])
    os.kill(helper.pid, signal.SIGCONT)
    assert pump_until(lambda: not helper.silent, [helper], 10)
    assert opened(helper, "maps").startswith(Path("/proc/self/maps").read_bytes()[:12])
    assert helper.late == 1
    assert pump_until(lambda: len(os.listdir("/proc/self/fd")) <= before, [helper], 10)


def test_what_is_asked_at_once_does_not_wait_for_a_stopped_helper(helper: Helper) -> None:
    os.kill(helper.pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        helper.attach_raw_tracepoints([0], ["sys_enter"])
    assert helper.silent
    os.kill(helper.pid, signal.SIGCONT)
    assert pump_until(lambda: not helper.silent, [helper], 10)
    with pytest.raises(PermissionError):  # its own answer: not a tracepoint that may be asked for
        helper.attach_raw_tracepoints([0], ["sched_process_fork"])


def test_a_dead_one_is_gone(helper: Helper) -> None:
    os.kill(helper.pid, signal.SIGKILL)
    with pytest.raises(BrokenPipeError):
        opened(helper, "exe")
    assert not helper.alive
    with pytest.raises(BrokenPipeError):
        helper.attach_raw_tracepoints([0], ["sys_enter"])


@pytest.mark.parametrize("room", [0, 1, 2])
def test_without_room_for_all_its_descriptors_an_answer_is_an_error(room: int) -> None:
    """The kernel leaves descriptors out of a message where the receiver may have no more."""
    got: list[tuple[Any, Exception | None]] = []
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, open("/dev/null") as file:
        client = Helper(ours, 0)  # whose other end is this test
        client.opening(1, "exe")(lambda value, error: got.append((value, error)))
        number = int.from_bytes(theirs.recv(4096)[:8], "little")
        server.send(theirs, server.REPLY.pack(number, 0, b""), [file.fileno()] * 3)
        next_fd = os.dup(0)
        os.close(next_fd)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_fd + room, hard))
        try:
            client.pump()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        ((_, error),) = got
        assert isinstance(error, OSError) and "Too many open files" in str(error)
        again = os.dup(0)
        os.close(again)
        assert again == next_fd


def test_a_stopped_one_is_ended_at_once() -> None:
    """Though nobody has waited for an answer of it yet."""
    one = start(fork("helper", server.serve), NOBODY, NOBODY, "")
    os.kill(one.pid, signal.SIGSTOP)
    begun = time.monotonic()
    one.close()
    assert time.monotonic() - begun < 0.5
    assert not Path(f"/proc/{one.pid}").exists()


def test_a_process_may_not_be_described_without_end(helper: Helper) -> None:
    """60,000 mappings of a file: what is reported of them is bounded, and the process that looks goes on."""
    script = (
        "import ctypes, os, sys\nfd, libc = os.open('/bin/true', os.O_RDONLY), ctypes.CDLL(None)\nfor i in"
        " range(60000): libc.mmap(None, 4096, 1 | 4 * (i % 2), 2, fd, 0)\nprint('ready', flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        text = opened(helper, "maps", child.pid)
        child.communicate(b"")
    from agent.kernel.opening import MAPS_BYTES

    assert len(text) == MAPS_BYTES
