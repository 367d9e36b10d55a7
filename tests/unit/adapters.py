"""What the tests of deploy/examples/adapters share: an intake to tell, and what came to it."""

from __future__ import annotations

import subprocess
import time
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from agent.limiters import intake as room
from agent.limiters.intake import TABLE, Intake
from tests.lab import sockets
from tests.patience import PATIENCE, until
from tests.unit.test_intake_connections import flood

ADAPTERS = Path(__file__).parents[2] / "deploy/examples/adapters"
NAMES = ("intake.sock", "intake.seq.sock", "intake.stream.sock")


#: As the adapters have it: between two attempts to find an agent.
PAUSE_S = 0.1


def hashed(key: str) -> bytes:
    """As docs/limiters-names.md says that keys are stored."""
    return blake2b(key.encode(), digest_size=8).hexdigest().encode()


class Reported:
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
        until(lambda: len(self.rows) >= count, 60, turn=self.read)
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


class Program:
    """A limited program that reads lines LIMITER COUNT: it asks so often, and says how often it was allowed and how
    many decisions are still to be reported.
    """

    def __init__(self, command: list[str]) -> None:
        self._running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.pid = self._running.pid

    def ask(self, limiter: str, count: int) -> tuple[int, int]:
        assert self._running.stdin is not None
        assert self._running.stdout is not None
        self._running.stdin.write(f"{limiter} {count}\n")
        allowed, dropped = self._running.stdout.readline().split()
        return int(allowed), int(dropped)

    def close(self) -> None:
        self._running.communicate(timeout=60 * PATIENCE)
        assert self._running.returncode == 0


def held_up_by_nobody(program: Program, limiter: str, place: Path, many: int) -> None:
    """Without an agent, with one that reads nothing, with the next: each decision is reported or counted. limiter:
    allows five.
    """
    assert program.ask(limiter, 11) == (5, 11)  # no agent
    reported = Reported(place)
    time.sleep(2 * PAUSE_S)
    _, dropped = program.ask(limiter, many)  # an agent that is stopped, or behind
    assert dropped > 0
    reported.read()
    assert program.ask(limiter, 1) == (0, 0)
    reported.read()
    assert len(reported.rows) + reported.dropped() == 11 + many + 1
    reported.close()
    assert program.ask(limiter, 5) == (0, 5)
    again = Reported(place)
    time.sleep(2 * PAUSE_S)
    assert program.ask(limiter, 2) == (0, 0)
    assert (len(again.until(2)), again.dropped()) == (2, 5)
    again.close()  # another takes its place before it is missed: nothing is lost
    third = Reported(place)
    assert program.ask(limiter, 1) == (0, 0)
    assert (len(third.until(1)), third.dropped()) == (1, 0)
    third.close()


def apart_from_a_flood(program: Program, limiter: str, reported: Reported, path: Path, kind: str) -> None:
    """Another user fills the queues of its connections to the socket that the program tells."""
    for part in (path.parent, *path.parent.parents[:-2]):
        part.chmod(0o755)
    with flood(path, 3, kind) as sent:
        assert program.ask(limiter, 13) == (5, 0)
        rows = reported.until(sent + 13)
    assert sent > 13
    assert int((rows["limiter_id"] == limiter.encode()).sum()) == 13
