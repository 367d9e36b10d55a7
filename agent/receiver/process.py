"""The receiver's process (agent/receiver/worker.py) as the agent keeps it: started where the settings name an address, looked after, started again where it ended.

It is started when the agent is its own user already, so that it never has a privilege. It knows a connection's user; which process that is the agent finds out, as soon as it begins.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from agent.batch import Batch, Loss, losses, make
from agent.common.clocks import boot_ns
from agent.contracts import Failing, Owning, Stating
from agent.limiters.decision import salt_digest
from agent.log import NOTICE, WARNING, say
from agent.posix.restarts import Restarts
from agent.posix.spawned import how, spawned
from agent.receiver import tally
from agent.receiver.listeners import OtlpPorts
from agent.receiver.people import People
from agent.receiver.received import MOST_BYTES, NoOtlpMessage, ReceiverMessage, checked
from agent.receiver.settings import ReceiverConfig
from agent.receiver.wire import ALIVE, COUNTS, DIRECTORY, GONE, LOST, NUMBER, TABLE, WHO
from agent.tables import TABLES

if TYPE_CHECKING:
    from agent.config import Config

#: Without a sign of life (there are four a second) it counts as silent, and is ended after the second.
SILENT_S, MOST_SILENT_S = 3.0, 30.0
_LOOK_S = 0.2
#: The longest pause between two looks at whose connections are new.
_MEET_MOST_S = 0.5
#: The agent itself could not look for so long: nothing can be said of the process.
_HELD_UP_S = 1.0
#: Messages; what is beyond is for the next turn.
_AT_ONCE = 64
_LOSS_NS = 1_000_000_000
#: A decision is older than this only where somebody sends what is not of now.
OLDEST_NS = 15 * 60 * 1_000_000_000
#: For the process at the end.
_PATIENCE_S = 2.0
_SOCKETS = ("grpc.sock",)
_REMEDY = "see what it said on stderr; restart tickscope"
#: What only the agent counts.
TIMES = "decisions of another time: older than 15 min, or still to come"


def told(config: Config) -> dict[str, object]:
    """What the process is told of the agent's settings, beside where to listen."""
    return {"keys": config.intake_keys, "names": dict(config.limiter_names), "salt": salt_digest().hex()}


class OtlpReceiver(Failing, Owning, Stating):
    """A ``Source`` (agent/contracts.py): rows of ``limiter_decision``. to_boot: Unix ns to CLOCK_BOOTTIME ns, shape (n,); raises ValueError while that is not known.
    run_fd: the run directory. settings: what else the process is told."""

    name = "otlp receiver"
    #: What was lost or put off, in words (agent/service/bounds.py).
    reasons: ClassVar[dict[str, str]] = {**{name: words for name, words in COUNTS.items() if words}, "times": TIMES}

    def __init__(self, config: ReceiverConfig, run_fd: int, people: People, to_boot: Callable[[np.ndarray], np.ndarray], settings: Mapping[str, object]) -> None:  # fmt: skip
        self.restarts = Restarts()
        self._config, self._people, self._to_boot = config, people, to_boot
        self._run_fd = run_fd
        self._settings = dict(settings)
        self._child: subprocess.Popen[bytes] | None = None
        self._ending: list[subprocess.Popen[bytes]] = []
        self._socket: socket.socket | None = None
        self._listeners, self._said = OtlpPorts(), dict[str, str]()
        self._tally, self._drained = -1, True
        self._trouble = self._told = ""
        self._before, self._counts = Counter[str](), Counter[str]()  # by processes that have ended, and by this one
        self._times = self._lost = self._connections = 0
        self._lost_ns = boot_ns()
        self._looked_s = self._heard_s = time.monotonic()
        self._answers = False
        self._asked: dict[int, ReceiverMessage] = {}
        self._meet_s = 0.0
        self._listeners.use(config, self._looked_s)
        self._start(self._looked_s)

    def use(self, config: Config) -> None:
        """From now on these settings: another process listens, or none."""
        self._config = config.receiver()
        self._settings.update(told(config))
        self.restarts, self._trouble = Restarts(), ""
        self._end()
        self._listeners.use(self._config, time.monotonic())
        if self._config.enabled:
            self._start(time.monotonic())

    def fds(self) -> list[int]:
        """None: a connection waits for the agent, but at most until its next turn."""
        return []

    def drain(self, now_ns: int) -> Iterator[Batch]:
        if self._socket is not None:
            yield from self._received(self._socket, now_ns)
        now_s = time.monotonic()
        if now_s - self._looked_s >= _LOOK_S:
            held_up, self._looked_s = now_s - self._looked_s, now_s
            self._ending = [child for child in self._ending if child.poll() is None]
            if self._config.enabled:
                self._look(now_s, held_up)
            yield from self._tell(now_ns)

    def counts(self) -> dict[str, int]:
        """Since the agent's start, by the names of ``COUNTS``, and ``times``."""
        return {**{name: self._before[name] + self._counts[name] for name in COUNTS}, "times": self._times}

    def state(self) -> dict[str, Any]:
        """For ``status``."""
        where = {kind: f"{at[0]}:{at[1]}" for kind in ("http", "grpc") if (at := getattr(self._config, kind))}
        return {**where, "connections": self._connections, **self.counts()}

    def failures(self) -> dict[str, str]:
        return {**({self.name: self._trouble} if self._trouble else {}), **self._listeners.failures}

    def processes(self) -> list[dict[str, Any]]:
        return [{"pid": self._child.pid, "role": self.name}] if self._child is not None else []

    def close(self) -> None:
        """Waits for the process, and not for long."""
        self._end()
        self._listeners.close()
        end_s = time.monotonic() + _PATIENCE_S
        for child in self._ending:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, end_s - time.monotonic()))
        with contextlib.suppress(OSError):
            for name in _SOCKETS:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{DIRECTORY}/{name}", dir_fd=self._run_fd)
            os.rmdir(DIRECTORY, dir_fd=self._run_fd)

    def _received(self, source: socket.socket, now_ns: int) -> Iterator[Batch]:
        pieces: list[ReceiverMessage] = []
        asked: list[ReceiverMessage] = []
        gone: list[int] = []
        try:
            for _ in range(_AT_ONCE):
                data = source.recv(MOST_BYTES)
                if not data:  # it has ended
                    self._drained = True
                    break
                told = checked(data)
                if told.kind == ALIVE:
                    self._alive(told)
                elif told.kind == WHO:
                    asked.append(told)
                elif told.kind == GONE:
                    gone.append(told.number)
                else:
                    pieces.append(told)
        except NoOtlpMessage as error:  # what came before is taken
            self._end()
            self.restarts.ended(time.monotonic(), f"sent what is no message: {error}")
        except BlockingIOError:
            pass
        except ConnectionResetError:
            self._drained = True
        self._asked.update((told.number, told) for told in asked)
        for number in gone:
            self._asked.pop(number, None)
        self._meet(source)
        if pieces:
            rows = self._placed(pieces)
            if len(rows):
                yield Batch(TABLE.name, rows)
        self._people.part(gone)

    def _meet(self, source: socket.socket) -> None:
        """Who they are that began to talk. It takes a look at all sockets of the host: for several at once, and no more than a tenth of the time."""
        begun_s = time.monotonic()
        if not self._asked or begun_s < self._meet_s:
            return
        asked, self._asked = self._asked, {}
        self._people.meet({number: told.ends for number, told in asked.items() if told.ends is not None})
        with contextlib.suppress(OSError):  # it waits for no more than a second
            for number in asked:
                source.send(NUMBER.pack(number))
        now_s = time.monotonic()
        self._meet_s = now_s + min(_MEET_MOST_S, 9 * (now_s - begun_s))

    def _placed(self, pieces: list[ReceiverMessage]) -> np.ndarray:
        """Their rows, with who sent them and CLOCK_BOOTTIME; without those of another time."""
        for told in pieces:
            assert told.rows is not None
            self._people.name(told.number, told.rows)
        rows = np.concatenate([told.rows for told in pieces if told.rows is not None])
        now_ns = boot_ns()
        unknown = rows["t_ns"] == 0
        try:
            rows["t_ns"] = np.where(unknown, now_ns, self._to_boot(rows["t_ns"]))
        except ValueError:  # no reading of the clocks yet
            rows["t_ns"] += now_ns - time.time_ns()
            rows["t_ns"][unknown] = now_ns
        fits = (rows["t_ns"] <= now_ns) & (rows["t_ns"] > now_ns - OLDEST_NS)
        self._times += int((~fits).sum())
        return rows[fits]

    def _alive(self, told: ReceiverMessage) -> None:
        self._heard_s, self._answers = time.monotonic(), True
        self._counts, self._connections = Counter(told.counts or {}), told.connections

    def _look(self, now_s: float, held_up: float) -> None:
        if self.restarts.given_up:
            self._listeners.close()  # who sends is refused at once: nobody would take it
        elif self._listeners.missing(self._config, now_s):  # one process has all
            self._end()
            self._start(now_s)
        for name, why in self._listeners.failures.items():
            if self._said.get(name) != why:
                say(f"tickscope: {name}: {why}")
        self._said = dict(self._listeners.failures)
        if self._child is None and self.restarts.due(now_s):
            self._start(now_s)
        if held_up > _HELD_UP_S:
            self._heard_s = min(now_s, self._heard_s + held_up)
        quiet_s = now_s - self._heard_s
        if self._child is not None:
            code = self._child.poll()
            if code is not None and (self._drained or quiet_s > SILENT_S):  # what it still said is taken first
                self._end()
                self.restarts.ended(now_s, how(code))
            elif quiet_s > MOST_SILENT_S:
                self._end()
                self.restarts.ended(now_s, "it gave no sign of life")
        if self.restarts.given_up:
            self._trouble = f"the process that takes OTLP is gone, the last of several in a row: {self.restarts.why}"
        elif self._child is None and self._listeners.fds():
            self._trouble = f"the process that takes OTLP ended ({self.restarts.why}), and is started again"
        elif self._child is not None and quiet_s > SILENT_S:
            self._trouble = "the process that takes OTLP gives no sign of life"
        elif self._answers:
            self._trouble = ""

    def _start(self, now_s: float) -> None:
        self._answers, self._drained = False, False
        if not (listeners := self._listeners.fds()):
            return
        said = {**self._settings, "listeners": list(listeners)}
        try:
            self._tally = tally.made()
            self._child, self._socket = spawned("agent.receiver.worker", "tickscope-otlp", said, self._run_fd, self._tally, *listeners.values())  # fmt: skip
        except OSError as error:
            self._close_tally()
            self.restarts.ended(now_s, f"cannot be started: {error.strerror or error}")
            return
        self._heard_s = now_s
        if self.restarts.why:
            self.restarts.started(now_s)

    def _tell(self, now_ns: int) -> Iterator[Batch]:
        """What has changed, as ``probe_status``, and what was lost."""
        if self._trouble != self._told:
            self._told = self._trouble
            remedy = _REMEDY if self.restarts.given_up else ""
            well = ("it takes OTLP again", "attached") if self._config.enabled else ("it is off", "off")
            words = "; ".join(filter(None, (self._trouble or well[0], remedy)))
            say(f"tickscope: {self.name}: {words}", WARNING if self._trouble else NOTICE)
            state = "degraded" if self._trouble else well[1]
            yield make("probe_status", 1, t_ns=now_ns, probe=self.name.encode(), state=TABLES["probe_status"].code("state", state),
                       reason=self._trouble.encode(), remedy=remedy.encode())  # fmt: skip
        counts = self.counts()
        lost = sum(counts[name] for name in LOST) + self._times
        if lost == self._lost:
            self._lost_ns = now_ns
        elif now_ns - self._lost_ns >= _LOSS_NS:
            yield losses("intake", Loss("otlp", lost - self._lost, self._lost_ns, now_ns))
            self._lost, self._lost_ns = lost, now_ns

    def _end(self) -> None:
        """Kills it. It is not waited for."""
        if self._child is not None:
            self._child.kill()
            self._ending.append(self._child)
        if self._socket is not None:
            self._socket.close()
        self._child = self._socket = None
        self._counts |= tally.read(self._tally)  # also of what it has not told any more
        self._close_tally()
        self._before += self._counts
        self._counts, self._connections = Counter(), 0
        self._asked = {}
        self._people.forget()

    def _close_tally(self) -> None:
        if self._tally >= 0:
            os.close(self._tally)
        self._tally = -1
