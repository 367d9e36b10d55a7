"""The host's numbers of threads that reported their own: in a container gettid() counts from 1, and the kernel programs
use the host's numbers.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from agent.columns import NULL_I64
from agent.common.fairness import Budget

MAX_THREADS = 1024  #: threads per process in another pid namespace that are looked up; others stay unknown
MAX_PROCESSES, MAX_NUMBERS = 4096, 65_536  #: cached; the least recently used is removed first
#: Time for reading in each second, of which a user has a quarter. A thread's entry in /proc takes about 30 us, a list
#: of 1,000 takes 1 ms, and the agent's loop waits for it. A reading stops when the time is up; the next one continues
#: from there once the list's time is paid back.
ALL_NS = 8_000_000
_AGAIN_NS = 1_000_000_000


class _Known(NamedTuple):
    """The host's number by the process's own; None if both are equal. read_ns: when it was read, 0 if it was
    incomplete.
    """

    read_ns: int
    numbers: Mapping[int, int] | None

    def due(self, number: int, now_ns: int) -> bool:
        """Whether to look for that thread again."""
        return self.numbers is not None and number not in self.numbers and now_ns - self.read_ns >= _AGAIN_NS


class Threads:
    """Reads a process once, and again once a second for a thread that was not found. ``skipped_reads``: number of
    readings that were skipped for lack of time.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], _Known] = {}
        self._remembered = self.skipped_reads = 0
        self._budget = Budget(ALL_NS, ALL_NS)

    def host(self, pid: int, start_ns: int, uid: int, number: int, now_ns: int) -> int:
        """The host's number of the process's thread with the number ``number`` in its namespace; NULL_I64
        if not found.
        """
        known = self._take((pid, start_ns))
        if known is None or known.due(number, now_ns):
            known = self._read_within_budget(pid, uid, known, now_ns)
            self.skipped_reads += known is None or known.due(number, now_ns)
        if known is None:
            return NULL_I64
        self._keep((pid, start_ns), known)
        return number if known.numbers is None else known.numbers.get(number, NULL_I64)

    def _read_within_budget(self, pid: int, uid: int, known: _Known | None, now_ns: int) -> _Known | None:
        """The numbers after reading within the budget."""
        began_ns = time.monotonic_ns()
        left_ns = int(self._budget.left(uid, began_ns))
        if left_ns <= 0:
            return known
        before = (known.numbers if known else None) or {}
        try:
            known = _read_threads(pid, before, now_ns, left_ns)
        except OSError:  # it has ended
            known = _Known(now_ns, before)
        now_ns = time.monotonic_ns()
        self._budget.spend(uid, now_ns - began_ns, now_ns)
        return known

    def _take(self, process: tuple[int, int]) -> _Known | None:
        known = self._known.pop(process, None)
        self._remembered -= len(known.numbers or ()) if known else 0
        return known

    def _keep(self, process: tuple[int, int], known: _Known) -> None:
        self._known[process] = known
        self._remembered += len(known.numbers or ())
        while len(self._known) > MAX_PROCESSES or self._remembered > MAX_NUMBERS:
            self._take(next(iter(self._known)))


def _read_threads(pid: int, before: Mapping[int, int], now_ns: int, most_ns: int) -> _Known:
    """The numbers of all threads; reads only those not in ``before``, for most_ns. Raises OSError if the process has
    ended.
    """
    if not before and _inner(f"/proc/{pid}") is None:
        return _Known(now_ns, None)
    with os.scandir(f"/proc/{pid}/task") as tasks:
        there = {int(task.name) for task in islice(tasks, MAX_THREADS)}
    found = {inner: host for inner, host in before.items() if host in there}
    until_ns = time.monotonic_ns() + most_ns
    for host in sorted(there.difference(found.values())):
        if time.monotonic_ns() >= until_ns:
            return _Known(0, found)
        try:
            inner = _inner(f"/proc/{pid}/task/{host}")
        except OSError:
            continue
        if inner is not None:
            found[inner] = host
    return _Known(now_ns, found)


def _inner(path: str) -> int | None:
    """A thread's number in its own pid namespace (``NSpid`` in /proc/PID/status: the host's first, the innermost last);
    None if that is ours.
    """
    numbers = re.search(rb"^NSpid:(.*)$", Path(path, "status").read_bytes(), re.MULTILINE)
    return int(inner[-1]) if numbers is not None and len(inner := numbers[1].split()) > 1 else None
