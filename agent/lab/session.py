"""One session: an agent and a workload, a warm-up, then one fault after the other, with quiet time between. Each fault
is scored on its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.common.clocks import boot_ns
from agent.common.version import VERSION
from agent.errors import USAGE, AgentError
from agent.lab import effect, oplog, truth
from agent.lab.deadline import at_most
from agent.lab.kind import Fault, Kind, Offender, kinds
from agent.lab.life import Life
from agent.lab.observer import Observer
from agent.lab.plan import Group
from agent.lab.program import LabProgram, programs, with_systems
from agent.lab.stage.stage import LISTENS_S, Stage
from agent.log import log_message

WARM_S, LAST_S = 14.0, 8.0
#: Longer than the start and end of agent and workload take.
START_S = 180.0


class LabSession:
    """Plays a plan and writes recording, truth and logs into ``out``. simulated: kinds that are written into the truth,
    but not injected. observed: whether an agent observes and records; without it only the effects are known. workload:
    programs; by default all, of brokers only those that a fault needs. patience: factor for time limits on a slow
    machine.
    """

    def __init__(
        self,
        plan: Sequence[Group],
        seed: int,
        out: Path,
        simulated: frozenset[str] = frozenset(),
        observed: bool = True,
        workload: Mapping[str, LabProgram] | None = None,
        patience: float = 1.0,
    ) -> None:
        self._plan, self._seed, self._out, self._simulated, self._observed = plan, seed, out, simulated, observed
        self._kinds, self._patience = kinds(), patience
        self._workload = dict(self._needed() if workload is None else workload)
        self._left_out: list[dict[str, str]] = []

    def _needed(self) -> dict[str, LabProgram]:
        systems = {self._kinds[fault.kind].system for group in self._plan for fault in group}
        return with_systems(programs(), systems)

    def play(self) -> truth.Truth:
        """Raises AgentError. Removes everything at the end, except what is in ``out``."""
        self._out.mkdir(parents=True, exist_ok=True)
        if (self._out / truth.FILE).exists():
            raise AgentError(f"{self._out} holds a session already", remedy="name another directory", exit_code=USAGE)
        shutil.rmtree(self._out / truth.LOGS, ignore_errors=True)  # of an aborted session, like its recording
        (self._out / truth.RECORDING).unlink(missing_ok=True)
        with (
            at_most((START_S + self._brokers_s()) * self._patience + 2 * self._planned_s()),
            Stage(self._out, self._workload, self._seed, self._patience) as self._stage,
        ):
            for note in self._stage.notes:
                log_message(note)
            self._life = Life(self._stage, self._seed)
            polled = [program.polled for program in self._stage.programs.values() if program.polled]
            self._observer = (
                Observer(self._stage, polled, self._out / truth.RECORDING, self._patience) if self._observed else None
            )
            self._rest(WARM_S / 2)
            from_ns = boot_ns()
            self._rest(WARM_S / 2)
            done = [d for n, group in enumerate(self._plan) for d in self._at_once(n, group)]
            self._rest(LAST_S)
            until_ns = boot_ns()
            if self._observer is not None and (problem := self._observer.stop()):
                log_message(problem)
            members = {
                name: {"comm": m.comm, "pids": [life.pid for life in m.lives], "names": list(m.program.names)}
                for name, m in self._stage.processes.members.items()
            }
        return self._write(from_ns, until_ns, members, done)

    def _brokers_s(self) -> float:
        return LISTENS_S * sum(program.listens is not None for program in self._workload.values())

    def _planned_s(self) -> float:
        return (
            WARM_S
            + LAST_S
            + sum(
                fault.gap_s + fault.duration_s + self._kinds[fault.kind].settle_s
                for group in self._plan
                for fault in group
            )
        )

    def _rest(self, seconds: float, busy: bool = False) -> None:
        """Sleeps while background activity goes on. Raises AgentError if a program ended unexpectedly."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
            self._life.step(busy)
            if self._observer is not None:
                self._observer.check()
            if gone := self._stage.processes.ended():
                raise AgentError(
                    f"the laboratory's {', '.join(gone)} ended by itself",
                    why=(self._out / truth.LOGS / "errors.txt").read_text().strip()[-800:],
                )

    def _at_once(self, number: int, group: Group) -> list[truth.Done]:
        """Injects one fault, or two that overlap; each ends after its own duration."""
        able = [fault for fault in group if not self._lacking(fault)]
        if not able:
            return []
        self._rest(able[0].gap_s)
        begins = [0.0, *(fault.gap_s for fault in able[1:])]
        steps = sorted(
            [(at, 0, n) for n, at in enumerate(begins)]
            + [(at + able[n].duration_s, 1, n) for n, at in enumerate(begins)]
        )
        injected = [_Injected(self._stage, self._kinds[f.kind], f, f.kind in self._simulated) for f in able]
        at = 0.0
        with contextlib.ExitStack() as injections:
            for one in injected:
                injections.callback(one.end)
            for when, ends, n in steps:
                self._rest(when - at, busy=any(one.on for one in injected))
                at = when
                if ends:
                    injected[n].end()
                else:
                    injected[n].begin()
        self._rest(max(self._kinds[f.kind].settle_s for f in able))
        for one in injected:
            what = f"{one.kind.name} of {one.fault.target}, {one.kind.size.what} {one.fault.size:.3g}"
            log_message(f"{number + 1}/{len(self._plan)} {what}" + (f": left out: {one.failed}" if one.failed else ""))
            if one.failed:
                self._left_out.append({"kind": one.kind.name, "why": one.failed})
        return [
            self._done(f"{self._seed}-{number}{'ab'[n] if len(able) > 1 else ''}", one)
            for n, one in enumerate(injected)
            if not one.failed
        ]

    def _lacking(self, fault: Fault) -> bool:
        kind = self._kinds[fault.kind]
        lacking = self._stage.lacks(kind.needs)
        if not kind.reach(fault, self._stage.programs):
            lacking = "no program that it can impact"
        if lacking:
            log_message(f"{fault.kind} is left out: there is {lacking}")
            self._left_out.append({"kind": fault.kind, "why": f"there is {lacking}"})
        return bool(lacking)

    def _done(self, name: str, one: _Injected) -> truth.Done:
        kind, fault = one.kind, one.fault
        return truth.Done(
            name,
            kind.name,
            fault.target,
            {"what": kind.size.what, "value": fault.size},
            one.start_ns,
            one.end_ns,
            self._culprit(one.culprit, one.pids),
            [vars(right) for right in kind.right],
            [],
            sorted(kind.reach(fault, self._stage.programs)),
            not one.simulated,
            list(kind.impacts),
        )

    def _culprit(self, culprit: Offender, pids: set[int]) -> dict[str, Any]:
        member = self._stage.processes.members.get(culprit.process)
        pids |= {life.pid for life in member.lives} if member else set(culprit.pids)
        return {
            "process": culprit.process,
            "pids": sorted(pids),
            "comm": member.comm if member else culprit.process,
            "object": culprit.object,
        }

    def _write(
        self, from_ns: int, until_ns: int, members: dict[str, dict[str, Any]], done: Sequence[truth.Done]
    ) -> truth.Truth:
        """Computes the impacts from the logs, and writes the truth."""
        logs = self._out / truth.LOGS
        made_by = {"version": VERSION, "kernel": os.uname().release, "sham": sorted(self._simulated)}
        whole = effect.measured(
            truth.Truth(self._seed, from_ns, until_ns, members, list(done), self._life.events, made_by, self._left_out),
            oplog.read(logs),
        )
        whole.write(self._out)
        oplog.pack(logs)
        return whole


class _Injected:
    """One fault. ``end`` may be called twice."""

    def __init__(self, stage: Stage, kind: Kind, fault: Fault, simulated: bool) -> None:
        self._stage, self.kind, self.fault, self.simulated = stage, kind, fault, simulated
        self.culprit, self.start_ns, self.end_ns, self.failed = Offender(), 0, 0, ""
        self.pids: set[int] = set()
        self._active = contextlib.ExitStack()

    @property
    def on(self) -> bool:
        return bool(self.start_ns and not self.end_ns)

    def begin(self) -> None:
        self.start_ns = boot_ns()
        if not self.simulated:
            try:
                self.pids = self._stage.processes.workers(self.fault.target)
                self.culprit = self._active.enter_context(self.kind.inject(self._stage, self.fault))
            except OSError as error:  # this host lacks it, or does not permit it
                self.failed = str(error)

    def end(self) -> None:
        self.end_ns = self.end_ns or boot_ns()
        self._active.close()
