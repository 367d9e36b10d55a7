"""Programs in roots that nobody has seen before: their first handshake, and what they are called once they are gone."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agent.batch import make
from agent.kernel import opening
from agent.service.containers import Containers
from agent.targets.asked import FileId
from tests.kernel.conftest import Attached
from tests.kernel.test_tls_results import server
from tests.kernel.tls_rig import Rig, names
from tests.patience import until
from tests.unit.test_mounts import of_the_host

pytest_plugins = ["tests.kernel.tls_fixtures"]


def make_root(root: Path, programs: tuple[str, ...], cache: bool) -> Path:
    """A root with copies of programs and their libraries; cache: listed by its own linker's cache, as in Debian's
    images, or not, as in Alpine's.
    """
    for program in programs:
        for word in [
            program,
            *subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.split(),
        ]:
            if word.startswith("/"):
                copy = root / word.lstrip("/")
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, copy)
    (root / "etc").mkdir()
    if cache:
        subprocess.run(["/sbin/ldconfig", "-r", root], check=True, stderr=subprocess.DEVNULL)
    return root


def probed(rig: Rig, library: Path) -> bool:
    """Whether a library has its probes, also one of an overlay's layer."""
    st = library.stat()
    files = (
        rig.targets.files._files.get(one)
        for one in (FileId(st.st_dev, st.st_ino), FileId(0, st.st_ino, st.st_ctime_ns))
    )
    return any(file is not None and file.instances for file in files)


def taken(rig: Rig, library: Path) -> int:
    """Descriptors that the probes of an inode take, by whatever device it is known."""
    inode = library.stat().st_ino
    return sum(n for id_, file in rig.targets.files._files.items() if id_.inode == inode for _, n in file.taken)


@pytest.mark.parametrize("cache", [True, False])
def test_the_first_handshake_in_a_new_root(rig: Rig, certs: Path, tmp_path: Path, cache: bool) -> None:
    """The shell is the root's first program; openssl, some milliseconds later, has shaken hands before any later look
    could find what it mapped.
    """
    root = make_root(tmp_path / "root", ("/bin/sh", "/usr/bin/openssl", "/bin/sleep"), cache)
    with server(certs) as (_, port):
        command = f"sleep 0.3; exec /usr/bin/openssl s_client -connect 127.0.0.1:{port} < /etc/none"
        (root / "etc/none").touch()
        pid, _ = rig.run("chroot", root, "/bin/sh", "-c", command)
        rows = rig.of(pid)
    assert names(rows, "role") == ["client"]
    assert rows["comm"].tolist() == [b"openssl"]


def test_a_new_root_waits_for_no_elf_analyzer(rig: Rig, certs: Path, tmp_path: Path) -> None:
    """Its libraries are copies of known ones. The look at chroot itself, which the process was before, gets no answer
    here.
    """
    chroot = shutil.copy(shutil.which("chroot") or "", tmp_path)  # no other program of this host has had it examined
    rig.targets.analyzers._processes.clear()
    root = make_root(tmp_path / "root", ("/bin/sh", "/usr/bin/openssl"), cache=True)
    library = next(root.rglob("libssl.so.3"))
    with server(certs) as (_, port):
        command = f"read go; exec /usr/bin/openssl s_client -connect 127.0.0.1:{port}"
        with subprocess.Popen(
            [chroot, root, "/bin/sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        ) as child:
            until(lambda: probed(rig, library), why=lambda: "the library got no probes", turn=rig.pump)
            child.communicate(b"go\n")
        rig.settle()
    assert names(rig.of(child.pid), "role") == ["client"]
    assert rig.targets.analyzers._queue, "chroot was looked at: this shows nothing"


class Mounted:
    """Images of one layer: an overlay each, as containers have it. own: with a libssl that this host has not."""

    def __init__(self, directory: Path, *names: str, own: bool = True) -> None:
        self.layer = make_root(directory / "layer", ("/usr/bin/openssl",), cache=True)
        self.library = next(self.layer.rglob("libssl.so.3"))
        with self.library.open("ab") as file:
            file.write(os.urandom(16 * own))
        self._top, self.images = directory / "top", [directory / name for name in names]
        self._top.mkdir()

    def __enter__(self) -> list[Path]:
        for image in self.images:
            image.mkdir()
            subprocess.run(
                ["mount", "-t", "overlay", "-o", f"ro,lowerdir={self._top}:{self.layer}", "none", image], check=True
            )
        return self.images

    def __exit__(self, *_: object) -> None:
        for image in self.images:
            if image.is_mount():
                subprocess.run(["umount", "-l", image], check=True)


@of_the_host
def test_what_an_image_does_first_is_seen(rig: Rig, certs: Path, tmp_path: Path) -> None:
    """Its libraries get their probes when it is mounted, and it can be unmounted at once."""
    mounted = Mounted(tmp_path, "image", "again")
    with mounted as (image, again), server(certs) as (_, port):
        until(lambda: probed(rig, mounted.library), why=lambda: "the library got no probes", turn=rig.pump)
        before = taken(rig, mounted.library)
        pids = [
            rig.run("chroot", root, "/usr/bin/openssl", "s_client", "-connect", f"127.0.0.1:{port}")[0]
            for root in (image, again)
        ]
        assert names(rig.of(pids[0]), "role") == names(rig.of(pids[1]), "role") == ["client"]
        assert taken(rig, mounted.library) == before > 0, "the same inode has its probes more than once"
        subprocess.run(["umount", image], check=True)
        subprocess.run(["umount", again], check=True)


def unified() -> Path:
    line = next(line for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in line)
    return Path(line.split()[4])


def look_up(number: int) -> str:
    fd = opening.open_cgroup(number)
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def test_the_container_of_a_process_that_is_gone(attach: Callable[..., Attached]) -> None:
    """Known by its cgroup from its start on: both are gone when its rows come."""
    attached = attach("exec")
    containers, container = Containers(look_up), "5eaf00d5" * 8
    started: list[np.ndarray] = []
    attached.source.subscribe("exec_events", started.append)
    attached.source.subscribe("exec_events", containers.on_exec)
    scope = unified() / f"docker-{container}.scope"
    inner = scope / "init"
    inner.mkdir(parents=True)
    try:
        child = subprocess.Popen(["sh", "-c", f"echo 0 > {inner}/cgroup.procs; exec true"])
        child.wait()
        attached.pump()
    finally:
        inner.rmdir()
        scope.rmdir()
    procs = np.concatenate(started)
    (cgroup,) = procs["cgroup_id"][(procs["pid"] == child.pid) & (procs["comm"] == b"true")].tolist()
    assert not Path(f"/proc/{child.pid}").exists()
    later = make("tcp_connect", 1, pid=child.pid + 1, proc_start_ns=1, cgroup_id=cgroup)
    containers.fill(later)
    assert later.rows["container_id"].tolist() == [container.encode()]
