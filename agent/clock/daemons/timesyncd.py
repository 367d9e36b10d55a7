"""systemd-timesyncd, as far as it shows its state without D-Bus. Server, offset and stratum are on D-Bus only.

It touches /run/systemd/timesync/synchronized at each successful answer (systemd-timesyncd(8), since 239). It
disciplines the clock through the kernel's loop (ADJ_OFFSET with maxerror 0; timesyncd-manager.c). So the kernel's
pending offset, frequency and maximum error are timesyncd's estimate. A container does not see that file: there the
kernel's state decides.
"""

from __future__ import annotations

import os

from agent.clock import sample, timex
from agent.clock.daemons.report import DaemonReport

STAMP = "/run/systemd/timesync/synchronized"
#: There where systemd runs (sd_booted(3)).
SYSTEMD = "/run/systemd/system"


def read_state() -> DaemonReport:
    """Its report now. Raises OSError if the clocks cannot be read."""
    reading, state = sample.read(), timex.read()
    try:
        updated = os.stat(STAMP).st_mtime_ns
    except FileNotFoundError:
        updated = 0
    visible = os.path.isdir(SYSTEMD)
    synchronised = (bool(updated) or not visible) and not state.status & timex.STA_UNSYNC
    leap = "insert" if state.status & timex.STA_INS else "delete" if state.status & timex.STA_DEL else "none"
    why = "timesyncd's server, stratum and root distance are only on D-Bus; offset and bound are the kernel's"
    if not synchronised:
        why = (
            "the kernel calls its clock unsynchronised"
            if updated or not visible
            else "timesyncd has reached no server since it started"
        )
    return DaemonReport(
        "timesyncd",
        state="synchronised" if synchronised else "unsynchronised",
        t_ns=reading.t_ns,
        offset_ns=state.offset_ns if synchronised else None,
        distance_ns=state.maxerror_us * 1000 if synchronised else None,
        leap=leap if synchronised else "unsynchronised",
        last_update_wall_ns=updated or None,
        freq_ppb=state.freq_ppb,
        real_raw_ns=reading.real_mono_ns + reading.mono_raw_ns,
        boot_mono_ns=reading.boot_mono_ns,
        reason=why,
    )
