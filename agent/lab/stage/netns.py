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


def _checked(result: int, what: str) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


class Namespace:
    """A new network namespace with its loopback up. ``inode`` is its number as in the column netns. Raises OSError."""

    def __init__(self) -> None:
        failure: list[OSError] = []

        def make() -> None:
            try:
                _checked(_libc.unshare(CLONE_NEWNET), "unshare")
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
            _checked(_libc.setns(self.fd, CLONE_NEWNET), "setns")
            try:
                yield
            finally:
                _checked(_libc.setns(home, CLONE_NEWNET), "setns")
        finally:
            os.close(home)

    def run(self, *command: str) -> str:
        """Standard output of a program run inside. Raises CalledProcessError."""
        with self.entered():
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def counters(self, prefix: str) -> dict[str, int]:
        """Counters of /proc/net/snmp and netstat whose name starts with ``prefix``, for example ``TcpRetransSegs``."""
        out = {}
        with self.entered():
            for name in ("snmp", "netstat"):
                with open(f"/proc/thread-self/net/{name}") as file:
                    lines = [line.split() for line in file]
                for names, values in zip(lines[::2], lines[1::2], strict=True):
                    kind = names[0].rstrip(":")
                    out.update({kind + n: int(v) for n, v in zip(names[1:], values[1:], strict=True)})
        return {n: v for n, v in out.items() if n.startswith(prefix)}

    def close(self) -> None:
        os.close(self.fd)
