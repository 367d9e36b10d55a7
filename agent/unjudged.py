"""What the correlator left out, as rows of ``loss``: a finding that nobody could make must not look like all being well."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agent.batch import Batch, make
from agent.tables import TABLES

#: Of ``Correlator.losses()``; "evidence" is none of them: that old rows make room for new ones is how a busy host looks.
REASONS = ("subjects", "pending", "late", "findings")
_LOOK_NS = 1_000_000_000
#: A row a reason at most so often: what is beyond the limits mostly stays there.
_TELL_NS = 60_000_000_000
#: The correlator judges whole seconds, behind the watermark: what it left out by now lies as much as this before.
_BEHIND_NS = 2_000_000_000


class Unjudged:
    """A source (agent/batch.py). losses: counts since the start, by reason; the source ``correlator REASON`` of a row has what was added.

    The rows that they count are stored all the same.
    """

    name = "correlator"

    def __init__(self, losses: Callable[[], dict[str, int]]) -> None:
        self._losses = losses
        self._looked_ns = -_LOOK_NS
        self._told = dict.fromkeys(REASONS, 0)
        self._told_ns = dict.fromkeys(REASONS, -_TELL_NS)
        self._seen = dict.fromkeys(REASONS, (0, 0))  # count, and when it was first seen
        self._none_ns = dict.fromkeys(REASONS, 0)  # until when nothing was left out that has not been told

    def fds(self) -> list[int]:
        return []

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """Mostly nothing, and cheap."""
        if now_ns - self._looked_ns < _LOOK_NS:
            return ()
        self._looked_ns = now_ns
        return self._rows(now_ns, _TELL_NS)

    def finish(self, now_ns: int, _: object = None) -> Iterable[Batch]:
        """What was not told yet."""
        return self._rows(now_ns, 0)

    def close(self) -> None:
        pass

    def _rows(self, now_ns: int, every_ns: int) -> list[Batch]:
        stage = TABLES["loss"].code("stage", "intake")
        counts, out = self._losses(), []
        for reason in REASONS:
            if counts[reason] != self._seen[reason][0]:
                self._seen[reason] = counts[reason], now_ns
            more = counts[reason] - self._told[reason]
            if more and now_ns - self._told_ns[reason] < every_ns:
                continue
            if more:
                out.append(make("loss", 1, t_ns=now_ns, stage=stage, source=f"correlator {reason}".encode(), count=more,
                                from_ns=max(self._none_ns[reason] - _BEHIND_NS, 0), to_ns=self._seen[reason][1]))  # fmt: skip
                self._told[reason], self._told_ns[reason] = counts[reason], now_ns
            self._none_ns[reason] = now_ns
        return out
