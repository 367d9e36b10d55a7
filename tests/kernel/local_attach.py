"""Opens /proc files and attaches uprobes in the test's own process (root), by the privileged helper's own code."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from agent.kernel import attaching, opening
from agent.kernel.steps import Steps, Wait, at_once


class LocalAttacher:
    """``open_proc`` and ``attach_uprobe`` as the helper has them; ``close`` detaches what the caller has not closed
    itself. The caller may still close the descriptors: until then they are /dev/null.
    """

    took_s, alive, silent, busy = 0.0, True, False, False

    def __init__(self) -> None:
        self._links: dict[int, str] = {}

    def fds(self) -> list[int]:
        return []

    def pump(self) -> None:
        """All is answered at once."""

    def opening(self, pid: int, what: str) -> Wait:
        """As ``open_proc``."""
        return at_once(lambda: self.open_proc(pid, what))

    def digesting(self, fds: list[int]) -> Wait:
        """As ``digest``."""
        return at_once(lambda: opening.digest(fds))

    def attaching(
        self, program_fd: int, file_fd: int, offsets: list[int], ret: bool = False, pid: int = 0
    ) -> Steps[list[int]]:
        """As ``attach_uprobe``."""
        links: list[int] = yield at_once(lambda: self.attach_uprobe(program_fd, file_fd, offsets, ret, pid))
        return links

    def open_proc(self, pid: int, what: str) -> int:
        """A read-only descriptor of ``exe``, ``maps``, ``root:/path`` or ``map:START-END`` of a process. Raises
        OSError.
        """
        return opening.open_proc(pid, what)

    def attach_uprobe(
        self, program_fd: int, file_fd: int, offsets: Iterable[int], ret: bool = False, pid: int = 0
    ) -> list[int]:
        """Attaches for all processes; closing what is returned detaches. Raises OSError."""
        links = attaching.attach_uprobe(program_fd, file_fd, list(offsets), ret, pid)
        self._links |= {fd: information(fd) for fd in links}
        return links

    def attach_raw_tracepoints(self, program_fds: list[int], names: list[str]) -> list[int]:
        """As ``Helper`` does. Raises OSError."""
        return attaching.attach_raw_tracepoints(program_fds, [name.encode() for name in names])

    def close(self) -> None:
        with open(os.devnull) as null:
            for fd, known in self._links.items():
                if information(fd) == known:  # else the caller closed it, and the number may be another's
                    os.dup2(null.fileno(), fd, inheritable=False)
        self._links.clear()


def information(fd: int) -> str:
    """What the kernel says of an open descriptor: a link's number is in it. Empty if it is not open."""
    try:
        return Path(f"/proc/self/fdinfo/{fd}").read_text()
    except OSError:
        return ""
