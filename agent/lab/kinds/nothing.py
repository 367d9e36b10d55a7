"""No fault, for a while: any finding in that time is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agent.lab.kind import Fault, Kind, Offender, Size
from agent.lab.stage.stage import Stage


@contextmanager
def nothing(_stage: Stage, _fault: Fault) -> Iterator[Offender]:
    yield Offender()


NOTHING = Kind(
    "nothing", "nothing is injected", Size("duration_s", 8.0, 40.0), ("all",), (), nothing, touches={"all": ()}
)
