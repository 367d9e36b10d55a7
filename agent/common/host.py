"""Facts about this host that do not change while it runs."""

from __future__ import annotations

import socket
from pathlib import Path


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def name() -> str:
    return socket.gethostname()
