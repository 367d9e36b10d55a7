"""Ctrl-C while the system call probes are measured: the thread that is blocked then does not keep the process from
ending.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]

#: Interrupted ever earlier until the thread is left in its write, which nobody will read.
PROGRAM = """
import signal, threading, time
import numpy as np
from agent.probes.syscalls import _block_both_ways
names = "flags_first", "flags_again", "flag_mask", "calibrate_nr", "calibrate_tid"
tune = np.zeros(1, [(name, "<u8") for name in names])
signal.signal(signal.SIGALRM, signal.default_int_handler)
for turn in range(1000):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.003 * 0.9 ** (turn % 20))
        _block_both_ways(tune, 1)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        time.sleep(0.05)
        if threading.active_count() > 1:
            print("left one", flush=True)
            break
"""


def test_a_thread_that_is_left_in_its_write_does_not_hold_up_the_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=20 * PATIENCE,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("left one\n", "", 0)
