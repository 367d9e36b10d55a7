"""A machine whose clocks nobody moves: not one report, however busy it is and however often its clocks are read.

20 s here; TICKSCOPE_TEST_QUIET_S=1800 makes it half an hour.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from agent.columns import NULL_I64
from agent.tables import TABLES
from tests.kernel.clock_rig import PROLOGUE, Rig

QUIET_S = float(os.environ.get("TICKSCOPE_TEST_QUIET_S", "20"))

#: Reads the clocks and the discipline in every way there is, in bursts, until its input ends; prints when it could not
#: run for 0.15 s.
READER = """
import json, select
gaps, last = [], time.clock_gettime_ns(time.CLOCK_BOOTTIME)
while not select.select([sys.stdin], [], [], 0.01)[0]:
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    if now - last > 150_000_000: gaps.append((last, now))
    last = now
    for _ in range(20):
        assert libc.adjtimex(timex()) >= 0 and libc.ntp_adjtime(timex()) >= 0
        assert libc.clock_adjtime(0, timex()) >= 0 and raw(159, timex()) >= 0
        assert libc.adjtime(None, ctypes.create_string_buffer(16)) == 0
        for clock in (0, 1, 4, 7, 11): time.clock_gettime_ns(clock)
print(json.dumps(gaps))
"""
BUSY = """
import sys, threading
threading.Thread(target=sys.stdin.read).start()
while threading.active_count() > 1: sum(range(10**5))
"""


@pytest.mark.usefixtures("own_clock")
def test_quiet_time_has_no_reports(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    try:
        reader = subprocess.Popen(
            [sys.executable, "-c", PROLOGUE + READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        busy = subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE)
        start = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        rig.settle(QUIET_S)
        busy.communicate(b"")
        gaps = json.loads(reader.communicate("\n")[0])
        rig.settle()
        rows = rig.rows()
        rows = rows[rows["t_ns"] >= start]
        paused = rows["kind"] == TABLES["clock_change"].code(
            "kind", "pause"
        )  # where the machine itself was: the reader stood still too
        seen = [any(begin - 10**9 < t < end + 10**9 for begin, end in gaps) for t in rows["t_ns"].tolist()]
        invented = rows[(np.isin(rows["pid"], (reader.pid, NULL_I64))) & ~(paused & np.array(seen, bool))]
        assert len(invented) == 0, [(r["kind"], r["t_ns"], r["size_ns"], r["modes"]) for r in invented]
        assert rig.notices() == []
        offsets = rig.rows("clock_offset")
        assert len(offsets[offsets["t_ns"] >= start]) >= QUIET_S // 10
        assert not (offsets["cut"][offsets["t_ns"] >= start] == 1).any()
        assert len(rig.history.segments.start_ns) == 1
    finally:
        rig.close()
