"""Bounds that were hit, as rows of ``probe_status``: what was refused or left out must not look as if it had never
been.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from agent.batch import Batch, make
from agent.contracts import Finishing
from agent.tables import TABLES

_CHECK_NS = 1_000_000_000
#: At most so often: what is beyond a bound mostly stays there.
_REPORT_NS = 60_000_000_000


class Bounds(Finishing):
    """A source (agent/contracts.py). probe: the part with the bounds, for column ``probe``. counts: how often each
    bound of ``reasons`` (name -> words) was hit since the start; a row has what was added since the row before. lead:
    what the reasons have in common.
    """

    def __init__(
        self,
        probe: str,
        counts: Callable[[], Mapping[str, int]],
        reasons: Mapping[str, str],
        lead: str = "",
        remedy: str = "",
    ) -> None:
        self.name, self.probe = (
            f"bounds of {probe}",
            probe,
        )  # sources are known by their names: the intake is one itself
        self._counts, self._reasons, self._lead, self._remedy = counts, reasons, lead, remedy
        self._checked_at_ns, self._reported_ns = -_CHECK_NS, -_REPORT_NS
        self._reported = dict.fromkeys(reasons, 0)

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """Mostly nothing, and cheap."""
        if now_ns - self._checked_at_ns < _CHECK_NS or now_ns - self._reported_ns < _REPORT_NS:
            return ()
        self._checked_at_ns = now_ns
        return self._rows(now_ns)

    def finish(self, now_ns: int, wait: Callable[[float], None]) -> Iterable[Batch]:
        """What is not in a row yet."""
        return self._rows(now_ns)

    def hit(self) -> dict[str, int]:
        """For ``status``: what the bounds have cost since the start, in words."""
        counts = self._counts()
        return {words: counts[reason] for reason, words in self._reasons.items() if counts[reason]}

    def close(self) -> None:
        pass

    def _rows(self, now_ns: int) -> list[Batch]:
        counts = self._counts()
        changes = [
            f"{counts[reason] - before} {self._reasons[reason]}"
            for reason, before in self._reported.items()
            if counts[reason] > before
        ]
        if not changes:
            return []
        self._reported_ns, self._reported = now_ns, {reason: counts[reason] for reason in self._reasons}
        table = TABLES["probe_status"]
        return [
            make(
                "probe_status",
                1,
                t_ns=now_ns,
                probe=self.probe.encode(),
                state=table.code("state", "degraded"),
                reason=f"{self._lead}{', '.join(changes)}".encode()[:256],
                remedy=self._remedy.encode(),
            )
        ]
