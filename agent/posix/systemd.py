"""Notifies systemd that the service is ready, alive, or stopping (sd_notify(3)): a datagram to $NOTIFY_SOCKET. Does
nothing without systemd.
"""

from __future__ import annotations

import contextlib
import os
import socket


class Systemd:
    """Reads what systemd passed to this process, and removes it from the environment, so that children do not answer
    for it.

    ``watchdog``: whether systemd expects a heartbeat (WatchdogSec= of the unit).
    """

    def __init__(self) -> None:
        path, self.watchdog = os.environ.pop("NOTIFY_SOCKET", ""), bool(os.environ.pop("WATCHDOG_USEC", ""))
        os.environ.pop("WATCHDOG_PID", None)
        self._socket: socket.socket | None = None
        if path:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)  # a systemd that does not read must not stop the agent
            with contextlib.suppress(OSError):
                self._socket.connect("\0" + path[1:] if path.startswith("@") else path)

    def ready(self) -> None:
        self._send("READY=1")

    def alive(self, _: int = 0) -> None:
        """Sends a heartbeat, if one is expected. The agent's loop calls it once a second."""
        if self.watchdog:
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _send(self, state: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.send(state.encode())
