"""The receiver's process (agent/receiver/worker.py) as the agent keeps it: started where the settings name an address,
looked after, started again where it ended.

It is started when the agent is its own user already, so that it never has a privilege. It knows a connection's user;
which process that is the agent finds out, as soon as it begins.
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

from agent.batch import Batch, Loss, losses
from agent.common.clocks import boot_ns
from agent.contracts import Failing, Owning, Stating
from agent.limiters.decision import salt_digest
from agent.log import say
from agent.posix.kept import KeptProcess
from agent.posix.spawned import spawned
from agent.receiver import tally
from agent.receiver.listeners import OtlpPorts
from agent.receiver.people import People
from agent.receiver.received import MOST_BYTES, NoOtlpMessage, ReceiverMessage, checked
from agent.receiver.settings import ReceiverConfig
from agent.receiver.wire import ALIVE, COUNTS, DIRECTORY, GONE, LOST, NUMBER, TABLE, WHO

if TYPE_CHECKING:
    from agent.config import Config

#: The longest pause between two looks at whose connections are new.
_MEET_MOST_S = 0.5
#: Messages; what is beyond is for the next turn.
_AT_ONCE = 64
_LOSS_NS = 1_000_000_000
#: A decision is older than this only where somebody sends what is not of now.
OLDEST_NS = 15 * 60 * 1_000_000_000
_SOCKETS = ("grpc.sock",)
#: What only the agent counts.
TIMES = "decisions of another time: older than 15 min, or still to come"


def told(config: Config) -> dict[str, object]:
    """What the process is told of the agent's settings, beside where to listen."""
    return {"keys": config.intake_keys, "names": dict(config.limiter_names), "salt": salt_digest().hex()}


class OtlpReceiver(Failing, Owning, Stating):
    """A ``Source`` (agent/contracts.py): rows of ``limiter_decision``. to_boot: Unix ns to CLOCK_BOOTTIME ns, shape
    (n,); raises ValueError while that is not known.
    run_fd: the run directory. settings: what else the process is told.
    """

    name = "otlp receiver"
    #: What was lost or put off, in words (agent/service/bounds.py).
    reasons: ClassVar[dict[str, str]] = {**{name: words for name, words in COUNTS.items() if words}, "times": TIMES}

    def __init__(
        self,
        config: ReceiverConfig,
        run_fd: int,
        people: People,
        to_boot: Callable[[np.ndarray], np.ndarray],
        settings: Mapping[str, object],
    ) -> None:
        self.process = KeptProcess(self.name, "takes OTLP", self._start, self._over)
        self._config, self._people, self._to_boot = config, people, to_boot
        self._run_fd = run_fd
        self._settings = dict(settings)
        self._listeners, self._said = OtlpPorts(), dict[str, str]()
        self._tally = -1
        self._before, self._counts = Counter[str](), Counter[str]()  # by processes that have ended, and by this one
        self._times = self._lost = self._connections = 0
        self._lost_ns = boot_ns()
        self._asked: dict[int, ReceiverMessage] = {}
        self._meet_s = 0.0
        self._listeners.use(config, time.monotonic())
        self.process.start()

    def use(self, config: Config) -> None:
        """From now on these settings: another process listens, or none."""
        self._config = config.receiver()
        self._settings.update(told(config))
        self.process.renew()
        self._listeners.use(self._config, time.monotonic())
        self.process.start()

    def fds(self) -> list[int]:
        """None: a connection waits for the agent, but at most until its next turn."""
        return []

    def drain(self, now_ns: int) -> Iterator[Batch]:
        if self.process.socket is not None:
            yield from self._received(self.process.socket, now_ns)
        if self.process.turn():
            if self._config.enabled:
                self._look()
            well = ("it takes OTLP again", "attached") if self._config.enabled else ("it is off", "off")
            yield from self.process.tell(now_ns, *well)
            yield from self._lose(now_ns)

    def counts(self) -> dict[str, int]:
        """Since the agent's start, by the names of ``COUNTS``, and ``times``."""
        return {**{name: self._before[name] + self._counts[name] for name in COUNTS}, "times": self._times}

    def state(self) -> dict[str, Any]:
        """For ``status``."""
        where = {kind: f"{at[0]}:{at[1]}" for kind in ("http", "grpc") if (at := getattr(self._config, kind))}
        return {**where, "connections": self._connections, **self.counts()}

    def failures(self) -> dict[str, str]:
        return {**self.process.failures(), **self._listeners.failures}

    def processes(self) -> list[dict[str, Any]]:
        return self.process.processes()

    def close(self) -> None:
        self.process.close()
        self._listeners.close()
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
                    self.process.drained = True
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
            self.process.fail(f"sent what is no message: {error}")
            asked.clear()  # the next one's connections have the same numbers
        except (BlockingIOError, ConnectionResetError):  # a reset comes before what was still said
            pass
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
        """Who they are that began to talk. It takes a look at all sockets of the host: for several at once, and no more
        than a tenth of the time.
        """
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
        self.process.heard()
        self._counts, self._connections = Counter(told.counts or {}), told.connections

    def _look(self) -> None:
        if self.process.restarts.given_up:
            self._listeners.close()  # who sends is refused at once: nobody would take it
        elif self._listeners.missing(self._config, time.monotonic()):  # one process has all
            self.process.start()
        for name, why in self._listeners.failures.items():
            if self._said.get(name) != why:
                say(f"tickscope: {name}: {why}")
        self._said = dict(self._listeners.failures)
        self.process.look()

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket] | None:
        if not (listeners := self._listeners.fds()):
            return None
        said = {**self._settings, "listeners": list(listeners)}
        self._tally = tally.made()
        try:
            return spawned(
                "agent.receiver.worker", "tickscope-otlp", said, self._run_fd, self._tally, *listeners.values()
            )
        except OSError:
            self._close_tally()
            raise

    def _over(self) -> None:
        self._counts |= tally.read(self._tally)  # also of what it has not told any more
        self._close_tally()
        self._before += self._counts
        self._counts, self._connections = Counter(), 0
        self._asked = {}
        self._people.forget()

    def _lose(self, now_ns: int) -> Iterator[Batch]:
        counts = self.counts()
        lost = sum(counts[name] for name in LOST) + self._times
        if lost == self._lost:
            self._lost_ns = now_ns
        elif now_ns - self._lost_ns >= _LOSS_NS:
            yield losses("intake", Loss("otlp", lost - self._lost, self._lost_ns, now_ns))
            self._lost, self._lost_ns = lost, now_ns

    def _close_tally(self) -> None:
        os.close(self._tally)
        self._tally = -1
