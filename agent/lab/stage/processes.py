"""The run's processes: each in the run's namespaces, in its network namespace and in a cgroup of its own, without
privileges unless declared otherwise.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.common.clocks import boot_ns
from agent.demo.processes import become_nobody, child, end_with_parent, set_name
from agent.lab.program import LOG_FD, LabProgram, Run
from agent.lab.stage.cgroups import Cgroups
from agent.lab.stage.namespaces import Namespaces
from agent.lab.stage.netns import Namespace

#: Time for a program to end on SIGTERM.
_GRACE_S = 2.0


@dataclass
class Lifespan:
    """One process of a program, from start to end (0: it runs)."""

    pid: int
    start_ns: int
    end_ns: int = 0


@dataclass
class Member:
    """A program that runs. lives: its processes, one after the other."""

    program: LabProgram
    directory: Path
    log: int
    lives: list[Lifespan] = field(default_factory=list)
    settings: int = -1

    @property
    def pid(self) -> int:
        return self.lives[-1].pid

    @property
    def comm(self) -> str:
        return (self.program.comm or f"lab-{self.program.name}")[:15]


class StageProcesses:
    """spaces: by ``LabProgram.space``. ends: the link's two devices."""

    def __init__(
        self,
        namespaces: Namespaces,
        spaces: Mapping[str, Namespace],
        groups: Cgroups,
        shared: Path,
        logs: Path,
        intake: Path,
        ends: tuple[int, int],
        seed: int,
    ) -> None:
        self._namespaces, self._spaces, self._groups, self._shared, self._logs, self._intake = (
            namespaces,
            spaces,
            groups,
            shared,
            logs,
            intake,
        )
        self._ends, self._seed = ends, seed
        self._errors = os.open(logs / "errors.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self.members: dict[str, Member] = {}
        self._joined: set[int] = set()
        self._killable: set[str] = set()

    def start(self, program: LabProgram) -> Member:
        """Starts a program for the first time, or again."""
        member = self.members.get(program.name)
        if member is None:
            directory = self._shared / f"{program.name}.d"
            directory.mkdir()
            if not program.root:
                shutil.chown(directory, "nobody")
            log = os.open(
                self._logs / f"{program.name}.ndjson", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644
            )
            member = self.members[program.name] = Member(program, directory, log)
        settings_r, settings_w = os.pipe()
        run = Run(program, member.directory, self._shared, self._intake, self._ends, self._seed)
        started_ns = boot_ns()
        pid = self.fork(
            lambda: program.body(run),
            program.group or program.name,
            program.space,
            member.comm,
            program.root,
            settings_r,
            member.log,
        )
        os.close(settings_r)
        if member.settings >= 0:
            os.close(member.settings)
        member.settings = settings_w
        member.lives.append(Lifespan(pid, started_ns))
        return member

    def fork(
        self, body: Callable[[], None], group: str, space: str, comm: str, root: bool, stdin: int = -1, log: int = -1
    ) -> int:
        """Forks a process into the run's namespaces and returns its pid on the host. group: the cgroups' child."""
        keep = list(self._ends) if root else []

        def inside() -> None:
            os.setpgid(0, 0)
            for number, fd in enumerate(
                (stdin if stdin >= 0 else self._null, self._null, self._errors, log if log >= 0 else self._null)
            ):
                os.dup2(fd, number, inheritable=True)
            sys.stdin = os.fdopen(0, closefd=False)  # the director's stdin may be another one's, or have buffered data
            self._groups.enter(group)
            self._namespaces.enter_mounts()
            _close_others(keep)
            if not root:
                become_nobody()
            end_with_parent()
            set_name(comm)
            body()

        # Descriptors 0 to 3 are replaced, so the parent must not need its own there (see Stage).
        with self._namespaces.forking(), self._spaces[space].entered():
            pid = child(inside, signal.SIGHUP)
        if log < 0:
            self._joined.add(pid)
        return pid

    @property
    def pids(self) -> set[int]:
        """Children of this process that have not been waited for."""
        return self._joined | {life.pid for member in self.members.values() for life in member.lives if not life.end_ns}

    def close(self) -> None:
        """Closes logs and settings; the clean-up process ends the programs."""
        for member in self.members.values():
            os.close(member.log)
            if member.settings >= 0:
                os.close(member.settings)
        os.close(self._errors)
        os.close(self._null)

    def set_settings(self, name: str, **settings: object) -> None:
        """Sends settings to a program. If it has ended they are lost: it starts with its usual settings."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.members[name].settings, json.dumps(settings).encode() + b"\n")

    def signal(self, name: str, number: int) -> None:
        """Signals all processes of a program."""
        first = self.members[name].pid
        below = _descendants(first)  # PostgreSQL's have process groups of their own
        os.killpg(first, number)
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def workers(self, name: str) -> set[int]:
        """Processes of a program beside its first."""
        member = self.members.get(name)
        return set(_descendants(member.pid)) if member else set()

    def kill(self, name: str) -> None:
        """Kills it and waits for its end."""
        life = self.members[name].lives[-1]
        if not life.end_ns:
            with contextlib.suppress(ProcessLookupError):
                self.signal(name, signal.SIGKILL)
            os.waitpid(life.pid, 0)
            life.end_ns = boot_ns()
        self._killable.discard(name)

    def restart(self, name: str) -> None:
        """Restarts it as a deployment does: SIGTERM, then a new process."""
        still, end = os.WEXITED | os.WNOHANG | os.WNOWAIT, time.monotonic() + _GRACE_S
        if not self.members[name].lives[-1].end_ns:
            self.signal(name, signal.SIGTERM)
            while os.waitid(os.P_PID, self.members[name].pid, still) is None and time.monotonic() < end:
                time.sleep(0.005)
        self.kill(name)
        self.start(self.members[name].program)

    def expect_end(self, name: str) -> None:
        """It may end by itself until it is started again."""
        self._killable.add(name)

    def revive(self, name: str) -> None:
        """Starts it again if it has ended as expected."""
        self.ended()
        if self.members[name].lives[-1].end_ns:
            self.start(self.members[name].program)
        self._killable.discard(name)

    def ended(self) -> list[str]:
        """Programs that ended unexpectedly, with the status. Waits for other ended children, too."""
        gone = []
        name_of = {member.lives[-1].pid: name for name, member in self.members.items()}
        for pid in [*name_of, *self._joined]:
            if pid in name_of and self.members[name_of[pid]].lives[-1].end_ns:
                continue
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # its parent waited for it
                self._joined.discard(pid)
                continue
            if not ended:
                continue
            self._joined.discard(pid)
            if pid in name_of:
                self.members[name_of[pid]].lives[-1].end_ns = boot_ns()
                if name_of[pid] not in self._killable:
                    how = os.waitstatus_to_exitcode(status)
                    gone.append(f"{name_of[pid]} ({signal.Signals(-how).name if how < 0 else f'status {how}'})")
        return gone


def _descendants(pid: int) -> list[int]:
    """Processes below one; empty if it has ended."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child_pid in map(int, children.read_text().split()):
                found += [child_pid, *_descendants(child_pid)]
    return found


def wait_for(condition: Callable[[], bool], limit_s: float) -> bool:
    """Whether it became true in time."""
    until = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _close_others(keep: list[int]) -> None:
    low = LOG_FD + 1
    for fd in sorted(keep):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1 << 16)
