"""A broker process: polls each configured server of one kind on a thread of its own, and sends packed rows to the
agent. It has no privilege and no numpy.

``python -m agent.queues.poller_worker SOCKET SETTINGS PARENT``: two descriptors, and the agent's pid. SETTINGS is JSON:
the kind of broker, its servers, the poll interval, variables of the agent's environment, and credentials. SOCKET is a
SOCK_SEQPACKET socket that is only written to: ``HEADER`` and its payload. The agent's side is
agent/queues/poller_process.py.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from agent.common.credentials import keep_credentials
from agent.common.fairness import UpperBound
from agent.posix.child_begin import begin_worker
from agent.posix.stacks import limit_stacks
from agent.queues.catalogue import broker
from agent.queues.judged import Judged
from agent.queues.packing import ROW_BYTES, SENT, pack
from agent.queues.queue import Row
from agent.queues.rounds import Rounds

#: Kind of the payload (rows of the table with that number in ``SENT``; or as a heartbeat the failures that are errors
#: of our own, as JSON), and the number of rows dropped since the previous message.
HEADER = struct.Struct("<BQ")
ALIVE = 255
#: Tables of which each row counts; the rows of the other one are all sent again at the next poll.
_COUNTED = [kind for kind, table in enumerate(SENT) if table.name != "timer_effect"]
#: Of a message, which fits well into a socket's default buffer.
PIECE_ROWS = 64
#: Of writable memory of the process, including its threads' stacks. Allocations beyond fail, and with them that poll.
BUDGET_BYTES = 256 << 20
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "queues",
        "servers of brokers",
        "one thread each",
        "those without a thread are not polled",
        "`status` (`sources`), stderr",
        setting="`TasksMax`",
    ),
)
#: Of a thread; there is one per server. A client library may start more, for example one per broker of a cluster.
_STACK_BYTES = 512 << 10
#: Time to wait for an agent that does not read; then rows are dropped.
_PATIENCE_S = 1
_BEAT_S, _LATE_S = 1.0, 0.5
#: Pauses of this process that are remembered.
_PAUSES = 16
#: Failures in one message, and characters of each name and reason.
MOST_FAILURES, REASON_CHARACTERS = 16, 200


Answer = tuple[list[Row], ...]  #: of the tables in ``SENT``


class _Polled:
    """A queue with its timers, and its messages' order."""

    def __init__(self, queue: Judged) -> None:
        self.name, self._queue, self.close = queue.name, queue, queue.close

    def poll(self) -> Answer:
        return self._queue.poll(), self._queue.timers(), self._queue.order()


class Worker:
    """``run`` never returns: the process ends with the agent."""

    def __init__(self, agent: socket.socket, kind: str, servers: list[Any], interval_s: float) -> None:
        agent.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", _PATIENCE_S, 0))
        self._agent, self._dropped = agent, 0
        self._lock = threading.Lock()
        self._unusable: dict[str, str] = {}
        self._failures: dict[str, str] = {}
        queues = self._sources(kind, servers)
        self._beat_s = time.monotonic()
        self._late: deque[tuple[float, float]] = deque(maxlen=_PAUSES)  # (end, duration) of pauses
        self._rounds = Rounds(queues, interval_s, self._take, self._note)

    def run(self) -> None:
        while True:
            now_s = time.monotonic()
            self._late += self._pause(now_s)
            self._beat_s = now_s
            failures = list((self._unusable | self._failures).items())[:MOST_FAILURES]
            failures_by_name = {name[:REASON_CHARACTERS]: why[:REASON_CHARACTERS] for name, why in failures}
            self._send(ALIVE, json.dumps(failures_by_name, ensure_ascii=False).encode(errors="replace"))
            time.sleep(_BEAT_S)

    def _sources(self, name: str, servers: Iterable[Any]) -> list[_Polled]:
        try:
            return [_Polled(queue) for queue in broker(name).sources(servers)]
        except Exception as error:  # noqa: BLE001 - one client that cannot be used must not end the others
            self._unusable[name] = f"{type(error).__name__}: {error}"
            return []

    def _take(self, answer: Answer, asked_s: float) -> None:
        if self._stood_still(asked_s):  # the rows would show this process's pause, not the server's latency
            with self._lock:
                self._dropped += len(answer[0])
            answer = [], *answer[1:]
        for kind, (table, rows) in enumerate(zip(SENT, answer, strict=True)):
            data, most = pack(rows, table.name), PIECE_ROWS * ROW_BYTES[table.name]
            for at in range(0, len(data), most):
                self._send(kind, data[at : at + most])

    def _stood_still(self, since_s: float) -> bool:
        """Whether this process could not run for most of the time since then."""
        now_s = time.monotonic()
        pauses = [*self._pause(now_s), *self._late]
        return (
            2 * sum(min(late_s, until_s - since_s) for until_s, late_s in pauses if until_s > since_s) > now_s - since_s
        )

    def _pause(self, now_s: float) -> list[tuple[float, float]]:
        late_s = now_s - self._beat_s - _BEAT_S
        return [(now_s, late_s)] if late_s > _LATE_S else []

    def _note(self, failures: dict[str, str]) -> None:
        self._failures = failures

    def _send(self, kind: int, data: bytes) -> None:
        with self._lock:
            try:
                self._agent.send(HEADER.pack(kind, self._dropped) + data)
                self._dropped = 0
            except (BrokenPipeError, ConnectionResetError):
                os._exit(0)  # the agent has ended
            except OSError:  # it does not read, or the kernel has no memory for this
                if kind in _COUNTED:
                    self._dropped += len(data) // ROW_BYTES[SENT[kind].name]


def main() -> None:
    agent, config, _ = begin_worker("tickscope-poll", BUDGET_BYTES)
    threading.stack_size(_STACK_BYTES)
    limit_stacks(_STACK_BYTES)
    os.environ.update(config["environment"])
    keep_credentials(config["credentials"])
    Worker(agent, config["kind"], config["servers"], config["poll_s"]).run()


if __name__ == "__main__":
    main()
