"""Seconds in which a port's interval did not end: reported where it went on for all of them, and of no other."""

from __future__ import annotations

import numpy as np
import pytest

from agent.batch import make
from agent.correlate.answers import AnswerWatch
from agent.correlate.rows import OfSecond
from agent.correlate.thresholds import CorrelatorConfig
from tests.unit.correlate_scenarios import MS, S


@pytest.mark.parametrize(("interval_ms", "reported"), [(1000, False), (1010, False), (2010, True)])
@pytest.mark.parametrize("end_ms", [40, 300, 499, 501, 700, 990])
def test_what_the_second_before_was_like(end_ms: int, interval_ms: int, reported: bool) -> None:
    """A port that was not asked before: nothing is known of then, wherever in its second the usual interval ends."""
    watch = AnswerWatch(CorrelatorConfig())
    row = {
        "t_ns": 100 * S + end_ms * MS,
        "interval_ns": interval_ms * MS,
        "requests": 7,
        "max_ns": 3 * MS,
        "p50_ns": MS,
        "p90_ns": 2 * MS,
    }
    rows = make("service_latency", 1, pid=7, sport=80, netns=1, waiting=0, held_ns=0, **row).rows
    slots = watch.fill(100, OfSecond({"service_latency": rows}))
    assert np.isnan(watch.series.recent("med_ns", slots, 99, 1)[0, 0]) != reported
