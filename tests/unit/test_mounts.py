"""Which directories images are made of, by what the kernel tells of mounts."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.kernel.steps import Wait, at_once, run
from agent.targets.mounts import Layer, Mount, MountWatch, Present, parse

#: The watch is of the host's mounts.
of_the_host = pytest.mark.skipif(
    Path("/proc/self/mountinfo").read_bytes() != Path("/proc/1/mountinfo").read_bytes(),
    reason="this is not the mount namespace of the host",
)
ROOT = Mount("254:0", "/", "/", "ext4", "rw")
DATA = Mount("254:16", "/", "/var/lib/docker", "xfs", "rw")
FRESH = Mount("7:0", "/", "/mnt", "squashfs", "ro")
PAUSE: Wait = at_once(lambda: None)


def layers(
    options: str = "",
    kind: str = "overlay",
    root: str = "/",
    device: str = "0:50",
    point: str = "/run/x/rootfs",
    mounted: tuple[Mount, ...] = (ROOT, DATA),
) -> list[str]:
    new = Mount(device, root, point, kind, options)
    return [layer.folder for layer in Present([*mounted, FRESH, new], lambda mount: mount in mounted).layers(new)]


def test_a_line() -> None:
    line = rb"36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 propagate_from:2 - ext3 /dev/root rw,errors=continue"
    assert parse(line) == Mount("98:0", "/mnt1", "/mnt 2", "ext3", "rw,errors=continue")
    assert parse(b"36 35 98:0 /mnt1 - ext3") is None


def test_layers_of_overlays() -> None:
    assert layers("rw,lowerdir=/var/lib/docker/a:/b,upperdir=/up/diff,workdir=/up/work") == [
        "/up/diff",
        "/var/lib/docker/a",
        "/b",
    ]
    assert layers(r"ro,lowerdir+=/a,lowerdir+=/b\054c,datadir+=/d") == ["/a", "/b,c"]
    assert layers(r"ro,lowerdir=/a\134:b:/c::/data") == ["/a:b", "/c"]
    assert layers("rw,lowerdir=l/AA:l/BB,upperdir=ID/diff", point="/var/lib/docker/overlay2/ID/merged") == [
        "/var/lib/docker/overlay2/ID/diff",
        "/var/lib/docker/overlay2/l/AA",
        "/var/lib/docker/overlay2/l/BB",
    ]
    assert layers("rw,lowerdir=1/fs:2/fs,upperdir=/snapshots/3/fs") == [
        "/snapshots/3/fs",
        "/snapshots/1/fs",
        "/snapshots/2/fs",
    ]


def test_what_lies_on_mounts_that_may_go_is_left_alone() -> None:
    assert layers("ro,lowerdir=/mnt/lower:/a") == ["/a"]
    assert layers("ro,lowerdir=/run/x/rootfs/a:/a") == ["/a"]


def test_bind_mounts() -> None:
    assert layers(kind="ext4", root="/srv/image", device="254:0") == ["/srv/image"]
    assert layers(kind="xfs", root="/overlay2/ID", device="254:16") == ["/var/lib/docker/overlay2/ID"]
    assert layers(kind="ext4", root="/var/lib/docker/hidden", device="254:0") == []  # DATA lies over it
    assert layers(kind="ext4", root="/srv/image", device="8:1") == []
    assert layers(kind="fuse.sshfs", root="/srv/image", device="254:0") == []
    assert layers(kind="ext4", root="/", device="254:0") == []


@pytest.fixture
def watch() -> Iterator[MountWatch]:
    one = MountWatch()
    yield one
    one.close()


def read(watch: MountWatch) -> list[Layer]:
    found: list[list[Layer]] = []
    run(watch.read(PAUSE), lambda value, error: found.append(value))
    return found[0]


@of_the_host
def test_a_mount_is_reported_once(watch: MountWatch, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two", "image", "bound")]
    for folder in folders:
        folder.mkdir()
    one, two, image, bound = folders
    assert watch.changed()
    read(watch)
    assert not watch.changed()
    subprocess.run(["mount", "-t", "overlay", "-o", f"lowerdir={one}:{two}", "none", image], check=True)
    try:
        subprocess.run(["mount", "--bind", one, bound], check=True)
        assert watch.changed() and watch.changed()
        new = read(watch)
        assert new == [Layer(str(one), True), Layer(str(two), True), Layer(str(one), False)]
        assert (
            set(new) <= watch.mounted()
            and watch.overlaid(image.stat().st_dev)
            and not watch.overlaid(one.stat().st_dev)
        )
        assert not watch.changed() and read(watch) == []
    finally:
        subprocess.run(["umount", image], check=True)
        subprocess.run(["umount", bound], check=False)
    assert watch.changed() and read(watch) == [] and not watch.mounted() & set(new)


@of_the_host
def test_a_change_wakes_once(watch: MountWatch, tmp_path: Path) -> None:
    import selectors

    with selectors.DefaultSelector() as loop:
        for fd in watch.fds():
            loop.register(fd, selectors.EVENT_READ)
        loop.select(0)
        subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path], check=True)
        try:
            begun = time.monotonic()
            assert loop.select(5) and time.monotonic() - begun < 1
            assert not loop.select(0.05)
        finally:
            subprocess.run(["umount", tmp_path], check=True)
        assert loop.select(5)


@of_the_host
def test_what_has_been_mounted_lately_is_passing(watch: MountWatch, tmp_path: Path) -> None:
    read(watch)
    subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path], check=True)
    try:
        read(watch)
        assert watch.passing(tmp_path.stat().st_dev)
        assert not watch.passing(Path("/proc").stat().st_dev)
        assert not watch.passing(1)
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_mount_that_lasts_does_so_with_other_options(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path], check=True)
    try:
        watch, device = MountWatch(), tmp_path.stat().st_dev
        read(watch)
        subprocess.run(["mount", "-o", "remount,ro", tmp_path], check=True)
        read(watch)
        assert not watch.passing(device)
        watch.close()
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_mounts_of_any_user_are_not_kept(watch: MountWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: those that come after them are seen."""
    theirs = rb"%d 27 0:90 / /home/her/" + b"x" * 200 + rb"%d rw,nosuid,nodev - fuse.sshfs her@there rw,user_id=1000"
    text = b"".join(theirs % (i, i) + b"\n" for i in range(1000, 30000)) + b"1 1 254:0 / / rw - ext4 /dev/vda rw\n"
    text += b"30001 1 0:91 / /image rw - overlay none ro,lowerdir=/a:/b\n"
    at = [0]

    def part(fd: int, size: int) -> bytes:
        at[0] += 4000
        return text[at[0] - 4000 : at[0]]

    with monkeypatch.context() as patched:
        patched.setattr("agent.targets.mounts.os.read", part)
        assert read(watch) == [Layer("/a", True), Layer("/b", True)]
    assert len(watch._known) == 2
