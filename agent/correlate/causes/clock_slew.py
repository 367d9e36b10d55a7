"""The wall clock was slewed."""

from __future__ import annotations

from agent.correlate import jumps
from agent.correlate.catalogue import Cause
from agent.correlate.steps import Jumping

NAME = "clock_slew"
CAUSE = Cause(
    NAME,
    11,
    "the wall clock was slewed: it ran faster or slower",
    jumps.READS,
    "see why the clock was that far off: tickscope clock; let the time daemon step at its start, and slew slowly later",
    jumps.rules(NAME),
    jumps=Jumping("slew", "is being slewed", "was slewed", moves=False, least_ns=lambda config: config.slew_min_ns),
)
