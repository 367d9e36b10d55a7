"""The stage of a run: ledger and clean-up process, namespaces, link, disk, cgroups and the programs. A context manager
that removes all of it at its end.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from agent.demo.tls_part import make_certificate
from agent.errors import PRIVILEGE, AgentError
from agent.lab.program import FAR, LOG_FD, NEAR, OTHER, LabProgram
from agent.lab.stage import disk, wallclock
from agent.lab.stage.cgroups import CONTROLLERS, Cgroups
from agent.lab.stage.ledger import BASE, PREFIX, Ledger, sweep
from agent.lab.stage.namespaces import ENDED_S, Namespaces, reap
from agent.lab.stage.netns import Namespace
from agent.lab.stage.processes import StageProcesses, wait_for
from agent.lab.stage.tun_link import tun

#: A child of the run's cgroups for what faults start, beside one per program.
GUESTS = "guests"
#: The object of programs that use the run's disk; without them there is no disk.
DISK = "disk"
DISK_BYTES_PER_S = 16 << 20
#: Time limit for the start of a server that is slow to start.
LISTENS_S = 90.0


class Stage:
    """directory: of the run, removed at its end; out: where logs stay. processes: the programs. Raises AgentError if it
    cannot be set up.
    """

    def __init__(self, out: Path, programs: dict[str, LabProgram], seed: int, patience: float = 1.0) -> None:
        if os.geteuid():
            raise AgentError(
                "the laboratory needs root: it makes namespaces, cgroups and a loop device",
                remedy="sudo tickscope lab ...",
                exit_code=PRIVILEGE,
            )
        _reserve()
        self.notes = [f"a dead run left {text}" for text in sweep()]
        self.programs, self._seed, self._patience = programs, seed, patience
        self.directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=BASE))
        self.directory.chmod(0o711)
        self._ledger = Ledger(self.directory)
        self._ledger.add("directory", self.directory)
        root = str(Path(__file__).resolve().parents[3])
        path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
        self._cleanup = subprocess.Popen(
            [sys.executable, "-P", "-m", "agent.lab.stage.cleanup", str(self.directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._out = out
        self.shared = self.directory / "shared"
        self.disk = self.shared / "disk"
        self.image = self.directory / "disk.img"
        self.groups = Cgroups(self.directory.name)
        self.device = ""
        self._held = contextlib.ExitStack()  # descriptors of this process
        #: Functions that return the pids of the run's children that have not been waited for.
        self.children: list[Callable[[], set[int]]] = []

    @property
    def intake(self) -> Path:
        return self.directory / "run" / "intake.sock"

    def __enter__(self) -> Self:
        try:
            self._set_up()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _set_up(self) -> None:
        self.shared.mkdir()
        self.shared.chmod(
            0o777
        )  # locks and journals of user nobody; other users cannot reach it without its random name
        make_certificate(self.shared, FAR)
        (self.shared / "tls.key").chmod(0o644)
        self.disk.mkdir()
        self._prepare()
        with_disk = any(DISK in program.uses for program in self.programs.values())
        if with_disk:
            self._ledger.add("disk", self.image)
        for group in self.groups.made:
            self._ledger.add(
                "cgroup", group
            )  # after the disk: the latest is undone first, and what uses a disk must have ended
        self.groups.make(GUESTS, "agent", *{p.group or name: None for name, p in self.programs.items()})
        if with_disk:
            disk.make(self.image)
            self.device = disk.attach(self.image)
        (self.shared / "resolv.conf").write_text(f"nameserver {FAR}\noptions timeout:2 attempts:3\n")
        self._namespaces = Namespaces(self._mounts)
        self.children.append(lambda: {self._namespaces.first})
        self._held.callback(self._namespaces.close)
        self.node, far = Namespace(), Namespace()
        self._held.callback(self.node.close)
        self._held.callback(far.close)
        self.node.run("ip", "addr", "add", f"{OTHER}/32", "dev", "lo")
        for space in (self.node, far):
            with space.entered():
                Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")
        ends = tun(self.node, NEAR, "fd77::1"), tun(far, FAR, "fd77::2")
        for end in ends:
            self._held.callback(os.close, end)
        self.disk_speed(DISK_BYTES_PER_S)
        logs = self._out / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self.processes = StageProcesses(
            self._namespaces,
            {"node": self.node, "far": far},
            self.groups,
            self.shared,
            logs,
            self.intake,
            ends,
            self._seed,
        )
        self.children.append(lambda: self.processes.pids)
        self._held.callback(self.processes.close)
        for servers in (True, False):
            here = [program for program in self.programs.values() if program.server == servers]
            for program in here:
                self.processes.start(program)
            for program in here:
                self._await(program)

    def _prepare(self) -> None:
        """Leaves out programs that are not available."""
        for name, program in list(self.programs.items()):
            try:
                if program.prepare is not None:
                    program.prepare(self.shared)
            except OSError as error:
                self.notes.append(f"{program.system or name} is left out: {error}")
                for other in [name, *(n for n, p in self.programs.items() if p.system == (program.system or None))]:
                    self.programs.pop(other, None)

    def _await(self, program: LabProgram) -> None:
        """Waits until it listens. Raises AgentError if it ends, or takes too long."""
        if program.listens is None:
            return

        def listens() -> bool:
            if gone := self.processes.ended():
                raise self._failed(f"{', '.join(gone)} ended by itself")
            with self.node.entered(), contextlib.suppress(OSError):
                socket.create_connection(program.listens, 1.0).close()  # type: ignore[arg-type]
                return True
            return False

        if not wait_for(listens, LISTENS_S * self._patience):
            raise self._failed(f"{program.name} did not listen in time")

    def _failed(self, what: str) -> AgentError:
        return AgentError(
            f"the laboratory's {what}", why=(self._out / "logs" / "errors.txt").read_text().strip()[-800:]
        )

    def _mounts(self) -> None:
        """Runs in the first process of the namespaces."""
        self.groups.enter(GUESTS)
        if self.device:
            disk.mount(self.device, self.disk)
            subprocess.run(
                ["losetup", "--detach", self.device], check=False, capture_output=True
            )  # takes effect when it is unmounted
            self.disk.chmod(0o777)
        subprocess.run(
            ["mount", "--bind", str(self.shared / "resolv.conf"), os.path.realpath("/etc/resolv.conf")], check=True
        )

    def disk_speed(self, bytes_per_s: int, reads: bool = False) -> None:
        """Limits the run's disk in write speed, or read speed (0: no limit), for the programs that share it. Does
        nothing without the controller.
        """
        found = self.groups.controller("blkio", "disk")
        if found is None or not self.device:
            return
        number = os.stat(self.device).st_rdev
        device, what = f"{os.major(number)}:{os.minor(number)}", "read" if reads else "write"
        place, modern = found
        if modern:
            (place / "io.max").write_text(f"{device} {what[0]}bps={bytes_per_s or 'max'}")
        else:
            (place / f"blkio.throttle.{what}_bps_device").write_text(f"{device} {bytes_per_s}")

    def lacks(self, needs: tuple[str, ...]) -> str:
        """A message about what this host lacks of a kind's needs; empty if it has all. ``cpu``, ``memory``, ``blkio``:
        cgroup controllers; ``throwaway_vm``: a machine that is marked as throwaway.
        """
        missing = [need for need in needs if need in CONTROLLERS and self.groups.controller(need, GUESTS) is None]
        if "throwaway_vm" in needs and not wallclock.is_throwaway():
            return f"no word {wallclock.WORD} on this kernel's command line"
        return f"no cgroup controller {', '.join(missing)}" if missing else ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The clean-up process removes everything, as after a kill. Raises AgentError if something is left."""
        self._ledger.close()
        self._held.close()
        assert self._cleanup.stdin is not None
        self._cleanup.stdin.close()
        status = self._cleanup.wait()
        left = reap(set().union(*(pids() for pids in self.children)), ENDED_S)
        if status or left:
            raise AgentError(
                "the laboratory could not remove all that it made",
                why="see the messages above",
                remedy="the next `tickscope lab` tries again",
            )


def _reserve() -> None:
    """Occupies the descriptors up to LOG_FD: children replace these numbers, so no descriptor of ours may have one of
    them.
    """
    while True:
        fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        if fd > LOG_FD:
            os.close(fd)
            return
