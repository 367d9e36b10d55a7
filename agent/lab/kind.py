"""A kind of fault: one declaration in a file of ``agent/lab/kinds``, found by its presence."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from agent.common.declared import files, load
from agent.lab.program import LabProgram, reach
from agent.tables import CAUSES

if TYPE_CHECKING:
    from agent.lab.stage.stage import Stage


@dataclass(frozen=True)
class Right:
    """A right answer, in the words of the tables. detail: ``cause_detail``, if there is one. culprit: whether
    ``culprit_*`` must name the fault's culprit.
    """

    cause: str
    detail: str = ""
    culprit: bool = False

    def __post_init__(self) -> None:
        assert self.cause in CAUSES.split(), self.cause


@dataclass(frozen=True)
class Size:
    """Severity: a number between mild and hard, evenly distributed on a logarithmic scale. what ``duration_s``: the
    fault's length is its size.
    """

    what: str
    mild: float
    hard: float

    def draw(self, chance: random.Random) -> float:
        return math.exp(chance.uniform(math.log(self.mild), math.log(self.hard)))


@dataclass(frozen=True)
class Fault:
    """One fault of a plan. target: a program, or an object that the kind knows. gap_s: quiet before it."""

    kind: str
    target: str
    size: float
    duration_s: float
    gap_s: float
    seed: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Offender:
    """The culprit of a fault. process: a program's name, or the command name of what the fault itself started, then
    with its ``pids``; empty if there is none. object: a lock, a device, a link, an address.
    """

    process: str = ""
    object: str = ""
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Kind:
    """inject: a context manager that does it, and undoes it at its end. right: the right answers, the best first.
    needs: what the host must have (see Stage.lacks).
    """

    name: str
    meaning: str
    size: Size
    targets: tuple[str, ...]
    right: tuple[Right, ...]
    inject: Callable[[Stage, Fault], AbstractContextManager[Offender]]
    duration_s: tuple[float, float] = (2.0, 6.0)
    needs: tuple[str, ...] = ()
    settle_s: float = 0.0  # recovery time beyond that of other kinds
    touches: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # what it acts on, by target, if that is not the target itself
    impacts: tuple[
        str, ...
        # possible impacts (the words of ``effect``); empty for all. Others are chance.
    ] = ()
    system: str = ""  # the broker that must run, with its programs, for its faults; empty: none
    ends: tuple[str, ...] = ()  # brokers that it ends for good: it is not injected while these run

    def reach(self, fault: Fault, there: Mapping[str, LabProgram]) -> frozenset[str]:
        """Programs that it may impact."""
        return reach(there, self.touches.get(fault.target, (fault.target,)))

    def draw(self, chance: random.Random) -> Fault:
        """A fault of this kind."""
        target, size = chance.choice(self.targets), self.size.draw(chance)
        duration = size if self.size.what == "duration_s" else chance.uniform(*self.duration_s)
        return Fault(
            self.name,
            target,
            round(size, 6),
            round(duration, 3),
            round(chance.uniform(6.0, 9.0), 3),
            chance.randrange(2**31),
        )


def kinds() -> dict[str, Kind]:
    """All of them, by name."""
    from agent.lab import kinds as package

    found: dict[str, Kind] = {}
    for file in files(package):
        for value in vars(load(package.__name__, file)).values():
            for kind in value if isinstance(value, tuple) else (value,):
                if isinstance(kind, Kind):
                    found[kind.name] = kind
    return found
