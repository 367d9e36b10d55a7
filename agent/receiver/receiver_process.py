"""The receiver's process (agent/receiver/receiver_worker.py) as the agent keeps it: started where the settings name
an address, and started again where it ended. It is started when the agent is its own user already, so that it never
has a privilege.

The agent binds the address, so that nobody else has the port while one process has ended and the next begins. Which
process sends on a connection is what the tcp probe's kernel programs know; it is looked up once a connection, before
the client gets its answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from agent.batch import Batch, Loss, losses, make
from agent.common.clocks import boot_ns
from agent.common.copies import together
from agent.common.recent import Recent
from agent.contracts import Stating
from agent.limiters.decision import salt_digest
from agent.log import log_message
from agent.posix.process_source import ProcessSource
from agent.posix.supervisor import SILENT_S, Restarts, Supervised, spawn_with_settings
from agent.receiver.receiver_messages import ACK, COUNTS, HEAD, LOST, MAX_RECORDS, TABLE

if TYPE_CHECKING:
    from agent.clock.history import History
    from agent.kernel.loaded_families import Loaded
    from agent.limiters.settings import LimiterSettings
    from agent.receiver.settings import ReceiverSettings

#: Taken in a turn of the loop: messages, and rows after which no further message is taken.
_MAX_MESSAGES, _MAX_ROWS, _MESSAGE_BYTES = 256, 4_096, 4_096
#: A look-up reads the table of all connections of the host: so many times its duration passes until the next one.
_PAUSE, _MAX_PAUSE_S = 9, 0.5
_MAX_PEERS = 256
_BACKLOG = 128
_LOSS_NS = 1_000_000_000
#: An older decision is not of now.
MAX_AGE_NS = 15 * 60 * 1_000_000_000
_ENDS = np.dtype([("saddr", "V16"), ("sport", "<u2"), ("daddr", "V16"), ("dport", "<u2")])


def start(
    settings: ReceiverSettings, limiters: LimiterSettings, loaded: Loaded, boot_id: str, history: History
) -> OtlpReceiver:
    from agent.probes import tcp

    maps = loaded.families["tcp"].maps if "tcp" in loaded.families else {}
    look_up = tcp.Connections(loaded).name if tcp.SOCKETS in maps else None
    return OtlpReceiver(settings, limiters, boot_id, look_up, lambda wall_ns: history.to_boot(wall_ns).ns)


class OtlpReceiver(ProcessSource, Stating):
    """A ``Source`` (agent/contracts.py): rows of ``limiter_decision``.

    look_up: fills pid, proc_start_ns and comm of rows of ``socket_queue``, by both ends; it may raise OSError. None
    where no kernel program knows connections. to_boot: Unix ns to CLOCK_BOOTTIME ns, shape (n,); raises ValueError
    while that is not known.
    """

    name = "otlp receiver"
    #: Of ``counts``, bounds that were reached, in words (agent/service/bounds.py).
    reasons: ClassVar[dict[str, str]] = {
        **{name: words for name, words in COUNTS.items() if words},
        "times": "decisions older than 15 min, or in the future",
    }

    def __init__(
        self,
        settings: ReceiverSettings,
        limiters: LimiterSettings,
        boot_id: str,
        look_up: Callable[[np.ndarray], None] | None,
        to_boot: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        self.process = Supervised(
            self.name, "receives OTLP", self._start, self._over, silent_s=SILENT_S, restarts=Restarts()
        )
        self._boot_id, self._look_up, self._to_boot = boot_id, look_up, to_boot
        self._listener: socket.socket | None = None
        self._failure = ""
        self._peers = Recent[int, tuple[int, int, bytes]](_MAX_PEERS)
        self._netns, self._read_after_s = os.stat("/proc/self/ns/net").st_ino, 0.0
        self._before, self._counts = Counter[str](), Counter[str]()  # of processes that have ended, and of this one
        self._times = self._lost = 0
        self._lost_ns = boot_ns()
        self.use(settings, limiters)

    def use(self, settings: ReceiverSettings, limiters: LimiterSettings) -> None:
        """From now on these settings: another process listens, or none."""
        self._address = settings.http
        self._settings = {"keys": limiters.intake_keys, "names": dict(limiters.limiter_names)}
        self._close_listener()
        self.process.renew()
        self.process.start()

    def supervise(self, now_ns: int) -> Iterator[Batch]:
        if self.process.restarts.given_up:
            self._close_listener()  # nobody would answer
        elif self._address:
            self.process.check()
        well = ("it receives OTLP", "attached") if self._address else ("it is off", "off")
        yield from self.process.report(now_ns, *well)
        yield from self._losses(now_ns)

    def counts(self) -> dict[str, int]:
        """Since the agent's start, by the names of ``COUNTS``, and ``times``."""
        return {**{name: self._before[name] + self._counts[name] for name in COUNTS}, "times": self._times}

    def state(self) -> dict[str, Any]:
        """For ``status``."""
        where = {"http": "{}:{}".format(*self._address)} if self._address else {}
        return {**where, "connections": self._counts["connections"], **self.counts()}

    def failures(self) -> dict[str, str]:
        return super().failures() | ({"otlp_receiver.http": self._failure} if self._failure else {})

    def close(self) -> None:
        super().close()
        self._close_listener()

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket] | None:
        if not self._address:
            return None
        if self._listener is None:
            try:
                family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
                self._listener = socket.create_server(self._address, family=family, backlog=_BACKLOG)
                self._failure = ""
            except OSError as error:  # it is tried again with the next check
                failure = "cannot listen on {} port {}: {}".format(*self._address, os.strerror(error.errno or 0))
                if failure != self._failure:
                    log_message(f"tickscope: otlp_receiver.http: {failure}")
                self._failure = failure
                return None
        settings = {**self._settings, "boot_id": self._boot_id, "salt": salt_digest().hex()}
        return spawn_with_settings(
            "agent.receiver.receiver_worker", "tickscope-otlp", settings, self._listener.fileno()
        )

    def _over(self) -> None:
        self._before += self._counts
        self._counts.clear()
        self._peers.clear()

    def received(self, source: socket.socket, now_ns: int) -> Iterator[Batch]:
        if time.monotonic() < self._read_after_s:
            return
        ends = dict[int, bytes]()
        pieces = list[tuple[int, np.ndarray]]()
        number = taken = 0
        try:
            for data, fds in self.messages(source, _MAX_MESSAGES, _MESSAGE_BYTES, max_fds=1):
                if not fds:
                    self.process.beat()
                    self._counts = Counter(json.loads(data))
                    continue
                rows = _rows(fds[0])
                number, connection, ends[connection] = HEAD.unpack(data)
                pieces.append((connection, rows))
                if (taken := taken + len(rows)) >= _MAX_ROWS:
                    break
        except (ValueError, struct.error) as error:
            self.process.fail(f"sent a malformed message: {error}")
        if pieces:
            self._identify({connection: its for connection, its in ends.items() if connection not in self._peers})
            rows = self._placed(pieces)
            if len(rows):
                yield Batch(TABLE.name, rows)
            with contextlib.suppress(OSError):
                source.send(ACK.pack(number))

    def _identify(self, new: dict[int, bytes]) -> None:
        """The processes of new connections, by both ends of each."""
        if not new or self._look_up is None:
            return
        begun_s = time.monotonic()
        ends = np.frombuffer(b"".join(new.values()), _ENDS)
        columns = {name: ends[name] for name in _ENDS.names or ()}
        rows = make("socket_queue", len(ends), netns=self._netns, **columns).rows
        with contextlib.suppress(OSError):
            self._look_up(rows)
        self._peers.update(zip(new, rows[["pid", "proc_start_ns", "comm"]].tolist(), strict=True))
        now_s = time.monotonic()
        self._read_after_s = now_s + min(_MAX_PAUSE_S, _PAUSE * (now_s - begun_s))

    def _placed(self, pieces: list[tuple[int, np.ndarray]]) -> np.ndarray:
        """Their rows with their process and CLOCK_BOOTTIME, without those of another time."""
        for connection, piece in pieces:
            if (peer := self._peers.get(connection)) is not None:
                piece["pid"], piece["proc_start_ns"], piece["comm"] = peer
        rows = together([piece for _, piece in pieces])
        now_ns = boot_ns()
        unknown = rows["t_ns"] == 0
        try:
            rows["t_ns"] = self._to_boot(rows["t_ns"])
        except ValueError:  # no reading of the clocks yet
            rows["t_ns"] += now_ns - time.time_ns()
        rows["t_ns"][unknown] = now_ns
        fits = (rows["t_ns"] <= now_ns) & (rows["t_ns"] > now_ns - MAX_AGE_NS)
        self._times += int((~fits).sum())
        return rows[fits]

    def _losses(self, now_ns: int) -> Iterator[Batch]:
        counts = self.counts()
        lost = sum(counts[name] for name in (*LOST, "times"))
        if lost == self._lost:
            self._lost_ns = now_ns
        elif now_ns - self._lost_ns >= _LOSS_NS:
            yield losses("intake", Loss("otlp", lost - self._lost, self._lost_ns, now_ns))
            self._lost, self._lost_ns = lost, now_ns

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def _rows(fd: int) -> np.ndarray:
    """Those of a memory file, which is closed. Raises ValueError."""
    with open(fd, "rb", buffering=0) as file:
        if (size := os.fstat(fd).st_size) > MAX_RECORDS * TABLE.dtype.itemsize:
            raise ValueError(f"rows of {size} bytes")
        data = bytearray(size)
        os.preadv(file.fileno(), [data], 0)
    return np.frombuffer(data, TABLE.dtype)
