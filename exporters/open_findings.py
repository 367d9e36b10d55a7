"""The gauge of open findings: who is affected, by what, and who caused it, for alerts that name the cause.

A finding stays for KEPT_NS after it closed (value 0), so that one which lasts less than a scrape interval is seen, and
an alert does not resolve and fire again while a fault comes and goes.
"""

from __future__ import annotations

from agent.batch import Batch
from agent.common.fairness import UpperBound
from agent.tables import TABLES
from exporters.aggregate import MetricStore
from exporters.fold import Attributes
from exporters.metrics import FINDING
from exporters.values import column_values

#: More than the alerts' ``for`` (30 s) and two scrape intervals of a minute.
KEPT_NS = 300 * 10**9
#: Findings at a time.
MOST = 100
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "metrics",
        "findings with a series of `tickscope_finding_open`",
        MOST,
        "the oldest are left out, closed ones first",
        "`loss` (`open_findings finding_limit`)",
    ),
)
_TABLE = TABLES["finding"]
_OPEN = _TABLE.code("state", "open")


class OpenFindings:
    """Implements ``agent.contracts.Sink``; sets its gauge in ``metrics``. Times are those of the rows, CLOCK_BOOTTIME
    ns. host: the node's name, by which alerts of all ways are grouped.
    """

    name = "open_findings"

    def __init__(self, metrics: MetricStore, host: str) -> None:
        self._metrics, self._host = metrics, host
        self._held: dict[bytes, tuple[Attributes, bool, int]] = {}  # by id: labels, whether open, time of the row
        self._checked_ns = 0
        self.left_out = 0

    def offer(self, batch: Batch) -> None:
        """Takes findings; with any batch, removes those that closed KEPT_NS ago, once a second."""
        if not len(batch.rows):
            return
        now_ns = int(batch.rows["t_ns"][-1])
        is_finding = batch.table == _TABLE.name
        if is_finding:
            self._take(batch)
        if is_finding or now_ns - self._checked_ns >= 10**9:
            self._checked_ns = now_ns
            old = [one for one, (_, is_open, t_ns) in self._held.items() if not is_open and now_ns - t_ns > KEPT_NS]
            for one in old:
                del self._held[one]
            if is_finding or old:
                values = [(labels, float(is_open)) for labels, is_open, _ in self._held.values()]
                self._metrics.observe("tickscope.finding.open", values, now_ns)

    def losses(self) -> dict[str, int]:
        """``finding_limit``: findings that were left out while they were open."""
        return {"finding_limit": self.left_out}

    def close(self) -> None:
        """Nothing to release."""

    def _take(self, batch: Batch) -> None:
        cells = {label: column_values(_TABLE.by_name[column], batch.rows[column]) for column, label in FINDING.items()}
        for at, row in enumerate(batch.rows):
            labels = tuple((label, v) for label, values in cells.items() if (v := values[at]) is not None)
            labels = ("host.name", self._host), *labels
            self._held[bytes(row["finding_id"])] = (labels, int(row["state"]) == _OPEN, int(row["t_ns"]))
        while len(self._held) > MOST:
            one = min(self._held, key=lambda held: self._held[held][1:])
            self.left_out += self._held.pop(one)[1]
