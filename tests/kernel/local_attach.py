"""Opens /proc files and attaches uprobes in the test's own process (root), with the methods of the privileged helper."""

from __future__ import annotations

import ctypes as ct
import fcntl
import os
import struct
from collections.abc import Iterable
from pathlib import Path

_PMU = Path("/sys/bus/event_source/devices/uprobe")
_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}[os.uname().machine]
_ENABLE, _SET_BPF, _CLOEXEC = 0x2400, 0x40042408, 8
_libc = ct.CDLL(None, use_errno=True)
_libc.syscall.restype = ct.c_long


class LocalAttacher:
    """``open_proc`` and ``attach_uprobe`` as the helper has them; ``close`` detaches what the caller has not closed itself."""

    def __init__(self) -> None:
        self._type = int((_PMU / "type").read_text())
        self._ret_bit = int((_PMU / "format/retprobe").read_text().removeprefix("config:"))
        self._links: list[int] = []

    def open_proc(self, pid: int, what: str) -> int:
        """A read-only descriptor of ``exe``, ``maps``, ``root:/path`` or ``map:START-END`` of a process. Raises OSError."""
        kind, _, rest = what.partition(":")
        name = {"root": f"root/{rest.lstrip('/')}", "map": f"map_files/{rest}"}.get(kind, what)
        return os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def attach_uprobe(self, program_fd: int, file_fd: int, offsets: Iterable[int], ret: bool = False) -> list[int]:
        """One perf event per file offset; closing it detaches. Raises OSError."""
        path = ct.create_string_buffer(f"/proc/self/fd/{file_fd}".encode())
        links = []
        for offset in offsets:
            attr = struct.pack("<IIQ32xQQQ", self._type, 128, int(ret) << self._ret_bit, 0, ct.addressof(path), offset).ljust(128, b"\0")
            fd = _libc.syscall(_PERF_EVENT_OPEN, ct.create_string_buffer(attr, 128), -1, 0, -1, _CLOEXEC)
            if fd < 0:
                raise OSError(ct.get_errno(), f"uprobe at {offset:#x}: {os.strerror(ct.get_errno())}")
            self._links.append(fd)
            links.append(fd)
            fcntl.ioctl(fd, _SET_BPF, program_fd)
            fcntl.ioctl(fd, _ENABLE, 0)
        return links

    def close(self) -> None:
        for fd in self._links:
            link = Path(f"/proc/self/fd/{fd}")
            if link.is_symlink() and os.readlink(link) == "anon_inode:[perf_event]":
                os.close(fd)
        self._links.clear()
