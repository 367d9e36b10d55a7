"""What systemd hears of a whole agent: a socket of the test's own stands for it."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable

from tests.patience import PATIENCE
from tests.system.agent import Agent


def test_systemd_hears_when_it_is_ready_that_it_lives_and_when_it_stops(start: Callable[..., Agent]) -> None:
    with tempfile.TemporaryDirectory() as place, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"{place}/notify")
        manager.settimeout(60 * PATIENCE)
        agent = start(env={"NOTIFY_SOCKET": f"{place}/notify", "WATCHDOG_USEC": "60000000"})
        assert manager.recv(100) == b"READY=1"
        agent.ready()
        assert [manager.recv(100) for _ in range(2)] == [b"WATCHDOG=1"] * 2
        assert agent.stop() == 130
        reported = []
        while not reported or reported[-1] != b"STOPPING=1":
            reported.append(manager.recv(100))
        assert set(reported[:-1]) <= {b"WATCHDOG=1"}
