"""Attaches programs that cost too much to run all the time, for a short window each second."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from agent.common.clocks import boot_ns
from agent.common.pace import interval_of
from agent.contracts import Due, Finishing, Pending

if TYPE_CHECKING:
    from agent.batch import Batch
    from agent.kernel.helper_client import Helper
    from agent.kernel.loaded_families import Family

_BUSY_TIMES = 3
_REMEDIES = {
    errno.EPIPE: "restart tickscope",
    errno.ETIMEDOUT: "see `tickscope status`: it goes on when the helper answers again",
}


def attach(helper: Helper, *programs: tuple[Family, str]) -> list[int]:
    """Attaches on-demand programs, all of them or none; closing a result detaches one. Raises OSError."""
    return helper.attach_raw_tracepoints(
        [family.programs[function] for family, function in programs],
        [_target(family, function) for family, function in programs],
    )


def _target(family: Family, function: str) -> str:
    program = next(p for p in family.probe.programs if p.function == function)
    return "" if program.kind == "tp_btf" else program.target  # a tp_btf program has its target


def degrade(family: Family, function: str, error: OSError) -> None:
    """Shows in the family's state that the program could not be attached, and what is not observed."""
    loses = next(p.loses for p in family.probe.programs if p.function == function)
    family.problem(
        function,
        f"{function}: attach: {error.strerror or error} (not seen: {loses})",
        _REMEDIES.get(error.errno or 0, ""),
    )


class SamplingWindow(Due, Finishing, Pending):
    """The sampling window, a source of the agent's loop: opens once a second, for ``length_ns``. Nothing blocks on its
    end: the loop comes back at ``due_ns``.

    While it is open, no interval of the kernel source ends (``busy``, see ``KernelSource.hold``), so a window lies in
    one interval. A program that cannot be attached is retried each second. Meanwhile its family is degraded; if the
    helper was only busy, from the third failure on.
    """

    name = "window"

    def __init__(self, helper: Helper, length_ns: int) -> None:
        self._helper, self._length_ns = helper, length_ns
        self._programs: list[tuple[Family, str]] = []
        self._opens: list[Callable[[int], None]] = []
        self._closed: list[tuple[Family, Callable[[int], None]]] = []
        self._links: list[int] = []
        self._failed: set[str] = set()
        self._in_a_row: Counter[str] = Counter()
        self._opened_ns = self._last_ns = 0

    def add(
        self,
        family: Family,
        functions: Iterable[str],
        opens: Callable[[int], None] | None = None,
        closed: Callable[[int], None] | None = None,
    ) -> None:
        """Adds those of these programs that the kernel accepted and that are not attached permanently (to a function,
        for lack of a tracepoint). opens: called before, with the start, CLOCK_BOOTTIME ns. closed: called after, with
        the time it was open for all of them, ns.
        """
        self._programs += [(family, f) for f in functions if f in family.programs and f not in family.links]
        self._opens += [opens] if opens else []
        self._closed += [(family, closed)] if closed else []

    @property
    def busy(self) -> bool:
        """Whether it is open."""
        return bool(self._opened_ns)

    @property
    def due_ns(self) -> int:
        """When it must be closed, CLOCK_BOOTTIME; 0 while it is closed."""
        return self._opened_ns + self._length_ns if self._opened_ns else 0

    def pending(self, now_ns: int) -> bool:
        """Whether it is to be opened: with each interval of the kernel source."""
        return bool(self._programs) and not self._opened_ns and interval_of(now_ns) > interval_of(self._last_ns)

    def drain(self, now_ns: int) -> Iterable[Batch]:
        if self._opened_ns:
            if boot_ns() >= self.due_ns:
                self._close()
        elif self._programs and interval_of(now_ns) > interval_of(self._last_ns):
            self._last_ns = now_ns
            self._open()
        return ()

    def finish(self, now_ns: int, wait: Callable[[float], None]) -> Iterable[Batch]:
        """Closes the window early."""
        self._close()
        return ()

    def _open(self) -> None:
        self._opened_ns = boot_ns()
        for call in self._opens:
            call(self._opened_ns)
        self._failed.clear()
        try:
            self._links += attach(self._helper, *self._programs)
        except OSError:
            self._attach_each()
            return
        self._in_a_row.clear()
        for family, function in self._programs:
            family.well(function)

    def _attach_each(self) -> None:
        """Attaches one program after another, so that a failure does not affect the others."""
        for family, function in self._programs:
            try:
                self._links += attach(self._helper, (family, function))
            except OSError as error:
                self._failed.add(family.probe.name)
                self._in_a_row[function] += 1
                if error.errno not in (errno.EAGAIN, errno.ETIMEDOUT) or self._in_a_row[function] >= _BUSY_TIMES:
                    degrade(family, function, error)
            else:
                del self._in_a_row[function]
                family.well(function)

    def _close(self) -> None:
        if not self._opened_ns:
            return
        while self._links:
            os.close(self._links.pop())
        took, self._opened_ns = boot_ns() - self._opened_ns, 0
        for family, closed in self._closed:
            closed(0 if family.probe.name in self._failed else took)

    def close(self) -> None:
        self._close()
