"""A small ext4 disk of the run's own: a file behind a loop device, mounted in the run's mount namespace only.

The mount ends with the last process of the namespace, and the device with its mount (it is detached lazily, with
autoclear). A frozen file system keeps both, so ``thaw`` finds it by its device.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import subprocess
import tempfile
from pathlib import Path

SIZE_BYTES = 160 << 20
_FIFREEZE, _FITHAW = 0xC0045877, 0xC0045878
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def make(image: Path) -> None:
    """Makes a new, empty file system in a file. Raises CalledProcessError."""
    with image.open("wb") as file:
        file.truncate(SIZE_BYTES)
    subprocess.run(
        ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,nodiscard", "-m", "0", str(image)],
        check=True,
        capture_output=True,
    )


def attach(image: Path) -> str:
    """Returns its loop device. Raises CalledProcessError."""
    return subprocess.run(
        ["losetup", "--find", "--show", str(image)], check=True, capture_output=True, text=True
    ).stdout.strip()


def mount(device: str, place: Path) -> None:
    """Mounts it in the mount namespace of the caller."""
    subprocess.run(["mount", "-o", "noatime", device, str(place)], check=True, capture_output=True)


def devices(image: Path) -> list[str]:
    """Loop devices of the file."""
    done = subprocess.run(
        ["losetup", "--noheadings", "--output", "NAME", "--associated", str(image)],
        check=False,
        capture_output=True,
        text=True,
    )
    return done.stdout.split()


def freeze(place: Path) -> None:
    """Writes wait until the file system is thawed. Raises OSError."""
    _ioctl(place, _FIFREEZE)


def unfreeze(place: Path) -> None:
    _ioctl(place, _FITHAW)


def _ioctl(place: Path, request: int) -> None:
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(fd, request, 0)
    finally:
        os.close(fd)


def thaw(image: Path) -> None:
    """Works from outside the run's mount namespace, whether frozen or not. Raises OSError."""
    for device in devices(image) if image.exists() else ():
        place = Path(tempfile.mkdtemp(prefix="thaw-", dir=image.parent))
        if subprocess.run(["mount", device, str(place)], check=False, capture_output=True).returncode == 0:
            try:
                unfreeze(place)
            except OSError:
                pass  # was not frozen
            finally:
                _libc.umount2(str(place).encode(), _MNT_DETACH)
        place.rmdir()


def detach(image: Path) -> None:
    """Frees its devices. Raises OSError while one is in use."""
    for device in devices(image) if image.exists() else ():
        done = subprocess.run(["losetup", "--detach", device], check=False, capture_output=True, text=True)
        if done.returncode:
            raise OSError(done.stderr.strip())
    if image.exists() and devices(image):
        raise OSError(f"{image} is still mounted")
