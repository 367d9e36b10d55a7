"""Has Unix sockets looked at that somebody asked by: a request that nobody reads or answers is no event. See bpf/unix.bpf.c."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from agent.kernel.bpf import OwnRun
from agent.kernel.ring import SharedArray
from agent.probes.beside.sweep import EVERY_NS, MOST

if TYPE_CHECKING:
    from agent.batch import Batch
    from agent.kernel.load import Family


class UnixSweep:
    """A source without rows: its program adds to those of the family. Where the kernel does not run programs for us, it gives up, and the family says so."""

    name = "unix.sweep"

    def __init__(self, family: Family) -> None:
        self._family = family
        self._asking = SharedArray(family.maps["unix_asking"], "<u8").values
        self._run = OwnRun(family.programs["on_unix_sweep"], 1)
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
                self._family.trouble("on_unix_sweep", f"on_unix_sweep: {error} (not seen: requests that wait, until they are answered)")  # fmt: skip
        return ()

    def _look(self) -> None:
        """At most ``MOST`` of them; those after them the next time."""
        places = np.flatnonzero(self._asking)
        turn = np.roll(places, -int(np.searchsorted(places, self._from)))[:MOST]
        for place in turn.tolist():
            sk = int(self._asking[place])
            self._run.args[0] = place
            if not self._run() and self._asking[place] == sk:
                self._asking[place] = 0
        if len(turn):
            self._from = int(turn[-1]) + 1

    def close(self) -> None: ...
