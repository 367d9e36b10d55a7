"""Opens /proc files and attaches uprobes in the test's own process (root), by the privileged helper's own code."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from agent.kernel import helper


class LocalAttacher:
    """``open_proc`` and ``attach_uprobe`` as the helper has them; ``close`` detaches what the caller has not closed itself."""

    def __init__(self) -> None:
        self._links: list[int] = []

    def open_proc(self, pid: int, what: str) -> int:
        """A read-only descriptor of ``exe``, ``maps``, ``root:/path`` or ``map:START-END`` of a process. Raises OSError."""
        return helper.open_proc(pid, what)

    def attach_uprobe(self, program_fd: int, file_fd: int, offsets: Iterable[int], ret: bool = False) -> list[int]:
        """Attaches for all processes; closing what is returned detaches. Raises OSError."""
        links = helper.attach_uprobe(program_fd, file_fd, list(offsets), ret)
        self._links += links
        return links

    def attach_raw_tracepoint(self, program_fd: int, name: str) -> int:
        """Attaches to sys_enter or sys_exit. Raises OSError."""
        return helper.attach_raw_tracepoint(program_fd, name.encode())

    def close(self) -> None:
        for fd in self._links:
            link = Path(f"/proc/self/fd/{fd}")
            if link.is_symlink() and os.readlink(link) in ("anon_inode:[perf_event]", "anon_inode:bpf_link"):
                os.close(fd)
        self._links.clear()
