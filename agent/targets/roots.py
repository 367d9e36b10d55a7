"""Offers the libraries of a new root (a container's image, a chroot) when the first program in it starts.

Uprobes belong to a file, so the libraries get theirs before a dynamic linker has mapped them, if the agent is quick
enough.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from agent.arch.machine import LIBRARY_FOLDERS
from agent.common.recent import Recent
from agent.kernel.limits import FILES_A_PROCESS, LINKER_CACHE_BYTES, ROOTS
from agent.targets.asked import FileId

if TYPE_CHECKING:
    import numpy as np

    from agent.kernel.steps import Steps, Wait
    from agent.targets.asked import ProbeRequest

#: (mount namespace, device and inode of the root directory).
Root = tuple[int, int, int]
#: The usual library folders (file system hierarchy and Debian's multiarch), for roots without a linker cache, such as
#: Alpine's.
FOLDERS = (
    *(b"/usr/lib/" + folder for folder in LIBRARY_FOLDERS),
    b"/usr/lib64",
    b"/usr/lib",
    b"/lib",
    b"/usr/local/lib",
    *(b"/lib/" + folder for folder in LIBRARY_FOLDERS),
    b"/lib64",
)
#: Files of a root are kept for this long after the last new program in it.
KEPT_S = 600.0


class Roots:
    """The known roots, from ``exec_events``: the last ``ROOTS`` of them. An older root is scanned again when it comes
    back.
    """

    def __init__(self) -> None:
        self._known = Recent[Root, tuple[float, set[FileId]]](ROOTS)
        self._new: dict[int, Root] = {}
        self.note_own()

    def note_own(self) -> None:
        """Notes the root of this process, which needs no scan: its libraries are offered at the start."""
        root = os.stat("/")
        self._own = os.stat("/proc/self/ns/mnt").st_ino, _kernel_device(root.st_dev), root.st_ino

    def on_exec(self, started: np.ndarray) -> None:
        """Takes started programs (``agent.probes.exec.STARTED``)."""
        now = time.monotonic()
        columns = (started[name].tolist() for name in ("pid", "mount_namespace", "root_device", "root_inode"))
        for pid, *root in zip(*columns, strict=True):
            key = (root[0], root[1], root[2])
            if key == self._own:
                continue
            if key not in self._known:
                self._new[pid] = key
            self._known[key] = now, self._known.get(key, (now, set()))[1]
        while len(self._new) > ROOTS:
            self.forget(self.take(next(iter(self._new))))

    def waiting(self) -> list[int]:
        """First processes of new roots that have not been taken yet."""
        return list(self._new)

    def take(self, pid: int) -> Root | None:
        """Returns the new root that this process was the first in, once."""
        return self._new.pop(pid, None)

    def forget(self, root: Root | None) -> None:
        """The root could not be scanned: the next program in it counts as its first."""
        if root is not None:
            self._known.pop(root, None)

    def keep(self, root: Root, file: FileId) -> None:
        if root in self._known:
            self._known[root][1].add(file)

    def used(self) -> set[FileId]:
        """Files of roots in which programs started lately; the other roots are forgotten."""
        end = time.monotonic() - KEPT_S
        for root, (seen_s, _) in list(self._known.items()):
            if seen_s < end:
                del self._known[root]
        self._new = {pid: root for pid, root in self._new.items() if root in self._known}
        return set[FileId]().union(*(files for _, files in self._known.values()))


def libraries(
    opening: Callable[[str], Wait], matching: Callable[[bytes], list[ProbeRequest]], names: tuple[bytes, ...]
) -> Steps[list[bytes]]:
    """Paths to request in a root, the most urgent first (``ProbeRequest.first``): those in its linker cache, else the
    usual ones. opening: of ``helper.open_proc``, for a process in the root.
    """

    def later(path: bytes) -> bool:
        return not any(request.first for request in matching(path))

    try:
        fd = yield opening("linker-cache")
    except FileNotFoundError:
        return sorted([folder + b"/" + name for folder in FOLDERS for name in names], key=later)
    except TimeoutError:
        raise
    except OSError:
        return []
    with open(fd, "rb") as cache:
        text = cache.read(LINKER_CACHE_BYTES)
    return sorted(_listed(text, matching), key=later)[:FILES_A_PROCESS]


def _listed(cache: bytes, matching: Callable[[bytes], list[ProbeRequest]]) -> Iterator[bytes]:
    for path in dict.fromkeys(re.findall(rb"/[^\0\n]{1,250}", cache)):
        if matching(path):
            yield path


def _kernel_device(device: int) -> int:
    """Converts a device number from stat's form to the kernel's (MKDEV)."""
    return os.major(device) << 20 | os.minor(device)
