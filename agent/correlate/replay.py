"""Feeds a correlator with what another one got: the same batches and watermarks in the same order give the same
findings. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from agent.batch import Batch

if TYPE_CHECKING:
    import numpy as np

    from agent.correlate.correlator import Correlator


def states(correlator: Correlator, events: Iterable[Batch | int]) -> Iterator[tuple[int, np.ndarray]]:
    """Each state of each finding when it was told: (watermark, its one row). events: batches, and watermarks as
    CLOCK_BOOTTIME ns.
    """
    for event in events:
        if isinstance(event, Batch):
            correlator.feed(event)
        else:
            for batch in correlator.advance(event):
                if batch.table == "finding":
                    yield event, batch.rows
