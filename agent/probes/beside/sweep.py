"""Has requests looked at whose answer was not seen yet: one that is not answered, or not even read, is no event. See
bpf/tcp_service.h and bpf/unix.bpf.c.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from agent.kernel.bpf import OwnRun
from agent.kernel.ring import SharedArray

if TYPE_CHECKING:
    from agent.batch import Batch
    from agent.kernel.load import Family

EVERY_NS = 500_000_000
#: A look costs two microseconds.
MOST = 256


class RequestSweep:
    """A source without rows: its program adds to those of the family. Where the kernel does not run programs for us, it
    gives up, and the family says so.

    by_place: whether the program is given a place of NAME_asking; else what stands there.
    """

    def __init__(self, family: Family, name: str, by_place: bool = False) -> None:
        self.name, self._program = f"{name}.sweep", f"on_{name}_sweep"
        self._family, self._by_place = family, by_place
        self._asking = SharedArray(family.maps[f"{name}_asking"], "<u8").values
        self._run = OwnRun(family.programs[self._program], 1)
        self._next_ns = self._from = 0

    def fds(self) -> list[int]:
        return []

    def drain(self, now_ns: int) -> Iterable[Batch]:
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + EVERY_NS
            try:
                self._look()
            except OSError as error:
                self._next_ns = 1 << 62
                self._family.trouble(
                    self._program, f"{self._program}: {error} (not seen: requests that wait, until they are answered)"
                )
        return ()

    def _look(self) -> None:
        """At most ``MOST`` of them; those after them the next time."""
        places = taken(self._asking)
        turn = np.roll(places, -int(np.searchsorted(places, self._from)))[:MOST]
        for place in turn.tolist():
            sk = int(self._asking[place])
            self._run.args[0] = place if self._by_place else sk
            if not self._run() and self._asking[place] == sk:
                self._asking[place] = 0
        if len(turn):
            self._from = int(turn[-1]) + 1

    def close(self) -> None: ...


def taken(shared: np.ndarray) -> np.ndarray:
    """The places that are not 0. Of a copy: the kernel writes meanwhile, and numpy raises where their number
    changes.
    """
    return np.flatnonzero(shared.copy())
