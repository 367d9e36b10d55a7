"""The brokers' process (agent/queues/worker.py) as the agent keeps it: started where the settings name a broker, looked after, started again where it ended.

It is started when the agent is its own user already, so that it never has a privilege.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from agent.batch import Batch, Loss, losses, make
from agent.common.clocks import boot_ns
from agent.contracts import Failing, Owning
from agent.errors import printable
from agent.log import NOTICE, WARNING, say
from agent.posix.restarts import Restarts
from agent.posix.spawned import how, spawned
from agent.queues.packing import TABLE
from agent.queues.received import MOST_BYTES, NoMessage, checked
from agent.tables import TABLES

#: Without a sign of life (there are four a second) it counts as silent, and is ended after the second.
SILENT_S, MOST_SILENT_S = 3.0, 30.0
_LOOK_S = 0.2
#: The agent itself could not look for so long: nothing can be said of the process.
_HELD_UP_S = 1.0
#: Messages; what is beyond is for the next turn.
_AT_ONCE = 64
#: Killed and not gone yet: with so many none is started.
_MOST_ENDING = 4
#: For those at the end.
_PATIENCE_S = 2.0
_MODULE = "agent.queues.worker"
_REMEDY = "see what it said on stderr; restart tickscope"


class Brokers(Failing, Owning):
    """A ``Source`` (agent/contracts.py): rows of ``queue_lag``; where nobody asks, a row each kind of broker that says so, with ``failure`` unasked."""

    name = "brokers"

    def __init__(self, servers: Mapping[str, Sequence[str]], interval_s: float) -> None:
        self.restarts = Restarts()
        self._child: subprocess.Popen[bytes] | None = None
        self._ending: list[subprocess.Popen[bytes]] = []
        self._socket: socket.socket | None = None
        self._failures: dict[str, str] = {}
        self._trouble = self._told = ""
        self._answers = False
        self._said_ns = self._since_ns = 0
        self._looked_s = self._heard_s = self._interval_s = 0.0
        self._servers: dict[str, tuple[str, ...]] = {}
        self.use(servers, interval_s)

    def use(self, servers: Mapping[str, Sequence[str]], interval_s: float) -> None:
        """From now on these are asked, so often: another process does, or none where there is nothing to ask."""
        wanted = {name: tuple(some) for name, some in servers.items() if some}
        if (wanted, interval_s) == (self._servers, self._interval_s):
            return
        self._end()
        self._servers, self._interval_s = wanted, interval_s
        self.restarts, self._failures, self._looked_s = Restarts(), {}, time.monotonic()
        if wanted:
            self._start(self._looked_s)
        else:
            self._trouble = ""

    def fds(self) -> list[int]:
        """None: signs of life come more often than rows, and neither is in a hurry."""
        return []

    def drain(self, now_ns: int) -> Iterator[Batch]:
        if self._socket is not None:
            yield from self._received(self._socket, now_ns)
        now_s = time.monotonic()
        if now_s - self._looked_s >= _LOOK_S:
            held_up, self._looked_s = now_s - self._looked_s, now_s
            self._ending = [child for child in self._ending if child.poll() is None]
            if self._servers:
                self._look(now_s, held_up)
            yield from self._tell(now_ns)

    def failures(self) -> dict[str, str]:
        """The process's own, and servers whose last poll failed for a reason that is not theirs."""
        return {**({self.name: self._trouble} if self._trouble else {}), **self._failures}

    def processes(self) -> list[dict[str, Any]]:
        return [{"pid": self._child.pid, "role": self.name}] if self._child is not None else []

    def close(self) -> None:
        """Waits for the process, and not for long: a file system that does not answer may keep it from dying."""
        self._end()
        end_s = time.monotonic() + _PATIENCE_S
        for child in self._ending:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, end_s - time.monotonic()))

    def _received(self, source: socket.socket, now_ns: int) -> Iterator[Batch]:
        pieces = []
        dropped = 0
        try:
            for _ in range(_AT_ONCE):
                data = source.recv(MOST_BYTES)
                if not data:  # it has ended
                    break
                message = checked(data, self._servers, self._since_ns, boot_ns())
                self._heard_s, self._answers = time.monotonic(), True
                dropped += message.dropped
                if message.failures is None:
                    pieces.append(message.rows)
                else:
                    self._failed(message.failures)
        except NoMessage as error:
            self._end()
            self._over(time.monotonic(), f"sent what is no message: {error}")
        except (BlockingIOError, ConnectionResetError):
            pass
        if dropped:
            yield losses("intake", Loss(self.name, dropped, t_ns=now_ns))
        if pieces:
            yield Batch(TABLE.name, np.concatenate(pieces))

    def _failed(self, failures: dict[str, str]) -> None:
        failures = {printable(name): printable(why) for name, why in failures.items()}
        for name, why in failures.items():
            if self._failures.get(name) != why:
                say(f"tickscope: {name}: {why}")
        self._failures = failures

    def _look(self, now_s: float, held_up: float) -> None:
        if self._child is None and self.restarts.due(now_s) and len(self._ending) < _MOST_ENDING:
            self._start(now_s)
        if held_up > _HELD_UP_S:
            self._heard_s = min(now_s, self._heard_s + held_up)
        quiet_s = now_s - self._heard_s
        if self._child is not None:
            code = self._child.poll()
            if code is not None:
                self._over(now_s, how(code))
            elif quiet_s > MOST_SILENT_S:
                self._end()
                self._over(now_s, "it gave no sign of life")
        if self.restarts.given_up:
            self._trouble = f"the process that asks brokers is gone, the last of several in a row: {self.restarts.why}"
        elif self._child is None:
            self._trouble = f"the process that asks brokers ended ({self.restarts.why}), and is started again"
        elif quiet_s > SILENT_S:
            self._trouble = "the process that asks brokers gives no sign of life"
        elif self._answers:
            self._trouble = ""

    def _over(self, now_s: float, why: str) -> None:
        self._child, self._failures = None, {}
        self.restarts.ended(now_s, why)

    def _start(self, now_s: float) -> None:
        self._end()
        self._answers, self._since_ns = False, boot_ns()
        try:
            self._child, self._socket = spawned(
                _MODULE, "tickscope-brokers", {"brokers": self._servers, "poll_s": self._interval_s}
            )
        except OSError as error:
            self._over(now_s, f"cannot be started: {error.strerror or error}")
            return
        self._heard_s = now_s
        if self.restarts.why:
            self.restarts.started(now_s)

    def _tell(self, now_ns: int) -> Iterator[Batch]:
        """What has changed, as ``probe_status``; while nobody asks, a row each kind of broker at the usual pace."""
        if self._trouble != self._told:
            self._told = self._trouble
            remedy = _REMEDY if self.restarts.given_up else ""
            well = "they are asked again" if self._servers else "none is to be asked"
            words = "; ".join(filter(None, (self._trouble or well, remedy)))
            say(f"tickscope: brokers: {words}", WARNING if self._trouble else NOTICE)
            state = "degraded" if self._trouble else "attached" if self._servers else "off"
            yield make("probe_status", 1, t_ns=now_ns, probe=self.name.encode(), state=TABLES["probe_status"].code("state", state),
                       reason=self._trouble.encode(), remedy=remedy.encode())  # fmt: skip
        if self._trouble and now_ns - self._said_ns >= self._interval_s * 1e9:
            self._said_ns = now_ns
            yield make(TABLE.name, len(self._servers), t_ns=now_ns, system=[name.encode() for name in self._servers], status=b"down",
                       failure=TABLE.code("failure", "unasked"), reason=self._trouble.encode())  # fmt: skip

    def _end(self) -> None:
        """Kills it. It is not waited for."""
        if self._child is not None:
            self._child.kill()
            self._ending.append(self._child)
        if self._socket is not None:
            self._socket.close()
        self._child = self._socket = None
