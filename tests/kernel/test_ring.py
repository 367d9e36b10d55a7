"""The ring reader on a real ring: nothing lost or doubled while it wraps, and a full ring is counted as loss."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from tests.kernel.conftest import Attached


def spawn(n: int) -> set[int]:
    """Runs /bin/true n times; the pids."""
    pids = [os.posix_spawn("/bin/true", ["true"], {}) for _ in range(n)]
    for pid in pids:
        os.waitpid(pid, 0)
    return set(pids)


def test_every_record_once_while_the_ring_wraps(attach: Callable[..., Attached]) -> None:
    attached, seen = attach("exec", options={"EXEC_PAGES": 1}), list[np.ndarray]()
    attached.source.listen("exec_events", seen.append)
    pids: list[int] = []
    for _ in range(13):  # 221 records in a ring that holds 73
        pids += spawn(17)
        attached.pump()
    records = np.concatenate(seen)
    mine = records[np.isin(records["proc"]["pid"], pids)]
    assert 221 - attached.left_out() <= len(mine) <= 221
    assert len(set(mine["proc"]["pid"])) == len(mine)
    assert set(mine["proc"]["pid"]) <= set(pids)
    assert np.all(np.diff(mine["t_ns"].astype(np.int64)) > -1_000_000_000)
    assert attached.lost() == 0


def test_a_full_ring_is_counted(attach: Callable[..., Attached]) -> None:
    attached, seen = attach("exec", options={"EXEC_PAGES": 1}), list[np.ndarray]()
    attached.source.listen("exec_events", seen.append)
    spawn(101)
    lost = attached.lost()
    records = np.concatenate(seen)
    assert lost > 0
    assert len(records) + lost + attached.left_out() >= 101
    assert len(records) <= 4096 // 56
