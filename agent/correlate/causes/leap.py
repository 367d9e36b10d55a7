"""A leap second."""

from __future__ import annotations

from agent.correlate import jumps
from agent.correlate.catalogue import Cause
from agent.correlate.steps import Jumping

NAME = "leap"
CAUSE = Cause(
    NAME,
    12,
    "the kernel inserted or deleted a leap second",
    jumps.READS,
    "let all time servers smear leap seconds in the same way",
    jumps.rules(NAME),
    jumps=Jumping("leap", "made a leap second,", "was moved by leap seconds", takes_actor=False),
)
