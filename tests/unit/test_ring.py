"""What the ring reader takes from length words: everything up to the first record that is still being written, without
the discarded.
"""

from __future__ import annotations

import numpy as np
import pytest

from agent.kernel.ring import finished

BUSY, DISCARDED = 1 << 31, 1 << 30


@pytest.mark.parametrize(
    ("length", "n", "dropped"),
    [
        ([56] * 3, 3, []),
        ([56, 56 | BUSY, 56], 1, []),
        ([56 | BUSY, 56 | DISCARDED], 0, []),
        ([56, 56 | DISCARDED, 56, 56 | DISCARDED, 56 | BUSY, 56 | DISCARDED], 4, [1, 3]),
        ([], 0, []),
    ],
)
def test_finished_records(length: list[int], n: int, dropped: list[int]) -> None:
    taken, discarded = finished(np.array(length, np.uint32))
    assert (taken, discarded.tolist()) == (n, dropped)
