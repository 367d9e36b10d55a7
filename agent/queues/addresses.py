"""Addresses of brokers that are known by name, without waiting for the name service."""

from __future__ import annotations

import contextlib
import os
import socket
import time

from agent.common.address import peer_bytes
from agent.common.lookup import LookUp, look_up

#: A name is looked up again after this time; one without an address sooner.
_AGAIN_S, _UNKNOWN_AGAIN_S = 60.0, 5.0
_PATIENCE_S = 0.1  # the first time, since most names are known at once


class Addresses:
    """Looks names up on threads of its own: a name service that hangs must not delay a poll."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], tuple[LookUp, list[bytes]]] = {}  # the last look-up with an address
        self._asked: dict[tuple[str, int], tuple[float, LookUp]] = {}

    def peer(self, host: str, port: int, wait_s: float | None = None) -> bytes | None:
        """The address (agent/columns.py: ``peer``); None while it is unknown. Of several, the one to which this process
        has a connection, else the first. wait_s: for a look-up; None: shortly, and only for the first one.
        """
        with contextlib.suppress(OSError):
            return peer_bytes(host, port)
        at = host, port
        now_s = time.monotonic()
        asked_s, one = self._asked.get(at) or (now_s, None)
        if one is None or now_s - asked_s >= (_AGAIN_S if one.found else _UNKNOWN_AGAIN_S):
            wait_s = _PATIENCE_S if wait_s is None and one is None else wait_s
            one = look_up(host, port)
            self._asked[at] = now_s, one
        if wait_s is not None:
            one.wait(now_s + wait_s)
        used, found = self._found.get(at) or (None, [])
        if one.found and one is not used:
            found = list(dict.fromkeys(peer_bytes(str(info[4][0]), port) for info in one.found))
            self._found[at] = one, found
        if len(found) > 1:
            connected = _connected()
            found = [one for one in found if one in connected] or found
        return found[0] if found else None

    def problem(self, host: str, port: int) -> str:
        """Why ``peer`` does not know the address, with the next step."""
        _, one = self._asked.get((host, port)) or (0.0, None)
        return "its name has no address yet" if one is None else one.problem


def _connected() -> set[bytes]:
    """The other ends of this process's TCP connections."""
    peers = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
            if one.family in (socket.AF_INET, socket.AF_INET6):
                peers.add(peer_bytes(*one.getpeername()[:2]))
    return peers
