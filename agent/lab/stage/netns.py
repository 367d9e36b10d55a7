"""Anonymous network namespaces: a namespace lives as long as something in it does, so nothing is left behind.

Sockets made inside ``entered()`` stay in the namespace, in whatever thread they are used later; so do programs started
there. Needs CAP_SYS_ADMIN and iproute2.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> None:
    """Raises OSError if a call of the C library failed."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


class Namespace:
    """A new network namespace with its loopback up. ``inode`` is its number as in the column netns. Raises OSError."""

    def __init__(self) -> None:
        failure: list[OSError] = []

        def make() -> None:
            try:
                checked(_libc.unshare(CLONE_NEWNET), "unshare")
                self.fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                failure.append(error)

        thread = threading.Thread(target=make)  # unshare changes the calling thread for good
        thread.start()
        thread.join()
        if failure:
            raise failure[0]
        self.inode = os.fstat(self.fd).st_ino
        self.run("ip", "link", "set", "lo", "up")

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The calling thread is in the namespace within the block."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            checked(_libc.setns(self.fd, CLONE_NEWNET), "setns")
            try:
                yield
            finally:
                checked(_libc.setns(home, CLONE_NEWNET), "setns")
        finally:
            os.close(home)

    def run(self, *command: str) -> str:
        """Standard output of a program run inside. Raises CalledProcessError."""
        with self.entered():
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def close(self) -> None:
        os.close(self.fd)
