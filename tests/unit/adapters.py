"""What the tests of deploy/examples/adapters share: an intake to tell, and what came to it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from agent.limiters import intake as room
from agent.limiters.intake import TABLE, Intake
from tests.lab import sockets
from tests.patience import PATIENCE

ADAPTERS = Path(__file__).parents[2] / "deploy/examples/adapters"
NAMES = ("intake.sock", "intake.seq.sock", "intake.stream.sock")


def hashed(key: str) -> bytes:
    """As docs/limiters.md says that keys are stored."""
    return blake2b(key.encode(), digest_size=8).hexdigest().encode()


class Told:
    """An intake in ``place``, and all decisions that came to it, in their order."""

    def __init__(self, place: Path) -> None:
        self._place, self.rows = place, TABLE.empty(0)
        self.source = Intake(*room.bind(sockets.directory(place / "intake.sock")))

    def read(self) -> np.ndarray:
        """What has come since the last time."""
        found = [TABLE.empty(0)]
        while batches := [
            b.rows for b in self.source.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME)) if b.table == TABLE.name
        ]:
            found += batches
        self.rows = np.concatenate([self.rows, *found])
        return np.concatenate(found)

    def until(self, count: int) -> np.ndarray:
        """All decisions, once there are so many."""
        end = time.monotonic() + 60 * PATIENCE
        while len(self.rows) < count and time.monotonic() < end:
            self.read()
            time.sleep(0.01)
        self.read()
        assert len(self.rows) == count, self.source.state()
        return self.rows

    def dropped(self) -> int:
        return self.source.losses()["dropped"]

    def results(self) -> list[str]:
        names = TABLE.by_name["result"].names
        return [names[code] for code in self.rows["result"].tolist()]

    def close(self) -> None:
        self.source.close()
        for name in NAMES:
            (self._place / name).unlink(missing_ok=True)


def columns(rows: np.ndarray, *names: str) -> list[tuple[Any, ...]]:
    """The rows' values of these columns, each once, in order."""
    return list(dict.fromkeys(zip(*(rows[name].tolist() for name in names))))


def told(place: Path) -> Iterator[Told]:
    it = Told(place)
    yield it
    it.close()
