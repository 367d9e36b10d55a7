"""What the correlator left out, as rows of ``probe_status``: a finding that nobody could make must not look like all being well.

It is no loss: the rows are stored, and a query has them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agent.batch import Batch, make
from agent.tables import TABLES

#: ``probe`` of the rows.
NAME = "correlator"
#: Of ``Correlator.losses()``, in words. Not "evidence": that old rows make room for new ones is how a busy host looks.
REASONS = {
    "subjects": "seconds of limiters, queues, brokers or listeners beyond those it watches",
    "pending": "rows that came faster than it takes them",
    "late": "rows that came too late",
    "findings": "findings beyond those it follows",
}
_LOOK_NS = 1_000_000_000
#: At most so often: what is beyond the limits mostly stays there.
_TELL_NS = 60_000_000_000


class Unjudged:
    """A source (agent/batch.py). losses: counts since the start, by reason; a row tells what was added since the row before."""

    name = NAME

    def __init__(self, losses: Callable[[], dict[str, int]]) -> None:
        self._losses = losses
        self._looked_ns, self._told_ns = -_LOOK_NS, -_TELL_NS
        self._told = dict.fromkeys(REASONS, 0)

    def fds(self) -> list[int]:
        return []

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """Mostly nothing, and cheap."""
        if now_ns - self._looked_ns < _LOOK_NS or now_ns - self._told_ns < _TELL_NS:
            return ()
        self._looked_ns = now_ns
        return self._rows(now_ns)

    def finish(self, now_ns: int, wait: Callable[[float], None]) -> Iterable[Batch]:
        """What was not told yet."""
        return self._rows(now_ns)

    def close(self) -> None:
        pass

    def _rows(self, now_ns: int) -> list[Batch]:
        counts = self._losses()
        said = [f"{counts[reason] - told} {REASONS[reason]}" for reason, told in self._told.items() if counts[reason] > told]
        if not said:
            return []
        self._told_ns, self._told = now_ns, {reason: counts[reason] for reason in REASONS}
        table = TABLES["probe_status"]
        return [make("probe_status", 1, t_ns=now_ns, probe=NAME.encode(), state=table.code("state", "degraded"),
                     reason=f"not looked at for findings: {', '.join(said)}".encode()[:256])]  # fmt: skip
