"""Connections to hosts that are known by name. ``getaddrinfo`` has no time limit: with a name server that does not
answer it waits for half a minute. So it runs on a thread of its own, one for each name.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

AddrInfo = tuple[Any, Any, int, str, Any]  #: an element of what getaddrinfo returns

_pending: dict[tuple[str, int], LookUp] = {}
_lock = threading.Lock()
_STEP_S = 0.01  # between two glances at several look-ups
#: Of getaddrinfo's errors, those of names that do not exist.
_UNKNOWN = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))


class NoAddress(OSError):
    """A name was not resolved. The text says what to do."""


class LookUp(threading.Thread):
    """found: addresses of the host, as getaddrinfo returns them. problem: why there is none; with the next step."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(name=f"looks up {host}", daemon=True)
        self._where = host, port
        self.found: list[AddrInfo] = []
        self.problem = "the DNS server does not answer: see /etc/resolv.conf, resolvectl status"

    def run(self) -> None:
        try:
            self.found = socket.getaddrinfo(*self._where, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            words = getattr(error, "strerror", None) or "no valid name"
            known = isinstance(error, OSError) and error.errno not in _UNKNOWN
            what = "DNS failed" if known else "DNS has no such host"
            see = "see /etc/resolv.conf, resolvectl status" if known else "correct the setting or the zone"
            self.problem = f"{what} ({words}): {see}"
        finally:
            with _lock:
                _pending.pop(self._where, None)

    def wait(self, until_s: float) -> None:
        """Until it has ended, or until this time (time.monotonic)."""
        if self.ident is not None:
            self.join(max(0.0, until_s - time.monotonic()))


def look_up(host: str, port: int) -> LookUp:
    """The look-up of this name that is under way, else a new one. An address needs no thread."""
    new = LookUp(host, port)
    with contextlib.suppress(OSError, UnicodeError):
        new.found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        return new
    with _lock:
        if (one := _pending.get((host, port))) is not None:
            return one
        try:
            new.start()
        except RuntimeError as error:
            new.problem = f"its name was not looked up: {error}"
        else:
            _pending[host, port] = new
    return new


def wait_for_some(some: Sequence[LookUp], until_s: float, more_s: float) -> None:
    """Until one has an address and ``more_s`` have passed since, until all have ended, or until this time
    (time.monotonic).
    """
    while not any(one.found for one in some):
        under_way = next(filter(LookUp.is_alive, some), None)
        left_s = until_s - time.monotonic()
        if under_way is None or left_s <= 0:
            return
        under_way.join(min(left_s, _STEP_S))
    until_s = min(until_s, time.monotonic() + more_s)
    for one in some:
        one.wait(until_s)


def connect(host: str, port: int, until_s: float) -> socket.socket:
    """A TCP connection. until_s: time.monotonic; an address has half of the time that is left, the last one all of it.
    Raises NoAddress, TimeoutError and other OSErrors.
    """
    one = look_up(host, port)
    one.wait(until_s)
    problem: OSError = NoAddress(one.problem)
    addresses = one.found
    for at, (family, kind, protocol, _, where) in enumerate(addresses):
        left_s = (until_s - time.monotonic()) / (2 if at + 1 < len(addresses) else 1)
        if left_s <= 0:
            raise TimeoutError
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # a host without IPv6
            problem = error
            continue
        try:
            sock.settimeout(left_s)
            sock.connect(where)
        except OSError as error:
            sock.close()
            problem = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise problem
