"""Which time daemons run on this host, by the names of their processes. Standard library only."""

from __future__ import annotations

import contextlib
import os

#: comm (cut to 15 characters by the kernel) -> name in table clock_daemon
COMMS = {
    b"chronyd": "chrony",
    b"ntpd": "ntpd",
    b"ntpd-rs": "ntpd-rs",
    b"ntp-daemon": "ntpd-rs",
    b"systemd-timesyn": "timesyncd",
    b"phc2sys": "phc2sys",
}


def running() -> dict[str, int]:
    """Name -> pid, one each. Raises OSError without /proc."""
    found: dict[str, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{entry.name}/comm", "rb") as file:  # ended meanwhile
                name = COMMS.get(file.read().rstrip(b"\n"))
                if name:
                    found.setdefault(name, int(entry.name))
    return found
