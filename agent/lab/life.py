"""Background activity of a healthy node, so that the workload is never perfectly steady. None of it is a fault."""

from __future__ import annotations

import contextlib
import os
import py_compile
import random
import signal
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.common.clocks import boot_ns
from agent.lab.program import Run
from agent.lab.stage.stage import GUESTS, Stage

EVERY_S = (1.5, 5.0)
RESTARTED = ("upstream", "sender", "visitors")
Event = Callable[[Stage, random.Random], str]


def _load(stage: Stage, chance: random.Random) -> str:
    """A burst or a lull of visitors and orders, between half and one and a half times the usual rate."""
    factor = chance.uniform(0.5, 1.5)
    for name in {"visitors", "producer"} & set(stage.programs):
        stage.processes.set_settings(name, per_s=stage.programs[name].settings["per_s"] * factor)
    return f"load x {factor:.2f}"


def _reload(stage: Stage, _chance: random.Random) -> str:
    os.kill(stage.processes.members["nginx"].pid, signal.SIGHUP)
    return "reload of nginx"


def _rolling(stage: Stage, chance: random.Random) -> str:
    """A restart, as a deployment does it."""
    name = chance.choice([name for name in RESTARTED if name in stage.programs])
    stage.processes.restart(name)
    return f"restart of {name}"


def _scale(stage: Stage, chance: random.Random) -> str:
    """A second process of a limiter runs beside the first for a while."""
    program, seconds = stage.programs["api-redis"], chance.uniform(4.0, 12.0)
    run = Run(program, stage.processes.members[program.name].directory, stage.shared, stage.intake)
    run.settings["per_s"] = 6.0

    def replica() -> None:
        signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
        signal.setitimer(signal.ITIMER_REAL, seconds)
        program.body(run)

    stage.processes.fork(replica, GUESTS, program.space, f"lab-{program.name}", root=False)
    return f"one more {program.name} for {seconds:.0f} s"


def _cron(stage: Stage, chance: random.Random) -> str:
    """A short-lived process that uses the CPU and writes files, at low priority."""
    seconds, place = chance.uniform(0.1, 0.6), stage.shared / "cron"

    def job() -> None:
        os.nice(10)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            data = zlib.compress(os.urandom(1 << 16))
            place.write_bytes(data)

    stage.processes.fork(job, GUESTS, "node", "lab-cron", root=False)
    return f"a job of {seconds:.1f} s"


def _build(stage: Stage, chance: random.Random) -> str:
    """Builds and installs a package at low priority: files are compiled, synced and renamed, one after the other."""
    modules = sorted(Path(contextlib.__file__).parent.joinpath("asyncio").glob("*.py"))
    some, place = chance.sample(modules, min(len(modules), chance.randrange(6, 20))), stage.shared / f"build{boot_ns()}"

    def build() -> None:
        os.nice(10)
        place.mkdir()
        for source in some:
            made = place / f"{source.stem}.new"
            py_compile.compile(str(source), cfile=str(made))
            with made.open("rb") as file:
                os.fsync(file.fileno())
            made.rename(made.with_suffix(".pyc"))

    stage.processes.fork(build, GUESTS, "node", "lab-build", root=False)
    return f"a build of {len(some)} files"


#: Activities that may run during a fault, too: they signal no process, and change nothing that a fault changes.
ALWAYS: tuple[Event, ...] = (_cron, _build)
#: (activity, programs of which one must be present).
EVENTS: tuple[tuple[Event, tuple[str, ...]], ...] = (
    *[(_load, ("visitors", "producer"))] * 2,
    (_reload, ("nginx",)),
    (_rolling, RESTARTED),
    (_scale, ("api-redis",)),
    *((event, ()) for event in ALWAYS),
)


class Life:
    """``step`` is called often; ``events`` lists what happened."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self._stage, self._chance = stage, random.Random(f"life/{seed}")
        self._able = [event for event, needs in EVENTS if not needs or set(needs) & set(stage.programs)]
        self.events: list[dict[str, Any]] = []
        self._next = self._later()

    def _later(self) -> float:
        return time.monotonic() + self._chance.uniform(*EVERY_S)

    def step(self, busy: bool) -> None:
        """busy: during a fault only ``ALWAYS`` runs, since a fault may have ended the process that a restart would
        signal.
        """
        if time.monotonic() < self._next:
            return
        t_ns = boot_ns()
        self.events.append(
            {"t_ns": t_ns, "what": self._chance.choice(ALWAYS if busy else self._able)(self._stage, self._chance)}
        )
        self._next = self._later()
