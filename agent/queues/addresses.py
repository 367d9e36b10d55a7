"""Addresses of brokers that are known by name, without waiting for the name service."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

from agent.common.address import peer_bytes

_AGAIN_S = 60.0
_PATIENCE_S = 0.1  # the first time, since most names are known at once


class Addresses:
    """Looks names up on threads of its own: a name service that hangs must not delay a poll."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], list[bytes]] = {}
        self._asked_s: dict[tuple[str, int], float] = {}

    def peer(self, host: str, port: int) -> bytes | None:
        """The address (agent/columns.py: ``peer``); None while it is unknown. Of several, the one to which this process
        has a connection, else the first.
        """
        with contextlib.suppress(OSError):
            return peer_bytes(host, port)
        now_s = time.monotonic()
        if now_s - self._asked_s.get((host, port), -_AGAIN_S) >= _AGAIN_S:
            self._asked_s[host, port] = now_s
            thread = threading.Thread(target=self._look_up, args=(host, port), name=f"looks up {host}", daemon=True)
            thread.start()
            thread.join(_PATIENCE_S)
        found = self._found.get((host, port), [])
        if len(found) > 1:
            connected = _connected()
            found = [one for one in found if one in connected] or found
        return found[0] if found else None

    def _look_up(self, host: str, port: int) -> None:
        with contextlib.suppress(OSError, UnicodeError):
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            self._found[host, port] = list(dict.fromkeys(peer_bytes(str(one[4][0]), port) for one in found))


def _connected() -> set[bytes]:
    """The other ends of this process's TCP connections."""
    peers = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
            if one.family in (socket.AF_INET, socket.AF_INET6):
                peers.add(peer_bytes(*one.getpeername()[:2]))
    return peers
