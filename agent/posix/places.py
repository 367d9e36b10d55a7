"""Places that users share, so that no user can take all of them: connections of the sockets that anybody may connect
to. Pure, standard library only.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Generic, TypeVar

T = TypeVar("T")
#: A user other than root and the agent's own has at most this part of the places; as much is kept for those two.
_PART = 4


class Places(Generic[T]):
    """Who holds which of them. Where others want some too, the user who holds most gives up the newest of its own.

    Users may come in crowds (a range of /etc/subuid), so that a bound for each of them alone would not do.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.share = limit, limit // _PART
        self._own = {0, os.geteuid()}
        self._held: dict[int, list[T]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def enter(self, uid: int, one: T) -> T | None:
        """Gives ``one`` a place where it may have one. Returns who has to go for it: nobody (None), another, or ``one``
        itself.
        """
        mine, ordinary = len(self._held.get(uid, ())), {u: h for u, h in self._held.items() if u not in self._own}
        leaves = None
        if uid in self._own:
            if len(self) >= self.limit:
                return one
        elif mine >= self.share:
            return one
        elif len(self) >= self.limit or sum(map(len, ordinary.values())) >= self.limit - self.share:
            most = max(ordinary, key=lambda u: len(ordinary[u]), default=uid)
            if len(ordinary.get(most, ())) <= mine + 1:
                return one
            leaves = ordinary[most][-1]
            self.leave(most, leaves)
        self._held.setdefault(uid, []).append(one)
        return leaves

    def leave(self, uid: int, one: T) -> None:
        held = self._held[uid]
        held.remove(one)
        if not held:
            del self._held[uid]


def peer(sock: socket.socket) -> tuple[int, int]:
    """(pid, uid) of who connected. Raises OSError."""
    pid, uid, _ = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid
