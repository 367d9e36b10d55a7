"""What the ring reader takes from length words: everything up to the first record that is still being written, without
the discarded. What it does without a descriptor for the mapping.
"""

from __future__ import annotations

import mmap
import os
import resource

import numpy as np
import pytest

from agent.kernel import bpf
from agent.kernel.ring import RingReader, finished

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


def test_without_a_descriptor_for_the_mapping_the_records_stay_in_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    page, record = mmap.PAGESIZE, np.dtype([("n", "<u8")])
    monkeypatch.setattr(bpf, "map_info", lambda _: (27, 0, 0, page))
    fd = os.memfd_create("ring")
    os.ftruncate(fd, 4 * page)  # two positions, and the data twice
    records = np.zeros(3, [("length", "<u4"), ("page", "<u4"), ("n", "<u8")])
    records["length"], records["n"] = 8, [2, 3, 5]
    os.pwrite(fd, records.nbytes.to_bytes(8, "little"), page)
    os.pwrite(fd, records.tobytes(), 2 * page)
    reader = RingReader(fd, record)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        taken = reader.drain()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (len(taken), reader.producing(), reader.refusal is not None) == (0, True, True)
    assert (reader.drain()["n"].tolist(), reader.refusal) == ([2, 3, 5], None)
    reader.close()
    os.close(fd)
