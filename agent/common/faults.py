"""Faults of the agent's parts: a failing part loses its current work, and the agent goes on.

A part is a source, a ring, a sink, a callback, the correlator and so on. Its faults are counted, logged on stderr and
shown by ``status``. A part that fails repeatedly is disabled until the next start.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from agent.batch import Batch, Loss, losses
from agent.common.printable import printable
from agent.log import log_message

T = TypeVar("T")
U = TypeVar("U")
#: A part that fails this often in a row is disabled.
IN_A_ROW = 5
#: Interval of the ``loss`` rows of a disabled part.
AGAIN_NS = 10_000_000_000
#: Minimal interval between two log lines of a part; ``counts`` has all faults.
_REPORT_S = 10.0


class Faults:
    """failures: part -> its last fault as text. counts: faults per part. Parts are identified by name."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self._in_a_row: Counter[str] = Counter()
        self._reported_s: dict[str, float] = {}
        self._whole_ns: dict[str, int] = {}
        self._out: set[str] = set()

    def attempt(self, name: str, work: Callable[..., T], *args: object, otherwise: U) -> T | U:
        """The result of ``work(*args)``; ``otherwise`` if it fails or the part is disabled."""
        if name in self._out:
            return otherwise
        try:
            done = work(*args)
        except Exception as error:  # noqa: BLE001 - any error is a fault of that part
            self.failed(name, error)
            return otherwise
        self._in_a_row.pop(name, None)
        return done

    def out(self, name: str) -> bool:
        """Whether a part is disabled."""
        return name in self._out

    def failed(self, name: str, error: Exception) -> bool:
        """Notes a fault; True if it disables the part."""
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
        """Notes that the part has lost nothing up to now."""
        self._in_a_row.pop(name, None)
        self._whole_ns[name] = now_ns

    def lost(self, name: str, now_ns: int) -> Batch:
        """The ``loss`` row of a part's fault, since it last worked or since the last such row."""
        since_ns, self._whole_ns[name] = self._whole_ns.get(name, now_ns), now_ns
        return losses("intake", Loss(name, None, since_ns, now_ns))

    def missing(self, now_ns: int, since_ns: int = AGAIN_NS) -> list[Batch]:
        """``loss`` rows of the disabled parts without one in the last ``since_ns``."""
        return [
            self.lost(name, now_ns)
            for name in sorted(self._out & set(self._whole_ns))
            if now_ns - self._whole_ns[name] >= since_ns
        ]
