"""The supervisor of the agent's child processes: start, readiness, heartbeat, restart with back-off, orderly end, state
for ``status``.

A child that must be small or keeps a privilege is forked in the agent's first lines (``agent.posix.child.fork``, then
``Supervised.adopt``). Otherwise ``spawn`` runs a module of the agent on demand. A child sets limits on its memory and
the like itself, before it reads anything. The agent's loop calls ``check``; only ``close`` and ``wait`` wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from agent.common.fairness import UpperBound
from agent.common.lean import without_docstrings
from agent.errors import AgentError
from agent.log import NOTICE, WARNING, log_message
from agent.posix.child import Child
from agent.posix.signals import sheltered

if TYPE_CHECKING:
    from agent.batch import Batch

#: Failed processes in a row (not alive for STEADY_S) until the supervisor gives up.
IN_A_ROW, STEADY_S = 5, 60.0
#: For a child with a heartbeat, one a second: without it the child is silent, and then hung.
SILENT_S, HUNG_S = 3.0, 30.0
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "processes",
        "time since the last heartbeat of a child process",
        f"{SILENT_S:g} s; {HUNG_S:g} s",
        "shown as silent; killed and restarted",
        "`status` (`sources`), `probe_status`, stderr",
    ),
    UpperBound(
        "processes",
        "exits of a child process in a row",
        f"{IN_A_ROW}, each within {STEADY_S:g} s of its start",
        "not restarted until its settings change or the agent restarts",
        "`status` (`sources`), `probe_status`, stderr",
    ),
)
#: Interval between two checks of a child.
CHECK_S = 0.2
#: If the loop itself did not check for this long, the child's heartbeat cannot be judged.
_HELD_UP_S = 2.0
#: If this many ended processes are still there, no further one is started.
_MOST_ENDING = 4
_REMEDY = "see its message on stderr; restart tickscope"
#: Variables that a child inherits; others may hold secrets.
_PASSED = ("PATH", "MALLOC_ARENA_MAX", "SSL_CERT_FILE", "SSL_CERT_DIR")
P = ParamSpec("P")
T = TypeVar("T")


class ChildProcess(Protocol):
    """The part of subprocess.Popen that is used here. ``returncode``: below 0 a signal, None while it runs."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...


class Forked:
    """A ``ChildProcess`` of a forked process, by its pid."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # another part has waited for it
                self.returncode = 0
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _readable(fd: int, within_s: float) -> bool:
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    return bool(waiting.poll(max(0.0, within_s) * 1000))


def _end_of(process: ChildProcess, within_s: float) -> int | None:
    """Waits for a process, that long at most. Returns its return code, None if it still runs."""
    with contextlib.ExitStack() as held, contextlib.suppress(OSError):  # of no descriptor left
        if process.poll() is None:
            handle = os.pidfd_open(process.pid)
            held.callback(os.close, handle)
            _readable(handle, within_s)
    return process.poll()


def spawn(
    module: str | Sequence[str],
    *args: object,
    fds: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
    stderr: int | None = None,
    user: tuple[int, int] | None = None,
) -> subprocess.Popen[bytes]:
    """Runs ``python -m MODULE ARGS``, or a whole command, with these descriptors under their own numbers. environment:
    replaces the few variables that a child usually gets; PYTHONPATH is added. user: uid and gid of the child, for a
    parent that is still root. Raises OSError.
    """
    if environment is None:
        environment = {**{name: os.environ[name] for name in _PASSED if name in os.environ}, "LC_ALL": "C.UTF-8"}
    paths = (str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH"))
    python = [sys.executable, "-P", *without_docstrings(), "-m"]
    command = [*python, module] if isinstance(module, str) else module
    uid, gid = user or (None, None)
    with sheltered():
        return subprocess.Popen(
            [*command, *map(str, args)],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=fds,
            env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            user=uid,
            group=gid,
            extra_groups=[] if user else None,
        )


def spawn_with_socket(
    module: str | Sequence[str], *args: object, fds: Sequence[int] = (), environment: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """``spawn`` with a SOCK_SEQPACKET pair: the child's end is the first argument. Returns the process and the agent's
    end. Raises OSError, with both ends closed.
    """
    parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with child_end:
        fd = child_end.fileno()
        try:
            return spawn(module, fd, *args, fds=(fd, *fds), environment=environment), parent_end
        except OSError:
            parent_end.close()
            raise


def spawn_with_settings(
    module: str, label: str, settings: Mapping[str, object], *more: int
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Runs ``python -m MODULE SOCKET SETTINGS PARENT [MORE]``. Returns the process and the agent's end of its socket
    (SOCK_SEQPACKET, non-blocking).

    SOCKET and SETTINGS are descriptors, of which the second holds the settings as JSON; PARENT is the agent's pid.
    label: of the memory with the settings. more: further descriptors for the child. Raises OSError, with all
    descriptors closed.
    """
    memory = os.memfd_create(label, os.MFD_CLOEXEC)  # not the command line, which any user may read
    with open(memory, "w+b", buffering=0) as file:
        file.write(json.dumps(settings).encode())
        file.seek(0)
        process, sock = spawn_with_socket(module, memory, os.getpid(), *more, fds=(memory, *more))
    sock.setblocking(False)
    return process, sock


def how(code: int) -> str:
    """How a process ended, as text, by subprocess's return code."""
    try:
        return signal.Signals(-code).name if code < 0 else f"exit status {code}"
    except ValueError:  # a real-time signal
        return f"signal {-code}"


class Restarts:
    """When to restart a process that ended: after first_s, then twice as long each time, at most most_s. It gives up
    after in_a_row processes in a row that did not live for steady_s (None: never). Pure: the caller passes the time, in
    seconds.

    ``count``: restarts so far. ``given_up``: no more restarts. ``last_s``: time of the last one. ``why``: why the
    process before it ended.
    """

    def __init__(
        self,
        first_s: float = 0.5,
        most_s: float = 60.0,
        in_a_row: int | None = IN_A_ROW,
        steady_s: float = STEADY_S,
    ) -> None:
        self.first_s, self.most_s, self.in_a_row, self.steady_s = first_s, most_s, in_a_row, steady_s
        self.forget()

    def forget(self) -> None:
        """Resets everything, for new settings."""
        self.count, self.given_up, self.why = 0, False, ""
        self.last_s = self._since_s = self._due_s = 0.0
        self._short = 0

    def ended(self, now_s: float, why: str) -> None:
        """Notes that a process has ended, or could not be started."""
        if now_s - self._since_s >= self.steady_s:
            self._short = 0
        self._short, self._since_s = self._short + 1, now_s
        self.why, self.given_up = why, self.in_a_row is not None and self._short > self.in_a_row
        self._due_s = now_s + min(self.first_s * 2 ** min(self._short - 1, 32), self.most_s)

    def due(self, now_s: float) -> bool:
        """Whether to start the next process now."""
        return not self.given_up and now_s >= self._due_s

    def started(self, now_s: float) -> None:
        """Notes a restart."""
        self.count += bool(self.why)
        self.last_s = self._since_s = now_s


def _nothing() -> None:
    """Does nothing."""


class Supervised:
    """One child process at a time.

    role: its name in ``status``. does: its job, as text. meanwhile: what is missing without it. start: starts one, with
    the agent's end of its socket if it has one; None if there is nothing to do; raises OSError. Without ``start`` the
    owner starts one when needed, and calls ``adopt``. over: called once for each that has ended. silent_s: without
    ``beat`` for this long it counts as silent; after hung_s it is killed and restarted; 0: no heartbeat is expected.
    ends_s: time to end by itself before it is killed. restarts: when it is restarted, by default never.

    fault: why an end with this return code is a fault; empty for a process that has done its one job.

    ``process``, ``socket``: None while there is none. ``silent``: no heartbeat. ``problem``: text, empty while all is
    well. ``drained``: its socket was read to the end, so that its exit may be reported.
    """

    def __init__(
        self,
        role: str,
        does: str,
        start: Callable[[], tuple[ChildProcess, socket.socket | None] | None] = _nothing,
        over: Callable[[], None] = _nothing,
        *,
        fault: Callable[[int], str] = how,
        silent_s: float = 0.0,
        hung_s: float = HUNG_S,
        ends_s: float = 2.0,
        restarts: Restarts | None = None,
        meanwhile: str = "",
    ) -> None:
        self.role, self.silent_s, self.hung_s, self.ends_s = role, silent_s, hung_s, ends_s
        self.restarts = restarts or Restarts(in_a_row=0)
        self.process: ChildProcess | None = None
        self.socket: socket.socket | None = None
        self.silent, self.drained, self.problem = False, True, ""
        self._reported, self._beats = "", False
        self._does, self._start, self._over, self._meanwhile = f"the process that {does}", start, over, meanwhile
        self._fault = fault
        self._ending: list[tuple[ChildProcess, float]] = []  # each with the time to kill it
        self._checked_s = self._beat_s = time.monotonic()
        self._held_up_s = 0.0

    def start(self) -> bool:
        """Starts a process in place of a running one. Returns whether that worked."""
        self.end()
        try:
            started = self._start()
        except OSError as error:
            self.fail(f"a process cannot be started: {error.strerror or error}")
            return False
        if started is not None:
            self.adopt(*started)
            self.restarts.started(time.monotonic())
        return started is not None

    def adopt(self, process: ChildProcess, sock: socket.socket | None = None) -> None:
        """Supervises a process that runs already."""
        self.process, self.socket = process, sock
        self.drained, self._beats = sock is None or not self.silent_s, False
        self._beat_s = self._checked_s = time.monotonic()

    def renew(self) -> None:
        """Ends the process, and resets problems, for new settings."""
        self.end(kill=False)
        self.restarts.forget()
        self.problem, self._checked_s = "", time.monotonic()

    def beat(self) -> None:
        """Notes a heartbeat."""
        self._beat_s, self._beats = time.monotonic(), True

    def readable(self) -> bool:
        """Whether data waits on its socket."""
        return self.socket is not None and _readable(self.socket.fileno(), 0.0)

    def fail(self, why: str) -> None:
        """Ends a useless process. It is restarted later if it has ``restarts``."""
        self.end()
        self.restarts.ended(time.monotonic(), why)

    def due(self) -> bool:
        """Whether it is time for ``check``; kills those that take too long to end."""
        now_s = time.monotonic()
        if now_s - self._checked_s < CHECK_S:
            return False
        self._held_up_s, self._checked_s = now_s - self._checked_s, now_s
        self.reap()
        return True

    def reap(self) -> None:
        """Collects processes that were asked to end; kills those that take too long."""
        self._ending = [one for one in self._ending if one[0].poll() is None]
        for process, until_s in self._ending:
            if time.monotonic() >= until_s:
                process.kill()

    def check(self) -> None:
        """Checks the process, and starts it if needed."""
        now_s = time.monotonic()
        if self.process is None and self.restarts.due(now_s) and len(self._ending) < _MOST_ENDING:
            self.start()
        if self._held_up_s > _HELD_UP_S:
            self._beat_s = min(now_s, self._beat_s + self._held_up_s)
        quiet_s = now_s - self._beat_s if self.silent_s else 0.0
        if self.process is not None:
            code = self.process.poll()
            if code is not None and (self.drained or quiet_s > self.silent_s):  # messages that it sent are read first
                self._ended(code)
            elif quiet_s > self.hung_s:
                self.fail("it sent no heartbeat")
        self.silent = self.process is not None and quiet_s > self.silent_s
        self.problem = self._problem()

    def _ended(self, code: int) -> None:
        if why := self._fault(code):
            self.fail(why)
        else:
            self.end()
            self.restarts.forget()

    def wait(self, within_s: float) -> None:
        """Waits until the process has ended by itself; kills it after that time."""
        if self.process is not None:
            code = _end_of(self.process, within_s)
            if code is None:
                self.fail(f"it took longer than {within_s:g} s")
            else:
                self._ended(code)

    def leave(self) -> None:
        """Leaves a process that ends by itself and may outlive the agent."""
        if self.process is not None:  # with a code, subprocess no longer waits for it, nor warns about it
            self.process.returncode, self.process = self.process.poll() or 0, None

    def _problem(self) -> str:
        if self.restarts.given_up:
            several = ", the last of several in a row" if self.restarts.in_a_row else ""
            return f"{self._does} is gone{several}: {self.restarts.why}"
        if self.process is None and self.restarts.why:
            return f"{self._does} ended ({self.restarts.why}), and is started again"
        if self.silent:
            return f"{self._does} sends no heartbeat"
        # a new one counts as well after its first heartbeat
        return "" if self._beats or not self.silent_s else self.problem

    def report(self, now_ns: int, well: str, state: str) -> Iterator[Batch]:
        """Reports changes on stderr and as ``probe_status``. well, state: its text and state without a problem."""
        from agent.batch import make  # imported late: the hook's process is forked before numpy is imported
        from agent.tables import TABLES

        if self.problem == self._reported:
            return
        self._reported = self.problem
        remedy = _REMEDY if self.restarts.given_up else ""
        words = "; ".join(filter(None, (self.problem or well, remedy)))
        log_message(f"tickscope: {self.role}: {words}", WARNING if self.problem else NOTICE)
        yield make(
            "probe_status",
            1,
            t_ns=now_ns,
            probe=self.role.encode(),
            state=TABLES["probe_status"].code("state", "degraded" if self.problem else state),
            reason=self.problem.encode(),
            remedy=remedy.encode(),
        )

    def state(self) -> str:
        """For ``status``: ``running``, or the problem, what is missing meanwhile, and the remedy."""
        remedy = _REMEDY if self.restarts.given_up or not self.restarts.in_a_row else ""
        problem = self._problem()
        return "; ".join(filter(None, (problem, self._meanwhile, remedy))) if problem else "running"

    def failures(self) -> dict[str, str]:
        return {self.role: self.problem} if self.problem else {}

    def processes(self) -> list[dict[str, Any]]:
        """For ``status``."""
        return [{"pid": self.process.pid, "role": self.role}] if self.process is not None else []

    def end(self, kill: bool = True) -> None:
        """Ends the process without waiting: a file system that does not answer may keep it from dying. Without ``kill``
        it ends by itself when its socket is closed, or by SIGTERM if it has none; SIGKILL would look like a fault in
        the host's monitoring.
        """
        if self.process is None:
            return
        process, sock, self.process, self.socket = self.process, self.socket, None, None
        if sock is not None:
            sock.close()
        if process.poll() is None:
            for number in (signal.SIGKILL,) if kill else (signal.SIGCONT,) if sock is not None else _POLITE:
                process.send_signal(number)
            self._ending.append((process, time.monotonic() + self.ends_s))
        self.silent = False
        self._over()

    def close(self, kill: bool = False) -> None:
        """Ends it and waits, for ``ends_s`` at most."""
        self.end(kill=kill)
        for process, until_s in self._ending:
            _end_of(process, until_s - time.monotonic())
        self.reap()


_POLITE = (signal.SIGTERM, signal.SIGCONT)


class OfChild:
    """A part of the agent whose work one child process does."""

    child: Supervised

    @property
    def alive(self) -> bool:
        """False once the process is gone, until another one is started."""
        return self.child.process is not None

    @property
    def silent(self) -> bool:
        """Whether the process sends no heartbeat, or does not answer."""
        return self.child.silent


def begun(name: str, start: Callable[Concatenate[Child, P], T], child: Child, *args: P.args, **named: P.kwargs) -> T:
    """Starts a child that was forked in the agent's first lines, and returns the result of ``start``. Raises AgentError
    if the child has ended, and what ``start`` raises.
    """
    try:
        return start(child, *args, **named)
    except (BrokenPipeError, ConnectionResetError) as error:
        code = Forked(child[1]).poll()
        raise AgentError(
            f"the agent's process {name} (pid {child[1]}) ended before it could begin",
            why="it closed its socket" if code is None else f"killed by {how(code)}" if code < 0 else how(code),
            remedy=(
                "free memory or raise the service's MemoryMax= if it was killed, then start tickscope again; its own"
                " message is above"
            ),
        ) from error
