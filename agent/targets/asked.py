"""What is asked of files, and what is offered to who asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agent.binaries.contract import Analysis, Instance
from agent.kernel.steps import Steps


class Owner(NamedTuple):
    """Who brought a file: a process (0: the host itself), its real user, and its name for people."""

    pid: int
    uid: int
    comm: str = ""

    def __str__(self) -> str:
        return f"used by {self.comm or '?'}, pid {self.pid}" if self.pid else "of this host"


HOST = Owner(0, 0)


def owner_of(pid: int) -> Owner:
    """By the real user: a process may make /proc/PID belong to root. Raises OSError, ValueError, IndexError."""
    with open(f"/proc/{pid}/status", "rb", buffering=0) as status:
        head = status.read(1024).decode(errors="replace")
    return Owner(pid, int(head.split("\nUid:", 1)[1].split(None, 1)[0]), head[6 : head.index("\n")])


class FileId(NamedTuple):
    """Identity of a file while it is in use: an inode has its uprobes, whatever is written to it.

    A file of an overlay's layer is one inode in all containers, each of which tells another device: its ctime tells it
    apart instead, and the device is 0.
    """

    device: int
    inode: int
    ctime_ns: int = 0


class Stamp(NamedTuple):
    """Changes when the content does. Nobody can set ctime."""

    mtime_ns: int
    ctime_ns: int
    size: int


@dataclass
class Target:
    """A file that is offered. pid: 0 for one that no process maps yet; path: as the process sees it; fd: closed
    afterwards.
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
        """Counts what its probes take of the owner's share: so many links, or as many perf events as places where there
        are no links. Raises NoPlaceError.
        """
        self._take(links, places)


#: Opens an instance of an analysis of the file; None where there is nothing to keep.
Found = Callable[[Target, Analysis], Steps[Instance | None]]


@dataclass(frozen=True)
class ProbeRequest:
    """What is asked of files. analysis: the analyzer (agent.binaries.analyses.KINDS); found: opens an instance of each
    analysis that it makes; probe: the family, for what is told.

    wanted: whether a file of this path is to be examined at all.
    companion: (stem, name): a library that belongs to it lies beside it, with ``name`` where its name has ``stem``; its
    descriptor is examined too.
    """

    analysis: str
    found: Found
    probe: str
    arguments: dict[str, Any] = field(default_factory=dict)
    companion: tuple[bytes, bytes] | None = None
    #: File names to ask for in a root that does not list its libraries.
    names: tuple[bytes, ...] = ()
    #: Whether it goes first in a new root: what it is about, a short-lived program does once.
    first: bool = False
    wanted: Callable[[str], bool] = lambda path: True

    @property
    def question(self) -> tuple[str, str]:
        """What its facts depend on, beside the files."""
        return self.analysis, repr(sorted(self.arguments.items()))
