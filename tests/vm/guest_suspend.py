"""Suspends the VM to RAM for some seconds, prints as one line of JSON what was reported of it, and ends the machine
with the status that it is given.

The last thing that a machine does: its files do not survive, since Linux's 9p driver does not restore its device.
Whatever is needed afterwards is in memory by then: it ran once before, and is locked.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
import termios
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from agent.clock import sample
from agent.tables import TABLES
from tests.kernel.clock_rig import Rig

SLEEP_S = 5
#: For the rest: who needs a file after the suspend waits for ever.
PATIENCE_S = 120
COLUMNS = ("size_ns", "err_ns", "real_mono_before_ns", "real_mono_after_ns", "pid")


def reported(rig: Rig, since: int) -> list[dict[str, object]]:
    """The rows since then."""
    kinds = TABLES["clock_change"].by_name["kind"].names
    return [{"kind": kinds[r["kind"]], **{name: int(r[name]) for name in COLUMNS}} for r in rig.rows()[since:]]


def check() -> dict[str, int]:
    """All clocks, and how far BOOTTIME is ahead of MONOTONIC."""
    return {**sample.read()._asdict(), "rtc_s": int(Path("/sys/class/rtc/rtc0/since_epoch").read_text())}


def end(status: TextIO, trigger: TextIO, code: str) -> None:
    """Ends the machine, as tests/vm/init does, once what was written has left the serial lines."""
    status.write(f"status {code}\n")
    for line in (sys.stdout, status):
        termios.tcdrain(line.fileno())
    trigger.write("b\n")


def main() -> None:
    rig = Rig(Path(tempfile.mkdtemp()))
    with ExitStack() as opened:
        alarm, state, *ends = (
            opened.enter_context(open(path, "w", buffering=1))
            for path in ("/sys/class/rtc/rtc0/wakealarm", "/sys/power/state", "/dev/ttyS2", "/proc/sysrq-trigger")
        )
        time.clock_settime_ns(time.CLOCK_REALTIME, time.time_ns() + 100_000_000)
        rig.settle(2)
        json.dumps([check(), reported(rig, 0), rig.notices()])
        termios.tcdrain(sys.stdout.fileno())
        if not os.fork():
            time.sleep(PATIENCE_S)
            end(*ends, "4")
        assert ctypes.CDLL(None, use_errno=True).mlockall(1) == 0
        rows, before = len(rig.rows()), check()
        alarm.write(f"+{SLEEP_S}\n")
        state.write("mem\n")
        rig.settle(5)
        print(
            json.dumps({"before": before, "after": check(), "rows": reported(rig, rows), "notices": rig.notices()}),
            flush=True,
        )
        end(*ends, sys.argv[1])


if __name__ == "__main__":
    main()
