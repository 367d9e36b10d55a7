"""A disk that can be frozen: ext4 in a file, mounted in a mount namespace of a guard, a process that thaws it whatever
happens to the test.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_CALLS = {"freeze": 0xC0045877, "thaw": 0xC0045878}  # FIFREEZE, FITHAW
_LONGEST_S = 120


class FrozenDisk:
    """``path`` leads there from outside of the namespace. ``freeze`` and ``thaw`` return when it is so."""

    def __init__(self, folder: Path, megabytes: int = 64) -> None:
        self._image, place = folder / "image", folder / "disk"
        place.mkdir()
        with self._image.open("wb") as file:
            file.truncate(megabytes << 20)
        subprocess.run(["mkfs.ext4", "-q", self._image], check=True)
        self._guard = subprocess.Popen(
            ["unshare", "--mount", sys.executable, __file__, str(self._image), str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._answer("mounted")
        self.path = Path(f"/proc/{self._guard.pid}/root{place}")

    def freeze(self) -> None:
        self._do("freeze")

    def thaw(self) -> None:
        self._do("thaw")

    def close(self) -> None:
        """Thawed, unmounted and detached; at once where an agent still holds it, it is so when that has ended."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(30)
        end = time.monotonic() + 10
        while (
            left := subprocess.run(["losetup", "-j", self._image], capture_output=True, text=True, check=True).stdout
        ) and time.monotonic() < end:
            time.sleep(0.1)
        assert not left

    def _do(self, what: str) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.write(f"{what}\n")
        self._guard.stdin.flush()
        self._answer(what)

    def _answer(self, expected: str) -> None:
        assert self._guard.stdout is not None
        assert self._guard.stdout.readline() == f"{expected}\n"


def _guard(image: str, place: str) -> None:
    """Does what stdin says, and undoes it at its end, or when nothing comes for long."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    subprocess.run(["mount", "-o", "loop", image, place], check=True)
    fd = os.open(place, os.O_RDONLY)
    try:
        print("mounted", flush=True)
        while select.select([0], [], [], _LONGEST_S)[0] and (line := os.read(0, 64).decode().strip()):
            fcntl.ioctl(fd, _CALLS[line], 0)
            print(line, flush=True)
    finally:
        with contextlib.suppress(OSError):  # it is not frozen
            fcntl.ioctl(fd, _CALLS["thaw"], 0)
        os.close(fd)
        subprocess.run(["umount", "-l", place], check=True)


if __name__ == "__main__":
    _guard(*sys.argv[1:])
