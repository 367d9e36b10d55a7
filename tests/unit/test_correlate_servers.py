"""Servers whose answers are watched: as many as there is room for, and strangers cost the same however many that
are.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from agent.batch import make
from agent.correlate.rows import OfSecond
from agent.correlate.series import SECONDS
from agent.correlate.services import ServiceWatch
from agent.correlate.thresholds import CorrelatorConfig
from tests.unit.correlate_scenarios import S, peer

FIRST = 100


def answer(watch: ServiceWatch, second: int, ports: range) -> int:
    """How many of these servers, of which one answer each was seen in that second, are watched."""
    rows = make("service_answer", len(ports), t_ns=second * S, netns=1, protocol=b"redis", code=b"", count=1).rows
    rows["peer"] = np.array([np.frombuffer(peer("127.0.0.1", port), "V18")[0] for port in ports])
    return len(watch.fill(second, OfSecond({"service_answer": rows})))


@pytest.mark.parametrize("heard_again", [range(1), range(1, 2), range(7, 8)])
def test_who_was_not_received_for_longest_makes_room(heard_again: range) -> None:
    watch = ServiceWatch(replace(CorrelatorConfig(), subjects=8))
    assert answer(watch, FIRST, range(8)) == 8
    assert answer(watch, FIRST + 1, heard_again) == 1
    assert answer(watch, FIRST + 2, range(8, 9)) == 0
    assert answer(watch, FIRST + SECONDS, range(8, 20)) == 7
    assert answer(watch, FIRST + SECONDS + 1, heard_again) == 1


def test_strangers_cost_the_same_however_many_are_watched() -> None:
    def took_s(watched: int) -> float:
        watch = ServiceWatch(replace(CorrelatorConfig(), subjects=watched))
        answer(watch, FIRST, range(watched))
        each = []
        for second in range(FIRST + 1, FIRST + 4):
            begun = time.process_time()
            assert answer(watch, second, range(10_000, 12_000)) == 0
            each.append(time.process_time() - begun)
        return min(each)

    assert took_s(4096) < 5 * took_s(32)
