"""What probes request of files, and the files that are offered to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agent.binaries.contract import Analysis, Instance
from agent.kernel.steps import Steps


class Owner(NamedTuple):
    """The process that uses a file (pid 0: the host itself), its real uid, and its name for display."""

    pid: int
    uid: int
    comm: str = ""

    def __str__(self) -> str:
        return f"used by {self.comm or '?'}, pid {self.pid}" if self.pid else "of this host"


HOST = Owner(0, 0)


def owner_of(pid: int) -> Owner:
    """The owner is the real user, since a process can make /proc/PID belong to root. Raises OSError, ValueError,
    IndexError.
    """
    with open(f"/proc/{pid}/status", "rb", buffering=0) as status:
        head = status.read(1024).decode(errors="replace")
    return Owner(pid, int(head.split("\nUid:", 1)[1].split(None, 1)[0]), head[6 : head.index("\n")])


class FileId(NamedTuple):
    """Identity of a file while it is in use. Uprobes belong to the inode, also after the content has changed.

    A file in a layer of an overlay is one inode in all containers, but each container reports another device. Such a
    file is identified by its ctime, and its device is 0.
    """

    device: int
    inode: int
    ctime_ns: int = 0


class Stamp(NamedTuple):
    """Changes when the content does. A program cannot set ctime."""

    mtime_ns: int
    ctime_ns: int
    size: int


@dataclass
class Target:
    """A file that is offered. pid: 0 if no process maps it yet; path: as the process sees it; fd: closed after the
    offer.
    """

    owner: Owner
    path: str
    fd: int
    file: FileId
    _take: Callable[[int, int], None]

    @property
    def pid(self) -> int:
        return self.owner.pid

    def reserve(self, links: int, places: int) -> None:
        """Charges the descriptors of its probes to the owner's share: ``links``, or ``places`` perf events where the
        kernel has no multi-uprobe links. Raises NoPlaceError.
        """
        self._take(links, places)


#: Opens an instance for an analysis of the file; None where nothing needs to be kept.
Found = Callable[[Target, Analysis], Steps[Instance | None]]


@dataclass(frozen=True)
class ProbeRequest:
    """What a probe requests of files. analysis: the analyzer (agent.binaries.analyses.KINDS); found: opens an instance
    of each analysis that it returns; probe: the family, for reports.

    wanted: whether a file of this path is to be analyzed at all.

    companion: (stem, name) of a library beside this one, with ``name`` where this one's file name has ``stem``. Its
    descriptor is passed to the analyzer, too.
    """

    analysis: str
    found: Found
    probe: str
    arguments: dict[str, Any] = field(default_factory=dict)
    companion: tuple[bytes, bytes] | None = None
    #: File names to try in a root that does not list its libraries.
    names: tuple[bytes, ...] = ()
    #: Whether it goes first in a new root, because a short-lived program makes the probed call only once.
    first: bool = False
    wanted: Callable[[str], bool] = lambda path: True

    @property
    def question(self) -> tuple[str, str]:
        """What the facts depend on, apart from the files."""
        return self.analysis, repr(sorted(self.arguments.items()))
