"""How often a costly question is asked. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from random import uniform

#: A question takes at most this share of the time, so one that takes long is asked less often; a quick one is asked at
#: each poll.
_SHARE, _QUICK_NS = 0.1, 50_000_000
#: One that failed is asked again after this, twice as long each time; with jitter.
_AGAIN_NS, _LATEST_NS = 1_000_000_000, 60_000_000_000


@dataclass
class Asking:
    """When a question is asked next. Times are ns of one clock."""

    asked_ns: int = 0
    failed: bool = False
    _next_ns: int = 0
    _pause_ns: int = 0

    def due(self, now_ns: int) -> bool:
        return now_ns >= self._next_ns

    def answered(self, now_ns: int, took_ns: int) -> None:
        self.asked_ns, self.failed, self._pause_ns = now_ns, False, 0
        self._next_ns = now_ns + int(took_ns / _SHARE) if took_ns > _QUICK_NS else 0

    def refused(self, now_ns: int) -> None:
        """The question failed, and asking it again at once is of no use."""
        self.asked_ns, self.failed = now_ns, True
        self._pause_ns = min(2 * self._pause_ns or _AGAIN_NS, _LATEST_NS)
        self._next_ns = now_ns + int(self._pause_ns * uniform(0.8, 1.2))

    def forget(self) -> None:
        """The next poll asks."""
        self._next_ns = 0

    def stale(self, now_ns: int) -> dict[str, object]:
        """The columns that mark a figure which is not of this poll, and the member ``repeated`` (judged.py)."""
        age_s = (now_ns - self.asked_ns) / 1e9
        return {"exact": False, "inexact_reason": f"as of {age_s:.0f} s ago: asking takes long", "repeated": True}
