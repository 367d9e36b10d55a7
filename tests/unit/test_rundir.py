"""The run directory: what a process of the service's user may do to it, and what comes back. As root, with the user
nobody for the service's.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import AgentError
from agent.posix import directories
from agent.posix.rundir import RunDirectory

NOBODY = 65534
NAMES = ("control.sock", "intake.seq.sock", "intake.sock", "intake.stream.sock", "notices.sock")


@pytest.fixture
def place() -> Iterator[Path]:
    """In a directory that anybody may enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as above:
        Path(above).chmod(0o755)
        yield Path(above) / "run"


@pytest.fixture
def secret(place: Path) -> Path:
    """A file that only root may read."""
    file = place.with_name("secret")
    file.write_text("root's")
    file.chmod(0o600)
    return file


def stream() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def untouched(secret: Path) -> bool:
    found = secret.stat()
    return (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, 0, 0o600)


def test_sockets_have_owner_and_mode_from_the_first(place: Path) -> None:
    directory = RunDirectory(str(place), NOBODY, NOBODY)
    kept = [
        directory.listen("control.sock", 0o660, socket.SOCK_STREAM, 4),
        directory.bind("intake.sock", 0o666, stream),
    ]
    assert os.geteuid() == os.getegid() == 0
    found = {p.name: (p.stat().st_uid, stat.S_IMODE(p.stat().st_mode)) for p in place.iterdir()}
    assert found == {"control.sock": (NOBODY, 0o660), "intake.sock": (NOBODY, 0o666)}
    assert (place.stat().st_uid, stat.S_IMODE(place.stat().st_mode)) == (NOBODY, 0o755)
    directory.clear()
    assert not list(place.iterdir())
    del kept


@pytest.mark.parametrize("kind", ["symlink", "link"])
def test_names_that_lead_to_root_s_files_are_refused_and_they_stay_root_s(place: Path, secret: Path, kind: str) -> None:
    place.mkdir()
    os.chown(place, NOBODY, NOBODY)
    for name in NAMES:
        getattr(os, kind)(secret, place / name)
    directory = RunDirectory(str(place), NOBODY, NOBODY)
    for name in NAMES:
        with pytest.raises(AgentError, match="is not a socket"):
            directory.bind(name, 0o666, stream)
    assert untouched(secret)


SWAPPER = """
import contextlib, os, sys
directory, secret, names = sys.argv[1], sys.argv[2], sys.argv[3:]
os.chdir(directory)
os.setgid(65534); os.setuid(65534)
print("ready", flush=True)
while True:
    for name in names:
        for make in (os.symlink, os.link):
            with contextlib.suppress(OSError):
                make(secret, name + ".new")
                os.rename(name + ".new", name)
"""


def test_swapping_names_at_any_time_gains_nothing(place: Path, secret: Path) -> None:
    """A process of that user puts links in the place of every name, over and over, while root starts again and
    again.
    """
    RunDirectory(str(place), NOBODY, NOBODY)
    swapper = subprocess.Popen(
        [sys.executable, "-c", SWAPPER, str(place), str(secret), *NAMES, "hot-1.tsl"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert swapper.stdout is not None
        assert swapper.stdout.readline() == "ready\n"
        for _ in range(300):
            directory = RunDirectory(str(place), NOBODY, NOBODY)
            for name in NAMES:
                try:
                    directory.bind(name, 0o666, stream).close()
                except AgentError:
                    continue
            directory.clear()
            os.close(directory.fd)
            assert untouched(secret)
    finally:
        swapper.kill()
        swapper.wait()


def test_a_hard_link_of_root_s_file_in_the_store_is_not_given_away(place: Path, secret: Path) -> None:
    store = place.with_name("store")
    store.mkdir()
    (store / "hot-00000001.tsl").touch()
    os.chown(store, NOBODY, NOBODY)
    os.link(secret, store / "hot-00000002.tsl")
    os.symlink(secret, store / "sealed-00000003")
    os.close(directories.prepare(str(store), 0o750, NOBODY, NOBODY))
    assert untouched(secret)
    assert (store / "hot-00000001.tsl").stat().st_uid == NOBODY


def answers(path: Path) -> bool:
    with stream() as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
        return True


def test_what_was_removed_comes_back_and_its_reader_is_told(place: Path) -> None:
    directory = RunDirectory(str(place), NOBODY, NOBODY)
    first = directory.listen("control.sock", 0o660, socket.SOCK_STREAM, 4)
    heard: list[socket.socket] = []
    directory.moved("control.sock", heard.append)
    directory.mend()
    assert not heard
    (place / "control.sock").unlink()
    assert not answers(place / "control.sock")
    directory.mend()
    assert len(heard) == 1
    assert answers(place / "control.sock")
    assert (place / "control.sock").stat().st_uid == NOBODY
    os.chown(place.parent, NOBODY, NOBODY)
    shutil.rmtree(place)
    directory.mend()
    assert len(heard) == 2
    assert answers(place / "control.sock")
    assert not directory.failures
    assert (place.stat().st_uid, stat.S_IMODE(place.stat().st_mode)) == (NOBODY, 0o755)
    first.close()
    for sock in heard:
        sock.close()


def test_a_socket_that_cannot_be_bound_is_kept_for_the_next_try(place: Path) -> None:
    """Those with a long queue are few: the agent may not make more once it is its own user."""
    made: list[socket.socket] = []

    def make() -> socket.socket:
        made.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        return made[-1]

    directory = RunDirectory(str(place), NOBODY, NOBODY)
    heard: list[socket.socket] = []
    first = directory.bind("intake.sock", 0o666, make)
    directory.moved("intake.sock", heard.append)
    (place / "intake.sock").unlink()
    (place / "intake.sock").write_text("")
    for _ in range(5):
        directory.mend()
    (place / "intake.sock").unlink()
    os.chown(place, 0, 0)  # it may be entered, and nothing be made in it
    for _ in range(5):
        directory.mend()
    assert directory.failures and not heard
    os.chown(place, NOBODY, NOBODY)
    directory.mend()
    assert (made, heard) == ([first, made[1]], made[1:])
    (place / "intake.sock").unlink()
    (place / "intake.sock").write_text("")
    directory.mend()
    directory.clear()
    assert [sock.fileno() >= 0 for sock in made] == [True, True, False]
    for sock in made:
        sock.close()


def test_what_cannot_be_made_again_is_told_with_its_remedy_until_it_can(place: Path) -> None:
    directory = RunDirectory(str(place), NOBODY, NOBODY)
    first = directory.listen("control.sock", 0o660, socket.SOCK_STREAM, 4)
    kept: list[socket.socket] = []
    directory.moved("control.sock", kept.append)
    (place / "control.sock").unlink()
    (place / "control.sock").write_text("")
    directory.mend()
    assert "is not a socket" in directory.failures["control.sock"]
    assert f"rm {place}/control.sock" in directory.failures["control.sock"]
    (place / "control.sock").unlink()
    other = stream()
    other.bind(str(place / "control.sock"))
    directory.mend()
    assert "another user's socket" in directory.failures["control.sock"]
    os.chown(place / "control.sock", NOBODY, NOBODY)
    other.listen()
    directory.mend()
    assert "another agent is running" in directory.failures["control.sock"]
    assert answers(place / "control.sock")
    other.close()
    directory.mend()
    assert not directory.failures
    assert answers(place / "control.sock")
    for sock in (first, *kept):
        sock.close()


def test_a_directory_that_only_root_can_make_is_asked_for(place: Path) -> None:
    """As the agent is once it has given up root: another process, since that is for good."""
    code = """
import os, shutil, socket, sys
from agent.posix.rundir import RunDirectory
directory = RunDirectory(sys.argv[1], 65534, 65534)
kept = [directory.listen("control.sock", 0o660, socket.SOCK_STREAM, 4)]
directory.moved("control.sock", kept.append)
shutil.rmtree(sys.argv[1])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
directory.mend()
print(*directory.failures.values(), flush=True)
sys.stdin.readline()
directory.mend()
print(len(kept), *directory.failures.values(), flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        told = agent.stdout.readline()
        assert "Permission denied" in told
        remedy = told.partition("try: ")[2].strip()
        assert remedy.startswith("install -d -o tickscope")
        subprocess.run(remedy.replace("-o tickscope -g tickscope", "-o nobody -g nogroup").split(), check=True)
        agent.stdin.write("\n")
        agent.stdin.flush()
        assert agent.stdout.readline() == "2\n"
        assert (place / "control.sock").stat().st_uid == NOBODY


KEPT = """
import os, shutil, signal, socket, sys, time
from agent.posix import child, keeper
from agent.posix.rundir import MODE, RunDirectory
directory = RunDirectory(sys.argv[1], 65534, 65534)
directory.keeper = keeper.start(child.fork("kept", keeper.serve), sys.argv[1], MODE, 65534, 65534)
kept = [directory.listen("control.sock", 0o660, socket.SOCK_STREAM, 4)]
directory.moved("control.sock", kept.append)
shutil.rmtree(sys.argv[1])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
def mend():
    before, end = len(kept), time.monotonic() + 20
    while len(kept) == before and not directory.failures and time.monotonic() < end:
        directory.mend()
        time.sleep(0.02)
    print(directory.keeper.pid, len(kept), *directory.failures.values(), flush=True)
mend()
for _ in sys.stdin:
    directory.failures.clear()
    mend()
"""


def test_the_keeper_makes_it_again_where_only_root_can_and_a_dead_one_is_told(place: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KEPT, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        keeper, sockets = agent.stdout.readline().split()
        assert sockets == "2"
        assert {p.name: p.stat().st_uid for p in (place, *place.iterdir())} == {"run": NOBODY, "control.sock": NOBODY}
        assert place.parent.stat().st_uid == 0
        status = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{keeper}/status").read_text().splitlines() if ":\t" in line
        )
        assert (int(status["CapEff"], 16), status["Seccomp"], status["NoNewPrivs"]) == (1 << 1, "2", "1")
        shutil.rmtree(place)
        place.mkdir()  # by root: it is not taken for ours, nor given to anybody
        agent.stdin.write("again\n")
        agent.stdin.flush()
        assert "another user's directory" in agent.stdout.readline()
        assert place.stat().st_uid == 0
        place.rmdir()
        os.kill(int(keeper), signal.SIGKILL)
        agent.stdin.write("again\n")
        agent.stdin.flush()
        assert "the keeper is gone; try: install -d" in agent.stdout.readline()


def test_the_keeper_s_filter_opens_no_file() -> None:
    code = """
import ctypes, os, sys
from agent.posix import keeper, privilege
privilege.drop(65534, 65534, (privilege.CAP_DAC_OVERRIDE,))
privilege.allow_only((*keeper._X86_CALLS, 1), {keeper._X86_OPENAT: (2, keeper._OPEN)})
def attempt(what):
    try:
        what()
        return "done"
    except OSError as error:
        return error.strerror
flags = (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_TMPFILE, os.O_PATH)
tried = [attempt(lambda f=f: os.open(sys.argv[1], f)) for f in flags] + [attempt(lambda: os.chmod(sys.argv[1], 0o777)), attempt(lambda: os.unlink(sys.argv[1]))]
tried += [attempt(lambda: os.open("/root", keeper._OPEN))]
os.write(1, ", ".join(tried).encode())
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code, "/etc/shadow"], capture_output=True, text=True)
    assert done.stdout == ", ".join(["Operation not permitted"] * 6 + ["done"]), done.stderr
