"""What really happened in a session, as a file beside its recording."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent.errors import AgentError

FILE, RECORDING, LOGS = "truth.json", "recording.tsr", "logs"
SCHEMA = 1
#: Quiet time begins this long after a fault's end, and ends this long before the next fault: the after-effects of a
#: fault are over by then.
SETTLED_NS, BEFORE_NS = 5_000_000_000, 200_000_000


@dataclass(frozen=True)
class Done:
    """One fault. Times are CLOCK_BOOTTIME. culprit: ``process``, ``pids``, ``comm``, ``object`` (empty if there is
    none). right: right answers.

    effect: the impacts (see ``effect``) on programs in its ``reach``, of the kinds in its ``impacts`` (empty: of all).
    injected: false for one that was left out on purpose, though it is written here.
    """

    id: str
    kind: str
    target: str
    size: dict[str, Any]
    start_ns: int
    end_ns: int
    culprit: dict[str, Any]
    right: list[dict[str, Any]]
    effect: list[dict[str, Any]] = field(default_factory=list)
    reach: list[str] = field(default_factory=list)
    injected: bool = True
    impacts: list[str] = field(default_factory=list)

    @property
    def victims(self) -> list[str]:
        return sorted({impact["program"] for impact in self.effect})

    @property
    def until_ns(self) -> int:
        """When the impact ended."""
        return max([self.end_ns, *(int(impact["until_ns"]) for impact in self.effect)])

    @property
    def since_ns(self) -> int:
        """When the impact began."""
        return min([int(impact["since_ns"]) for impact in self.effect], default=self.start_ns)

    @property
    def ratio(self) -> float:
        """The largest impact: how much worse than usual."""
        return max([float(impact["ratio"]) for impact in self.effect], default=1.0)


@dataclass(frozen=True)
class Truth:
    """programs: name -> ``comm``, ``pids``, ``names``. life: background activity, as (t_ns, what). from_ns, until_ns:
    the recorded time after the warm-up. left_out: kinds that were planned, but could not be injected, and why.
    """

    seed: int
    from_ns: int
    until_ns: int
    programs: dict[str, dict[str, Any]]
    faults: list[Done]
    life: list[dict[str, Any]]
    made_by: dict[str, Any] = field(default_factory=dict)
    left_out: list[dict[str, str]] = field(default_factory=list)

    def write(self, directory: Path) -> None:
        whole = {"schema": SCHEMA, **asdict(self)}
        new = directory / f"{FILE}.new"
        new.write_text(json.dumps(whole, indent=1) + "\n")
        new.replace(directory / FILE)  # atomic: a benchmark continues after the sessions that have a truth file

    @classmethod
    def read(cls, directory: Path) -> Truth:
        """Raises AgentError if it is no truth file."""
        path = directory / FILE
        try:
            whole = json.loads(path.read_text())
            if whole.pop("schema") != SCHEMA:
                raise AgentError(f"{path} is of another version of the laboratory")
            return cls(**{**whole, "faults": [Done(**fault) for fault in whole["faults"]]})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise AgentError(
                f"{path} is not a truth file", why=str(error), remedy="name a directory that `tickscope lab run` wrote"
            ) from error


def quiet(from_ns: int, until_ns: int, faults: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The times without faults, in order."""
    free, at = [], from_ns
    for start, end in sorted(faults):
        if start - BEFORE_NS > at:
            free.append((at, start - BEFORE_NS))
        at = max(at, end + SETTLED_NS)
    return [*free, (at, until_ns)] if until_ns > at else free
