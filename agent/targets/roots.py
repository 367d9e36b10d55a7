"""The libraries of a root that was not seen before (a container's image, a chroot), offered at the first program's
start in it.

Probes belong to a file, whoever maps it later: so the libraries get theirs before anybody's dynamic linker has mapped
them, if this is quick enough.
"""

from __future__ import annotations

import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from agent.arch.machine import LIBRARY_FOLDERS
from agent.kernel.limits import FILES_A_PROCESS, LINKER_CACHE_BYTES, ROOTS
from agent.targets.asked import FileId

if TYPE_CHECKING:
    import numpy as np

    from agent.kernel.steps import Steps, Wait
    from agent.targets.asked import ProbeRequest

#: (mount namespace, device and inode of the root directory).
Root = tuple[int, int, int]
#: Where libraries lie by the file system hierarchy and Debian's multiarch, asked for where a root has no linker's
#: cache: Alpine's has none.
FOLDERS = (
    *(b"/usr/lib/" + folder for folder in LIBRARY_FOLDERS),
    b"/usr/lib64",
    b"/usr/lib",
    b"/lib",
    b"/usr/local/lib",
    *(b"/lib/" + folder for folder in LIBRARY_FOLDERS),
    b"/lib64",
)
#: Files of a root are kept for so long after the last new program in it.
KEPT_S = 600.0


class Roots:
    """Which roots are known, by what ``exec_events`` tells. The ``ROOTS`` that were seen last; one beyond is looked at
    again when it comes back.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Root, tuple[float, set[FileId]]] = OrderedDict()
        self._new: dict[int, Root] = {}
        self.see_own()

    def see_own(self) -> None:
        """This process's: its libraries are offered at the start."""
        root = os.stat("/")
        self._own = os.stat("/proc/self/ns/mnt").st_ino, _kernel_device(root.st_dev), root.st_ino

    def on_exec(self, records: np.ndarray) -> None:
        """Takes records of ``struct exec_event``."""
        now = time.monotonic()
        columns = (records["proc"]["pid"], records["mount_namespace"], records["root_device"], records["root_inode"])
        for pid, *root in zip(*(c.tolist() for c in columns), strict=True):
            key = (root[0], root[1], root[2])
            if key == self._own:
                continue
            if key in self._known:
                self._known[key] = now, self._known[key][1]
                self._known.move_to_end(key)
            else:
                self._known[key] = now, set()
                self._new[pid] = key
        while len(self._known) > ROOTS:
            self._known.popitem(last=False)
        while len(self._new) > ROOTS:
            self.forget(self.take(next(iter(self._new))))

    def waiting(self) -> list[int]:
        """Processes that were the first in a new root, which nobody has taken yet."""
        return list(self._new)

    def take(self, pid: int) -> Root | None:
        """The new root that this process was the first in; once."""
        return self._new.pop(pid, None)

    def forget(self, root: Root | None) -> None:
        """It could not be looked at: the next program in it is its first."""
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
    """Paths in a root that may be asked for, the most urgent first (``ProbeRequest.first``): what its linker's cache
    lists, else what usually lies where. opening: of ``helper.open_proc``, of a process in it.
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
    """As the kernel keeps it (MKDEV), of what stat tells."""
    return os.major(device) << 20 | os.minor(device)
