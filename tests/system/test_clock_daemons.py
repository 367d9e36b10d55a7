"""What a time daemon says of the clock wins over the kernel's flag, which chrony leaves alone unless `rtcsync` is
set.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.clock import timex
from tests.cable import Cable
from tests.lab.timedaemons import chronyd
from tests.system.agent import TICKSCOPE, Agent


@pytest.mark.parametrize("server", [True, False])
def test_chrony_reports_whether_it_keeps_the_clock(
    start: Callable[..., Agent], own_clock: None, tmp_path: Path, server: bool
) -> None:
    """It cannot touch the clock here, and so does not tell the kernel either: as without `rtcsync`."""
    kernel = timex.read().synchronised
    with Cable() as wire:
        settings = [f"server {Cable.RIGHT} minpoll 0 maxpoll 0 iburst\nport 0", "port 0"][not server]
        running = [
            chronyd(wire.right, tmp_path, "server", "local stratum 5\nallow\ncmdport 0"),
            chronyd(wire.left, tmp_path, "client", settings),
        ]
        inside = ("nsenter", "-t", str(running[1].process.pid), "-n")
        try:
            agent = start(wrap=inside, config="prometheus: ''\nntp: {daemon_interval: 1s}\n").ready()
            state = "synchronised" if server else "unsynchronised"
            assert agent.some("clock_daemon", f"kind = 'system' and state = '{state}'", 30)
            expected = server or kernel
            row = agent.some("clock_offset", f"synchronised = {expected}")[-1]
            assert (row["synchronised"], row["leap_indicator"] == 3) == (expected, not expected)
            assert agent.status()["clock"]["synchronised"] == expected

            def text(*verb: str) -> str:
                done = subprocess.run([*inside, TICKSCOPE, *verb], env=agent.env, capture_output=True, text=True)
                return next(line for line in done.stdout.splitlines() if line.startswith(("synchronised", "clock,")))

            assert ("NO: no time daemon" in text("clock")) == (not expected)
            assert text("doctor", "-o", "csv").startswith("clock,ok" if expected else "clock,warn")
        finally:
            for daemon in running:
                daemon.stop()
