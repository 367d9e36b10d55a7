"""Attaches the programs at Redis connections while they are worth their cost, and reads their records.

``auto``: they are attached for WINDOW_NS of each EVERY_NS, and stay once a limiter's request was seen, until there was
none for IDLE_NS. The kernel's programs count what they leave out, so that rows have their share of all decisions
(sample_rate).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from agent.batch import Batch
from agent.common.clocks import boot_ns
from agent.common.fairness import UpperBound
from agent.contracts import Due, Finishing, Pending, Stating
from agent.kernel import bpf
from agent.kernel.helper_client import Helper
from agent.kernel.kernel_source import KernelSource
from agent.kernel.loaded_families import Family
from agent.kernel.ring import SharedArray
from agent.kernel.sampling import attach, degrade
from agent.limiters.script import MAKING, MAKING_WORDS, PLAIN_COMMANDS
from agent.limiters.scripted import Limiters
from agent.redis_wire.ports import ports

if TYPE_CHECKING:
    from agent.limiters.redis_settings import RedisLimiterSettings
    from agent.redis_wire.redis_reader import RedisReader

WINDOW_NS, EVERY_NS, IDLE_NS, FAR_NS, PORTS_NS = (
    250_000_000,
    5_000_000_000,
    60_000_000_000,
    10_000_000_000,
    10_000_000_000,
)
#: Decisions per second that are sent; records per decision; burst of either.
DECISIONS_PER_S, _PIECES_EACH, _AT_ONCE_S = 1000, 8, 0.1
_SAMPLES, _SAMPLE_NS, _IGNORED_NS = 16, 200_000_000, 30_000_000_000
_CLIENTS = 4096
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "limiters",
        "decisions in Redis with a row each, per second and user",
        DECISIONS_PER_S,
        "the next row counts the others",
        "`sample_rate`",
        setting="`redis_decisions_per_s`",
    ),
)
_SCRIPT, _WINDOW = 1, 2
_WHOLE, _IGNORED = 1, 2
_IN, _OUT, _UNIX, _UNIX_SHORT = "redis_in", "redis_out", "redis_unix", "redis_unix_short"
#: Programs that are attached while their data is wanted, and periodically: the counter that shows it.
_AT_TIMES = {_OUT: "remote", _UNIX: "local", _UNIX_SHORT: "local"}
_ENCRYPTED = (
    "connections to Redis with TLS were seen, which are not read: their programs can report decisions by an adapter"
    " (docs/adapters.md)"
)


class RedisWire(Stating, Finishing, Due, Pending):
    """The source of decisions on Redis connections."""

    name = "redis_limiters"

    def __init__(
        self,
        family: Family,
        kernel: KernelSource,
        helper: Helper,
        settings: RedisLimiterSettings,
        find_ports: Callable[[frozenset[int]], frozenset[int]] = ports,
    ) -> None:
        self._family, self._helper, self._settings, self._find_ports = family, helper, settings, find_ports
        self._switch = SharedArray(family.maps["redis_switch"], kernel.loaded.wire.dtype("redis_switch")).values
        self._clients = SharedArray(family.maps["redis_clients"], "<u8").values
        self._bits = SharedArray(family.maps["redis_ports"], "<u8").values
        self._limiters, self._loaded = Limiters(settings.own()), kernel.loaded
        self._reader: RedisReader | None = None
        self._state = np.zeros(1, kernel.loaded.wire.dtype("redis_flow"))
        self._records: list[np.ndarray] = []
        self._links: dict[str, int] = {}
        unix = _UNIX if _UNIX in family.programs else _UNIX_SHORT
        self._times = [function for function in (_OUT, unix) if function in family.programs]
        self._seen, self._until_ns, self._until_off_ns = (dict.fromkeys(self._times, 0) for _ in range(3))
        self._sampling = False
        self._ends_ns = self._next_ns = self._ports_ns = self._last_ns = self._sampled_ns = 0
        self.decisions = 0
        self.ports: frozenset[int] = frozenset()
        self._budget(settings.decisions_per_s)
        self._name_commands()
        self._report_state()
        kernel.subscribe("redis_pieces", self.take)

    def take(self, records: np.ndarray) -> None:
        """Takes records of ``struct redis_piece``; a connection's records are read together."""
        self._records.append(records)

    def use(self, settings: RedisLimiterSettings) -> None:
        """Uses these settings from now on; the user's own scripts stay as they were."""
        self._settings = settings
        self._budget(settings.decisions_per_s)
        self._ports_ns = self._next_ns = self._last_ns = 0  # everything is checked again
        self._sampling = False  # attached programs stay, or are removed at the next turn
        if self._settings.mode == "off":
            self._detach()
        self._report_state()

    def _budget(self, per_s: int) -> None:
        each_ns = 1e9 / per_s
        self._switch["each_ns"], self._switch["most"] = int(each_ns), max(int(per_s * _AT_ONCE_S), 1)
        self._switch["most_pieces"] = max(int(per_s * _PIECES_EACH * _AT_ONCE_S / 4), 1)
        self._switch["piece_ns"], self._switch["piece_room_ns"] = int(each_ns / _PIECES_EACH), int(1e9 * _AT_ONCE_S)

    def _name_commands(self) -> None:
        own = self._limiters.commands()
        plain = set(PLAIN_COMMANDS) - (own & {MAKING})
        self._switch["least"] = 0 if MAKING in own else MAKING_WORDS
        for names, what in ((self._limiters.commands() - plain, _SCRIPT), (plain, _WINDOW)):
            for name in names:
                self._switch["lengths"][0][ord(name[0]) & 31] |= 1 << len(name) if len(name) < 16 else 0
                bpf.update(
                    self._family.maps["redis_commands"],
                    name.encode().ljust(16, b"\0"),
                    (what | (MAKING_WORDS << 8 if name == MAKING and what == _WINDOW else 0)).to_bytes(4, "little"),
                )

    def _leave(self, flow: int) -> None:
        """Ignores this connection for a while."""
        self._set(flow, _IGNORED)

    def _follow(self, flow: int) -> None:
        """Reads all of this connection."""
        self._set(flow, _WHOLE)

    def _set(self, flow: int, state: int) -> None:
        self._state["state"], self._state["until_ns"], self._state["left_out"] = state, boot_ns() + _IGNORED_NS, 1
        self._state["asked"], self._state["answered"] = struct.unpack("<II", os.urandom(8))  # as the kernel does
        bpf.update(self._family.maps["redis_flows"], flow.to_bytes(8, "little"), self._state.tobytes())

    @property
    def attached(self) -> bool:
        return bool(self._links)

    @property
    def due_ns(self) -> int:
        return self._ends_ns if self._sampling else 0

    def pending(self, now_ns: int) -> bool:
        """Whether requests came, all samples are taken, or a program that is attached at times is wanted."""
        wanted = self._links and any(int(self._switch[_AT_TIMES[f]][0]) != self._seen[f] for f in self._times)
        return bool(self._records or wanted) or not self._switch["samples"][0]

    def drain(self, now_ns: int) -> Iterable[Batch]:
        if now_ns - self._ports_ns >= PORTS_NS:
            self._ports_ns = now_ns
            self._find()
            if int(np.unpackbits(self._clients.view(np.uint8)).sum()) > _CLIENTS:
                self._clients[:] = 0  # interesting clients come back with their next request
        if now_ns - self._sampled_ns >= _SAMPLE_NS:
            self._sampled_ns = now_ns
            self._switch["samples"] = _SAMPLES
        if self._settings.mode == "off":
            self._records.clear()
            return
        if self._records:
            yield from self._read()
        self._report_state()
        if self._settings.mode == "auto":
            self._turn(now_ns)
        elif not self._links and now_ns >= self._next_ns:
            self._attach(now_ns)
        if self._links:
            for function in self._times:
                self._at_times(function, now_ns)

    def _turn(self, now_ns: int) -> None:
        """Attaches the programs, keeps them, or removes them."""
        over_ns = self._ends_ns if self._sampling else self._last_ns + IDLE_NS
        if self._links and now_ns >= over_ns:
            self._detach()
        elif not self._links and now_ns >= self._next_ns:
            self._sampling = self._attach(now_ns)
            self._ends_ns = boot_ns() + WINDOW_NS

    def _at_times(self, function: str, now_ns: int) -> None:
        """Remote connections and Unix sockets are read while their data is wanted, and periodically: the program at
        each packet is the most expensive.
        """
        if (seen := int(self._switch[_AT_TIMES[function]][0])) != self._seen[function]:
            self._seen[function], self._until_ns[function] = seen, now_ns + FAR_NS
        if function in self._links:
            if now_ns > self._until_ns[function]:
                os.close(self._links.pop(function))
                self._until_off_ns[function] = now_ns + EVERY_NS
        elif now_ns < self._until_ns[function] or now_ns >= self._until_off_ns[function]:
            self._attach_one(function)
            self._until_ns[function] = max(self._until_ns[function], now_ns + WINDOW_NS)
            self._until_off_ns[function] = now_ns + EVERY_NS

    def _read(self) -> Iterable[Batch]:
        records = np.concatenate(self._records)
        self._records.clear()
        if self._reader is None:
            from agent.redis_wire.ends import RedisServers
            from agent.redis_wire.local import Sockets
            from agent.redis_wire.redis_reader import RedisReader

            called = RedisServers(self._family.maps["redis_paths"])
            self._reader = RedisReader(
                self._limiters, self._leave, self._follow, called, Sockets(self._loaded).client_of
            )
        batches = self._reader.read(records)
        if batches:
            self._last_ns, self._sampling = boot_ns(), False  # they stay
            self.decisions += len(batches[0].rows)
        return batches

    def _find(self) -> None:
        self.ports = self._find_ports(frozenset(self._settings.ports))
        bits = np.zeros(1024, np.uint64)
        for port in self.ports:
            bits[port >> 6] |= np.uint64(1 << (port & 63))
        self._bits[:] = bits

    def _report_state(self) -> None:
        """Shows it in the family's state, if there is no problem."""
        if self._family.state == "attached":
            state, why = self._why()
            unknown = self._reader.unknown.text() if self._reader else ""
            state_row = ("" if state == "on" else why, unknown, _ENCRYPTED if self._switch["encrypted"][0] else "")
            self._family.reason = "; ".join(filter(None, state_row))

    def _why(self) -> tuple[str, str]:
        """(on, looking, waiting or off; the reason)."""
        if self._settings.mode == "off":
            return "off", "redis_limiters is off"
        if self._links and not self._sampling:
            return (
                "on",
                "redis_limiters is on" if self._settings.mode == "on" else "a limiter in Redis was seen at work",
            )
        if self._family.state != "attached" and not self._links:
            return "off", self._family.reason
        windows = f"{WINDOW_NS / 1e9:g} s of each {EVERY_NS // 10**9} s"
        return (
            "looking" if self._links else "waiting",
            f"no limiter in Redis is seen at work: looks for one in {windows}",
        )

    def _attach(self, now_ns: int) -> bool:
        self._next_ns = now_ns + EVERY_NS
        self._attach_one(_IN)
        for function in self._times:
            self._until_ns[function] = now_ns + FAR_NS
            self._attach_one(function)
        return bool(self._links)

    def _attach_one(self, function: str) -> None:
        if function in self._family.programs:
            try:
                (self._links[function],) = attach(self._helper, (self._family, function))
            except OSError as error:
                degrade(self._family, function, error)
            else:
                self._family.well(function)

    def _detach(self) -> None:
        while self._links:
            os.close(self._links.popitem()[1])
        self._sampling = False

    def finish(self, now_ns: int, wait: Callable[[float], None]) -> Iterable[Batch]:
        self._detach()
        if self._records:
            yield from self._read()

    def state(self) -> dict[str, object]:
        """For ``status``."""
        state, why = self._why()
        return {
            "state": state,
            "why": why,
            "mode": self._settings.mode,
            "attached": self.attached and not self._sampling,
            "ports": sorted(self.ports),
            "decisions": self.decisions,
            "requests_seen": int(self._switch["asked"][0]),
            "requests_read": int(self._switch["sent"][0]),
            "segments_cut": int(self._switch["cut"][0]),
            "segments_in_tls": int(self._switch["encrypted"][0]),
            "unknown_scripts": self._reader.unknown.rows() if self._reader else [],
            **(self._reader.counts() if self._reader else {}),
        }

    def close(self) -> None:
        self._detach()
