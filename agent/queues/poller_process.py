"""The agent's side of a broker process (agent/queues/poller_worker.py): one per kind of broker that the settings name,
supervised, and restarted if it ends. A crash in one client library does not end the polling of other kinds.

It is started after the agent has given up root, so that it never has a privilege.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from agent.batch import Batch, Loss, losses, make
from agent.common.clocks import boot_ns
from agent.common.credentials import DIRECTORY, credentials_of
from agent.common.printable import printable
from agent.log import log_message
from agent.posix.process_source import ProcessSource
from agent.posix.supervisor import SILENT_S, Restarts, Supervised, spawn_with_settings
from agent.queues.catalogue import broker
from agent.queues.packing import TABLE
from agent.queues.received import MOST_BYTES, MalformedMessage, checked
from agent.queues.timer_effect import TABLE as TIMERS
from agent.queues.timer_effect import Timers

#: Messages per drain; the rest waits for the next one.
_AT_ONCE = 64
_MODULE = "agent.queues.poller_worker"


class BrokerPoller(ProcessSource):
    """A ``Source`` (agent/contracts.py): rows of ``queue_lag`` of the servers of one kind. While its process is not
    running, one row with ``failure`` unasked. timers: is handed the servers' timers.
    """

    def __init__(self, kind: str, servers: Sequence[Any], interval_s: float, timers: Timers | None = None) -> None:
        self.kind, self.name = kind, f"{kind} poller"
        self.process = Supervised(
            self.name, f"polls {kind}", self._start, self._over, silent_s=SILENT_S, restarts=Restarts()
        )
        self._timers = timers
        self._failures: dict[str, str] = {}
        self._reported_ns = self._since_ns = 0
        self._interval_s = 0.0
        self._servers: tuple[Any, ...] = ()
        self._systems: frozenset[str] = frozenset()
        self.use(servers, interval_s)

    def use(self, servers: Sequence[Any], interval_s: float) -> None:
        """Polls these servers from now on, at this interval. Replaces the process if they have changed; without servers
        there is none.
        """
        if (tuple(servers), interval_s) == (self._servers, self._interval_s):
            return
        self._servers, self._interval_s = tuple(servers), interval_s
        self._systems = _systems(self.kind, self._servers)
        if self._timers is not None:
            self._timers.forget(self.kind)
        self.process.renew()
        self.process.start()

    def supervise(self, now_ns: int) -> Iterator[Batch]:
        if self._servers:
            self.process.check()
        well = (f"{self.kind} is polled again", "attached") if self._servers else ("no server is set", "off")
        yield from self.process.report(now_ns, *well)
        yield from self._unasked(now_ns)

    def failures(self) -> dict[str, str]:
        """Failures of the process itself, and servers whose last poll failed because of an error of our own."""
        return {**super().failures(), **self._failures}

    def received(self, source: socket.socket, now_ns: int) -> Iterator[Batch]:
        pieces = dict[str, list[np.ndarray]]()
        dropped = 0
        try:
            for data, _ in self.messages(source, _AT_ONCE, MOST_BYTES):
                message = checked(data, self._systems, self._since_ns, boot_ns())
                self.process.beat()
                dropped += message.dropped
                if message.failures is not None:
                    self._failed(message.failures)
                elif message.table == TIMERS.name:
                    self._due(message.rows)
                else:
                    pieces.setdefault(message.table, []).append(message.rows)
        except MalformedMessage as error:
            self.process.fail(f"sent a malformed message: {error}")
        if dropped:
            yield losses("intake", Loss(self.name, dropped, t_ns=now_ns))
        for table, some in pieces.items():
            yield Batch(table, np.concatenate(some))

    def _failed(self, failures: dict[str, str]) -> None:
        failures = {printable(name): printable(why) for name, why in failures.items()}
        for name, why in failures.items():
            if self._failures.get(name) != why:
                log_message(f"tickscope: {name}: {why}")
        self._failures = failures

    def _due(self, rows: np.ndarray) -> None:
        if self._timers is not None:
            self._timers.see(rows)

    def _over(self) -> None:
        self._failures = {}

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket] | None:
        self._since_ns = boot_ns()
        if not self._servers:
            return None
        prefix = f"TICKSCOPE_{self.kind.upper()}_"  # of passwords, too
        environment = {
            name: value for name, value in os.environ.items() if name.startswith(prefix) or name == DIRECTORY
        }
        settings = {
            "kind": self.kind,
            "servers": self._servers,
            "poll_s": self._interval_s,
            "environment": environment,
            "credentials": credentials_of(self._servers),
        }
        return spawn_with_settings(_MODULE, "tickscope-poll", settings)

    def _unasked(self, now_ns: int) -> Iterator[Batch]:
        """While no process polls, one row at the usual interval."""
        if self.process.problem and now_ns - self._reported_ns >= self._interval_s * 1e9:
            self._reported_ns = now_ns
            yield make(
                TABLE.name,
                1,
                t_ns=now_ns,
                system=self.kind.encode(),
                status=b"down",
                failure=TABLE.code("failure", "unasked"),
                reason=self.process.problem.encode(),
            )


def _systems(kind: str, servers: Sequence[Any]) -> frozenset[str]:
    """``queue_lag.system`` of what the process sends. Loads the kind only if it is used: all together take 1.5 MB."""
    if not servers:
        return frozenset()
    try:
        return broker(kind).systems(servers)
    except Exception:  # noqa: BLE001 - the process reports a kind or a server that cannot be used
        return frozenset({kind})
