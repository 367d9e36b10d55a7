"""Programs that would cost too much all the time, attached for a short while each second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.batch import Batch
    from agent.kernel.helper import Helper
    from agent.kernel.load import Family

PERIOD_NS = 1_000_000_000


def attach(helper: Helper, family: Family, function: str) -> int:
    """Attaches an on-demand program; closing the result detaches it. Raises OSError."""
    target = next(p.target for p in family.probe.programs if p.function == function)
    return helper.attach_raw_tracepoint(family.programs[function], target)


def degrade(family: Family, function: str, error: OSError) -> None:
    """Says in the family's state that the program could not be attached, and what is not seen now."""
    loses = next(p.loses for p in family.probe.programs if p.function == function)
    said = f"{function}: attach: {error.strerror or error} (not seen: {loses})"
    family.state, family.reason = "degraded", "; ".join(filter(None, (family.reason, said)))


class Window:
    """The window, a source of the agent's loop: opens once a second, and waits ``length_ns`` with it open.

    A program that cannot be attached is left out from then on, and its family is degraded.
    """

    name = "window"

    def __init__(self, helper: Helper, length_ns: int) -> None:
        self._helper, self._length_ns = helper, length_ns
        self._programs: list[tuple[Family, str]] = []
        self._opens: list[Callable[[int], None]] = []
        self._closed: list[Callable[[int], None]] = []
        self._next_ns = 0

    def add(self, family: Family, functions: Iterable[str], opens: Callable[[int], None] | None = None,
            closed: Callable[[int], None] | None = None) -> None:  # fmt: skip
        """Of these programs those that the kernel took and that are not attached already (to a function, for want of a tracepoint). opens: called before with the start, CLOCK_BOOTTIME ns; closed: after, with how long it was open, ns."""
        self._programs += [(family, f) for f in functions if f in family.programs and f not in family.links]
        self._opens += [opens] if opens else []
        self._closed += [closed] if closed else []

    def fds(self) -> list[int]:
        return []

    def drain(self, now_ns: int) -> Iterable[Batch]:
        if self._programs and now_ns >= self._next_ns:
            self._next_ns = now_ns + PERIOD_NS
            self._open()
        return ()

    def _open(self) -> None:
        start = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        for call in self._opens:
            call(start)
        links = []
        for family, function in list(self._programs):
            try:
                links.append(attach(self._helper, family, function))
            except OSError as error:
                self._programs.remove((family, function))
                degrade(family, function, error)
        time.sleep(self._length_ns / 1e9)
        for fd in links:
            os.close(fd)
        took = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - start
        for call in self._closed:
            call(took)

    def close(self) -> None: ...
