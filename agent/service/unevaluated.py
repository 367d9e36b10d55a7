"""What the correlator left out, as rows of ``probe_status``: a finding that could not be made must not look like all
being well.

It is no loss: the rows are stored, and a query has them all.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.service.bounds import Bounds

#: ``probe`` of the rows.
NAME = "correlator"
#: Texts for ``Loop.unevaluated()``. Without "evidence": on a busy host old rows always make room for new ones.
REASONS = {
    "subjects": "seconds of limiters, queues, brokers, listeners or peers above the limit",
    "pending": "rows above the limit",
    "late": "late rows",
    "findings": "findings above the limit",
    "faults": "failed batches",
    "servers": "local servers",
    "rules": "failed rules",
}


class Unevaluated(Bounds):
    """A source (agent/contracts.py). losses: counts since the start, by reason; a row has what was added since the
    row before.
    """

    def __init__(self, losses: Callable[[], dict[str, int]]) -> None:
        super().__init__(NAME, losses, REASONS, lead="not evaluated for findings: ")
