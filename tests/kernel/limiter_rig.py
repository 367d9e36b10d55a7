"""The limiter family with its sources, attached to every Go program of this host that has a library."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agent.kernel.probe import Parts
from agent.limiters.settings import LimiterSettings
from agent.probes.limiter import setup
from agent.tables import TABLES
from agent.targets.targets import Targets
from tests.kernel.local_attach import LocalAttacher
from tests.patience import until

if TYPE_CHECKING:
    from tests.kernel.conftest import Attached

RESULTS = TABLES["limiter_decision"].by_name["result"].names


class Watch:
    def __init__(
        self, attach: Callable[..., Attached], hits_per_s: int = 1 << 40, functions: Any = (), **settings: Any
    ) -> None:
        self.attached = attach("limiter", "exec")
        self.helper = LocalAttacher()
        family = self.attached.loaded.families["limiter"]
        self.targets = Targets(self.helper, self.attached.source)
        self.limiters, *others = setup(
            family,
            self.attached.source,
            self.helper,
            self.targets,
            Parts(settings=LimiterSettings(limiter_functions=functions, hits_per_s=hits_per_s, **settings)),
        )
        self.attached.extra += others
        self.targets.start()
        self.reported: dict[str, list[np.ndarray]] = {}

    def turn(self) -> None:
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self.attached.pump()
        self.targets.drain(now)
        for batch in self.limiters.drain(now):
            self.reported.setdefault(batch.table, []).append(batch.rows)

    def until(self, done: Callable[[], bool], limit_s: float = 10) -> None:
        until(done, limit_s, 0.005, turn=self.turn)

    def rates(self, pid: int) -> np.ndarray:
        """Its rows of limiter_rate so far."""
        rows = np.concatenate([TABLES["limiter_rate"].empty(0), *self.reported.get("limiter_rate", [])])
        return rows[rows["pid"] == pid]

    def of(self, path: Path, library: str = "") -> Any:
        return next(
            (b for b in self.limiters.binaries.values() if b.path == str(path) and library in ("", b.library)), None
        )

    def attached_to(self, path: Path, *libraries: str) -> bool:
        """All their probes are there."""
        return all((one := self.of(path, library)) and one.since_ns for library in libraries)

    def rows(self, pid: int, count: int, limit_s: float = 15) -> np.ndarray:
        """The process's decisions in order, after as many as expected and some time in which a surplus would show."""
        found = self.attached.wait("limiter_decision", lambda r: r[r["pid"] == pid], lambda r: len(r) >= count, limit_s)
        return np.sort(found, order="t_ns")

    def close(self) -> None:
        self.targets.close()
        self.limiters.close()
        self.helper.close()


def names(rows: np.ndarray) -> list[str]:
    return [RESULTS[code] for code in rows["result"]]
