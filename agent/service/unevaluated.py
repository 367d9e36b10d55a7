"""What the correlator left out, as rows of ``probe_status``: a finding that nobody could make must not look like all
being well.

It is no loss: the rows are stored, and a query has them all.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.service.bounds import Bounds

#: ``probe`` of the rows.
NAME = "correlator"
#: Of ``Loop.unevaluated()``, in words. Not "evidence": that old rows make room for new ones is how a busy host looks.
REASONS = {
    "subjects": "seconds of limiters, queues, brokers or listeners beyond its room",
    "pending": "rows beyond its pace",
    "late": "rows that came too late",
    "findings": "findings beyond its room",
    "faults": "failed batches",
    "servers": "local servers",
    "rules": "failed rules",
}


class Unevaluated(Bounds):
    """A source (agent/contracts.py). losses: counts since the start, by reason; a row tells what was added since the
    row before.
    """

    def __init__(self, losses: Callable[[], dict[str, int]]) -> None:
        super().__init__(NAME, losses, REASONS, lead="not judged for findings: ")
