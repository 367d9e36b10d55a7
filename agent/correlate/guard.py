"""Contains the errors of rules: a rule that fails loses its own verdicts, and no others. Pure: the caller passes a
clock if it needs the costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")
#: A rule that fails this often in a row is disabled until the next start.
IN_A_ROW = 5


class Guard:
    """failures: rule -> its last error, in words; counts: errors of each; skipped: attempts of disabled rules; run_ns,
    runs: by rule, by ``clock`` (ns, any monotonic one).
    """

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self.failures: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.skipped = 0
        self.run_ns: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self._clock = clock
        self._in_a_row: Counter[str] = Counter()
        self._new_failures: list[str] = []

    def attempt(self, name: str, work: Callable[..., T], *args: object, otherwise: U) -> T | U:
        """What ``work(*args)`` returns; ``otherwise`` if it fails, or is disabled."""
        if self._in_a_row and self.out(name):
            self.skipped += 1
            return otherwise
        begun_ns = self._clock() if self._clock else 0
        try:
            done = work(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is that rule's
            self._failed(name, error)
            return otherwise
        finally:
            self.runs[name] += 1
            if self._clock:
                self.run_ns[name] += self._clock() - begun_ns
        if self._in_a_row:
            self._in_a_row.pop(name, None)
        return done

    def missed(self) -> int:
        """Evaluations that were not made: the rule failed, or is disabled."""
        return self.counts.total() + self.skipped

    def out(self, name: str) -> bool:
        """Whether a rule is disabled."""
        return self._in_a_row[name] >= IN_A_ROW

    def _failed(self, name: str, error: Exception) -> None:
        self._in_a_row[name] += 1
        self.counts[name] += 1
        self.failures[name] = f"{type(error).__name__}: {error}"[:200]
        if self.counts[name] == 1 or self.out(name):
            self._new_failures.append(
                f"{name}: {self.failures[name]}" + ("; left out from now on" if self.out(name) else "")
            )

    def state(self) -> list[dict[str, object]]:
        """One row per rule that has run."""
        return [
            {
                "rule": name,
                "runs": runs,
                "run_ns": self.run_ns[name] if self._clock else None,
                "failures": self.counts[name],
                "failure": self.failures.get(name),
                "left_out": self.out(name),
            }
            for name, runs in sorted(self.runs.items())
        ]

    def new_failures(self) -> list[str]:
        """New errors to report: a rule's first error, and that it is disabled."""
        new, self._new_failures = self._new_failures, []
        return new
