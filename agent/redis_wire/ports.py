"""Ports of Redis servers on this host, by process titles (``redis-server *:6380``) and arguments (``--port``).

Any user can use such a process name. That costs the reading of traffic to that port, within the budget, and the number
of ports is small.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

#: As in the kernel: cut to 15 bytes. dragonfly's threads have other names, its process does not.
NAMES = frozenset(
    (b"redis-server", b"valkey-server", b"keydb-server", b"dragonfly", b"redis-server-tl", b"redict-server", b"kvrocks")
)
DEFAULT, MOST = 6379, 64
_PROCESSES = 65536
_TITLE = re.compile(rb"[*\d\]:.]:(\d{2,5})(?:\s|\0|$|\[)")
_GIVEN = re.compile(rb"--(?:tls-)?port[\0=\s]+(\d{2,5})")


def servers(proc: Path) -> Iterator[int]:
    """Each process with the name of a Redis server. Reads a file of each of ``_PROCESSES`` processes."""
    for n, entry in enumerate(os.scandir(proc)):
        if n >= _PROCESSES:
            return
        if not entry.name.isdigit():
            continue
        try:
            with open(f"{entry.path}/comm", "rb") as file:
                if file.read(16).rstrip(b"\n") in NAMES:
                    yield int(entry.name)
        except OSError:
            continue


def listening(proc: Path) -> Iterator[int]:
    """Ports of each of them, by its command line."""
    for pid in servers(proc):
        try:
            with open(proc / str(pid) / "cmdline", "rb") as file:
                line = file.read(4096)
        except OSError:
            continue
        for found in (*_TITLE.findall(line), *_GIVEN.findall(line)):
            if 0 < int(found) < 65536:
                yield int(found)


def ports(given: frozenset[int], proc: Path = Path("/proc")) -> frozenset[int]:
    """The ports of the settings, the usual one, and those of processes, up to ``MOST``."""
    found = {DEFAULT} | given
    for port in listening(proc):
        if len(found) >= MOST:
            break
        found.add(port)
    return frozenset(found)
