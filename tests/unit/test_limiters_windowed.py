"""A limiter that told how many in which window has told a rate, too."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from agent.ask.window import this_boot
from agent.batch import make
from agent.store.hot import HotStore
from agent.tables import TABLES
from tests.unit.test_limiters_cli import tickscope


def test_so_many_in_a_window_is_a_rate(tmp_path: Path) -> None:
    now, result = time.clock_gettime_ns(time.CLOCK_BOOTTIME), TABLES["limiter_decision"].by_name["result"]
    decided = np.where(np.arange(100) % 2 < 1, result.code("allowed"), result.code("refused"))
    windowed = make("limiter_decision", 100, t_ns=now - 10_000_000_000 + np.arange(100) * 100_000_000, pid=4_100_000, proc_start_ns=5, result=decided,
                    limiter_id=b"shop:api", comm=b"node", burst=14.0, window_ns=2_000_000_000, cost=1.0)  # fmt: skip
    hot = HotStore(tmp_path, this_boot(), "host-a", seal_command=())
    hot.append([windowed])
    hot.close()
    (one,) = json.loads(tickscope(tmp_path, "-o", "json").stdout)["rows"]
    assert (one["limit_per_s"], one["burst"], one["window_ns"]) == (7.0, 14.0, 2_000_000_000)
    assert one["limit_use"] == pytest.approx(50 / (7 * 9.9 + 14), rel=0.001)
    shown = json.loads(tickscope(tmp_path, "show", "shop", "-o", "json").stdout)
    assert {piece["limit"] for piece in shown["rows"]} == {7.0}
    assert "limit        7/s, burst 14" in tickscope(tmp_path, "show", "shop").stdout
