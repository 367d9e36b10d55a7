"""Faults of the agent's parts: a part that fails costs what it had in hand, never the agent.

A part is a source, a ring, a sink, a callback, the correlator ... Its faults are counted, said on stderr and shown by
``status``; one that fails again and again is left out until the next start.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from agent.batch import Batch, Loss, losses
from agent.errors import printable
from agent.log import log_message

T = TypeVar("T")
U = TypeVar("U")
#: A part that fails this often in a row is left out.
IN_A_ROW = 5
#: How often the ``loss`` of a part that is left out is told again.
AGAIN_NS = 10_000_000_000
#: A part that fails now and then is said at most so often; ``counts`` has them all.
_REPORT_S = 10.0


class Faults:
    """failures: part -> its last fault, in words. counts: how many each had. Parts are known by their names."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self._in_a_row: Counter[str] = Counter()
        self._reported_s: dict[str, float] = {}
        self._whole_ns: dict[str, int] = {}
        self._out: set[str] = set()

    def attempt(self, name: str, work: Callable[..., T], *args: object, otherwise: U) -> T | U:
        """What ``work(*args)`` returns; ``otherwise`` where it fails, or is left out."""
        if name in self._out:
            return otherwise
        try:
            done = work(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is that part's
            self.failed(name, error)
            return otherwise
        self._in_a_row.pop(name, None)
        return done

    def out(self, name: str) -> bool:
        """Whether a part is left out."""
        return name in self._out

    def failed(self, name: str, error: Exception) -> bool:
        """Notes a fault; True where it was one too many in a row."""
        self._in_a_row[name] += 1
        self.counts[name] += 1
        self.failures[name] = printable(f"{type(error).__name__}: {error}")[:200]
        gone = self._in_a_row[name] >= IN_A_ROW and name not in self._out
        if gone:
            self._out.add(name)
        now = time.monotonic()
        if gone or now - self._reported_s.get(name, -_REPORT_S) >= _REPORT_S:
            self._reported_s[name] = now
            log_message(f"tickscope: {name}: {self.failures[name]}" + ("; left out from now on" if gone else ""))
        return gone

    def whole(self, name: str, now_ns: int) -> None:
        """Nothing of a part is missing up to now."""
        self._in_a_row.pop(name, None)
        self._whole_ns[name] = now_ns

    def lost(self, name: str, now_ns: int) -> Batch:
        """The ``loss`` row of what a part's fault may have cost since it was last whole, or since that was last
        told.
        """
        since_ns, self._whole_ns[name] = self._whole_ns.get(name, now_ns), now_ns
        return losses("intake", Loss(name, None, since_ns, now_ns))

    def missing(self, now_ns: int, since_ns: int = AGAIN_NS) -> list[Batch]:
        """``loss`` rows of the parts that are left out, of which nothing was told for ``since_ns``."""
        return [
            self.lost(name, now_ns)
            for name in sorted(self._out & set(self._whole_ns))
            if now_ns - self._whole_ns[name] >= since_ns
        ]
