"""A program of the workload, and its view of a run."""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.common.clocks import boot_ns
from agent.common.declared import all_declared

#: Addresses of the two namespaces: the node itself (loopback, another address of its own, its end of the link), and the
#: far side.
LOOPBACK, OTHER, NEAR, FAR = "127.0.0.1", "10.78.0.9", "10.77.0.1", "10.77.0.2"
LOG_FD = 3


@dataclass(frozen=True)
class LabProgram:
    """body: runs in the program's own process, which may exec another program. space: ``node`` or ``far``. settings:
    what kinds may change while it runs. names: its names in findings, beside its process. root: keeps root.
    """

    name: str
    body: Callable[[Run], None]
    space: str = "node"
    settings: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()  # programs and objects whose faults may impact it
    server: bool = False  # others need it: it starts before them
    root: bool = False
    comm: str = ""
    group: str = ""  # its cgroup, if it shares one with others
    system: str = ""  # the broker that it belongs to: it runs in sessions with faults of that broker only
    listens: tuple[str, int] | None = None  # address and port; others start when it accepts connections there
    polled: tuple[str, str | Mapping[str, str]] | None = None  # how the agent polls it: a key of its settings, a server
    prepare: Callable[[Path], None] | None = (
        # called once before, by the laboratory, with ``Run.shared``; raises OSError if the program is not available
        None
    )

    @property
    def limiter(self) -> str:
        """The limiter whose decisions it reports, if it does."""
        return f"lab:{self.name}"


class Run:
    """A program's view of its run. directory: its own, writable; shared: for all programs; settings: change while it
    runs. ends: descriptors of the link's two devices, for programs with root; seed: the session's.
    """

    def __init__(
        self,
        program: LabProgram,
        directory: Path,
        shared: Path,
        intake: Path,
        ends: tuple[int, int] = (-1, -1),
        seed: int = 0,
    ) -> None:
        self.program, self.directory, self.shared, self.intake, self.ends, self.seed = (
            program,
            directory,
            shared,
            intake,
            ends,
            seed,
        )
        self.settings: dict[str, Any] = dict(program.settings)

    def listen(self) -> None:
        """Reads settings from standard input, one JSON object a line. Not for programs that exec."""
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        for line in sys.stdin:
            settings = json.loads(line)
            if "files" in settings:  # limit of open files; 0: the hard limit
                most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
                resource.setrlimit(resource.RLIMIT_NOFILE, (settings.pop("files") or most, most))
            self.settings.update(settings)

    def log(self, op: str, start_ns: int, outcome: str = "ok", end_ns: int | None = None) -> None:
        """Logs a finished operation: name, start and end (CLOCK_BOOTTIME), outcome (``ok``, ``refused``, or the
        error).
        """
        os.write(
            LOG_FD, b'[%d,%d,"%s","%s"]\n' % (start_ns, (end_ns or boot_ns()) - start_ns, op.encode(), outcome.encode())
        )

    def every(self, per_s: float) -> Ticks:
        return Ticks(per_s)


class Ticks:
    """An even rate: each call waits for the next tick; missed ticks are left out."""

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self._next = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        self._next = max(self._next + 1 / self.per_s, now)
        time.sleep(self._next - now)


def with_systems(there: Mapping[str, LabProgram], systems: Iterable[str]) -> dict[str, LabProgram]:
    """The programs of no broker, and those of these brokers."""
    wanted = {"", *systems}
    return {name: program for name, program in there.items() if program.system in wanted}


def reach(there: Mapping[str, LabProgram], touched: Iterable[str]) -> frozenset[str]:
    """Programs that a fault of these programs or objects may impact: they themselves, their users, and the users of
    those. All programs if ``touched`` is empty.
    """
    found = set(touched)
    if not found:
        return frozenset(there)
    while more := {name for name, program in there.items() if found & set(program.uses)} - found:
        found |= more
    return frozenset(found & set(there))


def programs() -> dict[str, LabProgram]:
    """All programs by name: each file of ``agent/lab/programs`` has a tuple ``PROGRAMS``."""
    from agent.lab import programs as package

    return {one.name: one for one in all_declared(package, "PROGRAMS", LabProgram, optional=True)}
