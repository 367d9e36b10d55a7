"""Feeds a correlator with the input of another one: the same batches and watermarks in the same order give the same
findings. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from agent.batch import Batch
from agent.tables import TABLES

if TYPE_CHECKING:
    import numpy as np

    from agent.correlate.correlator import Correlator


class State(NamedTuple):
    """A finding at one moment: its row, its rows of ``verdict`` and ``evidence``, and the watermark (CLOCK_BOOTTIME ns)
    at which that was known.
    """

    t_ns: int
    finding: np.ndarray
    verdicts: np.ndarray
    evidence: np.ndarray


def states(correlator: Correlator, events: Iterable[Batch | int]) -> Iterator[State]:
    """Each state of each finding. events: batches, and watermarks as CLOCK_BOOTTIME ns."""
    beside: dict[tuple[str, bytes], np.ndarray] = {}
    for event in events:
        if isinstance(event, Batch):
            correlator.feed(event)
            continue
        for table, rows in correlator.advance(event):
            if table in ("verdict", "evidence"):
                beside[table, bytes(rows["finding_id"][0])] = rows
            elif table == "finding":
                its_id = bytes(rows["finding_id"][0])
                its = (beside.get((table, its_id), TABLES[table].empty(0)) for table in ("verdict", "evidence"))
                yield State(event, rows, *its)
