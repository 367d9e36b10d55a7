"""The run directory: its sockets, and what a process of the service's user may do to it. As root, with the user nobody
for the service's.
"""

from __future__ import annotations

import os
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
