"""A batch: what every source produces and every sink takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from agent.columns import NULL_I64
from agent.tables import TABLES


class Batch(NamedTuple):
    """Rows of one table: a numpy array of dtype ``TABLES[table].dtype``, shape (n,), not necessarily in time order."""

    table: str
    rows: np.ndarray


def make(table: str, n: int, /, **columns: object) -> Batch:
    """A batch of n rows with the given columns set and all others unknown."""
    rows = TABLES[table].empty(n)
    for name, value in columns.items():
        rows[name] = value
    return Batch(table, rows)


def ended(batch: Batch) -> Batch:
    """Without calls that go on: if they are recorded at their end, that row has the whole call."""
    if batch.table != "slow_syscall":
        return batch
    so_far = batch.rows["basis"] == TABLES[batch.table].code("basis", "so_far")
    return Batch(batch.table, batch.rows[~so_far]) if so_far.any() else batch


@dataclass(frozen=True)
class Loss:
    """Records of one source that were lost. count: None where nobody knows how many. from_ns, to_ns: not before, not
    after; t_ns: when it was noticed, 0 for the end, or the beginning where that is not known. All CLOCK_BOOTTIME,
    NULL_I64 unknown.
    """

    source: str
    count: int | None = None
    from_ns: int = NULL_I64
    to_ns: int = NULL_I64
    t_ns: int = 0

    @property
    def noticed_ns(self) -> int:
        ends = (self.t_ns, self.to_ns if self.to_ns != NULL_I64 else 0, self.from_ns if self.from_ns != NULL_I64 else 0)
        return next((end for end in ends if end), 0)


def losses(stage: str, *lost: Loss) -> Batch:
    """Rows of table ``loss``, a row each. stage: one of that column's names."""
    return make(
        "loss",
        len(lost),
        stage=TABLES["loss"].code("stage", stage),
        source=[one.source.encode()[:64] for one in lost],
        count=[NULL_I64 if one.count is None else one.count for one in lost],
        from_ns=[one.from_ns for one in lost],
        to_ns=[one.to_ns for one in lost],
        t_ns=[one.noticed_ns for one in lost],
    )
