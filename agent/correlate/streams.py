"""Connections with steady traffic and both ends on this host: which end stopped.

An end that reads waits for the other, again and again, and never for long. These waits are seen by process and peer.
For a pair with a reader that has waited regularly and a writer that hardly ever had to:
- if the reader waits far longer than ever, and the writer does not, the writer does not send;
- if the writer waits far longer than ever, and the reader, which usually waits all the time, does not, the reader does
  not read;
- if both wait, the data is on the way.
This is evaluated after the wait, since a stream that simply ended does not continue.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.common.copies import pick
from agent.common.fairness import UpperBound
from agent.common.recent import Recent
from agent.correlate.episode import Episode
from agent.correlate.rows import LastRows, OfSecond, among, columns_of, groups, start_ticks
from agent.correlate.thresholds import SECOND, CorrelatorConfig
from agent.correlate.view import NO_PEER, addresses, own_ends, to_peer
from agent.correlate.watch import Watch
from agent.correlate.words import identity, peer, process, text
from agent.tables import TABLES

_BLOCKED = TABLES["syscall_latency"].code("basis", "blocked")
_WAITING = TABLES["syscall_latency"].code("kind", "waiting")
_SERVER, _CLIENT = (TABLES["tcp_rtt"].code("role", name) for name in ("server", "client"))
#: Columns that symptoms of streams read.
READS = {
    "syscall_latency": ("basis", "kind", "peer", "interval_ns", "count", "max_ns"),
    "tcp_rtt": ("netns", "role", "saddr", "sport", "peer"),
}
_KEEP_NS = 60 * SECOND
_OF_S, _STEADY_S, _STEADY = (
    40,
    12,
    0.75,
)  # of the time before it that is examined: seconds with a wait of a reader, at least, and their share
_USUALLY = 0.7  # the quantile of the longest waits of seconds that counts as usual
# Share of their median, within which four in ten of them are: a periodic stream. Those of random messages differ by
# more (0.17 at 1,000 a second).
_EVEN = 0.15
_RATIO = 8.0  # times the usual wait that is far longer
_READER = 4.0  # ... if both ends agree
_BEYOND, _BEYOND_ALL, _RECURRING = (
    1.5,
    3.0,
    3,
)  # times the third longest wait of a reader and of a writer: what happened three times is a recurrence
_AS_USUAL = 1.5
_SELDOM = 8  # seconds of that time in which a writer waited for long
_CHANGES = 3  # connections that followed one another
_LEAST_NS = {"sender_stalled": 400_000_000, "receiver_stalled": 250_000_000}
_MOST = 16  # waits examined in a second
_PAIRS = 1024
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "findings",
        "connections in one second of which both ends are known",
        _PAIRS,
        "a process that stopped sending or reading is not found for the others",
        "`status`, `probe_status` row `correlator`, a note of `findings`",
    ),
)
Process = tuple[int, int, str]


@dataclass(frozen=True)
class Stall:
    """reader, writer: (pid, start in ticks, comm). server: the ip:port of the server's end (18 bytes); usual_ns: the
    longest wait of the minute before.
    """

    symptom: str
    reader: Process
    writer: Process
    server: bytes
    from_ns: int
    to_ns: int
    usual_ns: float


class StreamWatch(Watch):
    """One subject is a pair of processes with a connection between them."""

    metrics = ("stalled_ns",)

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self.stalls: dict[int, Stall] = {}
        self.names: dict[int, Stall] = {}
        self._waits: LastRows | None = None
        self._since_ns = 0
        self._clients = Recent[tuple[bytes, bytes, int, int], str](_PAIRS)
        self._servers = Recent[tuple[int, int, bytes], bytes](_PAIRS)

    def fill(self, second: int, rows: OfSecond) -> np.ndarray:
        self.stalls = {}
        waits = rows["syscall_latency"]
        if not len(waits):
            return np.empty(0, np.int64)
        waits = pick(waits, (waits["basis"] == _BLOCKED) & (waits["kind"] == _WAITING) & (waits["peer"] != NO_PEER))
        self._learn(rows["tcp_rtt"], waits)
        if self._waits is None:
            self._waits, self._since_ns = LastRows(waits.dtype, self.config.keep_decisions, _KEEP_NS), second * SECOND
        self._waits.add(waits)
        long = pick(waits, waits["max_ns"] >= min(_LEAST_NS.values()))
        for row in long[np.argsort(long["max_ns"], kind="stable")[::-1][:_MOST]]:
            stall = self._reads_nothing(row) or self._sends_nothing(row)
            if stall is not None:
                slot = self.series.slot((stall.symptom, stall.reader, stall.writer, stall.server), second)
                if slot >= 0:
                    self.stalls[slot] = self.names[slot] = stall
        slots = np.array(sorted(self.stalls), np.int64)
        took = np.array([self.stalls[s].to_ns - self.stalls[s].from_ns for s in slots.tolist()], np.float64)
        self.series.put(second, slots, stalled_ns=took)
        return slots

    def _learn(self, rows: np.ndarray, waits: np.ndarray) -> None:
        """Learns which process waits for which end of a server's connection, and which processes talk to such a server:
        each pair once a second.
        """
        served = pick(rows, (rows["role"] == _SERVER) & (rows["pid"] > 0))
        served = pick(served, among(served["peer"], waits["peer"].tolist()))
        first = self._within(served, groups([served["pid"], served["peer"]])[0])
        ends = own_ends(served).tolist()
        for i, (pid, start_ns, raw) in zip(
            first, columns_of(served, first, "pid", "proc_start_ns", "peer"), strict=True
        ):
            self._servers[pid, start_ns // 10_000_000, raw] = ends[i]
        if not self._servers:
            return
        clients = pick(rows, (rows["role"] == _CLIENT) & (rows["pid"] > 0))
        clients = pick(clients, among(clients["peer"], self._servers.values()))
        first = self._within(clients, groups([clients["peer"], clients["saddr"], clients["sport"], clients["pid"]])[0])
        ends = own_ends(clients).tolist()
        for i, (raw, pid, start_ns, comm) in zip(
            first, columns_of(clients, first, "peer", "pid", "proc_start_ns", "comm"), strict=True
        ):
            self._clients[raw, ends[i], pid, start_ns // 10_000_000] = text(comm)

    def _within(self, rows: np.ndarray, pairs: np.ndarray) -> np.ndarray:
        """As many pairs as there is room for. Processes of which none has room are counted, by their peer."""
        kept, rest = pairs[:_PAIRS], pairs[_PAIRS:]
        if len(rest):
            seen = set(columns_of(rows, kept, "pid", "peer"))
            self.series.dropped += len(set(columns_of(rows, rest, "pid", "peer")) - seen)
        return kept

    def _sends_nothing(self, row: np.void) -> Stall | None:
        """The wait is that of a server's end that reads."""
        reader, raw, waited = identity(row), row["peer"].tobytes(), int(row["max_ns"])
        server = self._servers.get((*reader[:2], raw))
        if server is None or waited < _LEAST_NS["sender_stalled"] or 0 <= int(row["count"]) < 3:
            return None
        from_ns = int(row["t_ns"]) - waited
        usual = self._steady(reader, raw, from_ns, waited)
        writers = self._writers(server, raw)
        if usual is None or usual > waited / _RATIO or len(writers) != 1:
            return None
        if self._longest(writers[0], server, from_ns, int(row["t_ns"])) > waited / _RATIO:
            return None  # it waits, too
        return Stall("sender_stalled", reader, writers[0], server, from_ns, int(row["t_ns"]), usual)

    def _writers(self, server: bytes, raw: bytes) -> list[Process]:
        """The processes with that end of a connection to it; if its port was not seen, those with one from that
        address.
        """
        theirs = {(pid, tick, comm): end for (at, end, pid, tick), comm in self._clients.items() if at == server}
        exact = [who for who, end in theirs.items() if end == raw]
        return exact or [who for who, end in theirs.items() if end[:16] == raw[:16]]

    def _reads_nothing(self, row: np.void) -> Stall | None:
        """The wait is that of a client's end that writes, to a reader of this host."""
        writer, server, waited = identity(row), row["peer"].tobytes(), int(row["max_ns"])
        ends = {(pid, tick, raw[:16]) for (pid, tick, raw), at in self._servers.items() if at == server}
        if not ends or writer[:2] not in {(pid, tick) for at, _, pid, tick in self._clients if at == server}:
            return None
        to_ns = int(row["t_ns"])
        from_ns = to_ns - waited
        before = np.sort(self._of(writer, server, from_ns - _OF_S * SECOND, from_ns)["max_ns"])
        recurring_ns = float(before[-_RECURRING]) if len(before) >= _RECURRING else 0.0
        if np.count_nonzero(before > waited / _RATIO) > _SELDOM or _BEYOND_ALL * recurring_ns > waited:
            return None  # it waits for answers, or has to wait every now and then
        for pid, tick, address in sorted(ends):
            usual = self._steady((pid, tick, ""), address, from_ns, waited)
            if usual is None or usual > waited / _READER:
                continue
            if self._from(pid, tick, address, from_ns, to_ns)["max_ns"].max(initial=0) <= _AS_USUAL * usual:
                comm = text(self._from(pid, tick, address, from_ns - _OF_S * SECOND, from_ns)["comm"][-1])
                return Stall("receiver_stalled", (pid, tick, comm), writer, server, from_ns, to_ns, usual)
        return None

    def _of(self, who: Process, raw: bytes, from_ns: int, to_ns: int) -> np.ndarray:
        assert self._waits is not None
        rows = to_peer(self._waits.between(from_ns, to_ns), raw)
        return pick(rows, (rows["pid"] == who[0]) & (start_ticks(rows) == who[1]))

    def _from(self, pid: int, tick: int, address: bytes, from_ns: int, to_ns: int) -> np.ndarray:
        """Its waits for any process with that address."""
        assert self._waits is not None
        rows = self._waits.between(from_ns, to_ns)
        rows = pick(rows, (rows["pid"] == pid) & (start_ticks(rows) == tick))
        return pick(rows, (addresses(rows) == np.frombuffer(address, np.uint8)).all(axis=1))

    def _longest(self, who: Process, raw: bytes, from_ns: int, to_ns: int) -> float:
        return float(self._of(who, raw, from_ns, to_ns)["max_ns"].max(initial=0))

    def _steady(self, who: Process, raw: bytes, until_ns: int, waited_ns: float) -> float | None:
        """Its usual longest wait of a second, if it waited for that address in almost each second, by one connection at
        a time, for about the same time, and hardly ever nearly as long as now.
        """
        rows = self._from(who[0], who[1], raw[:16], until_ns - _OF_S * SECOND, until_ns)
        seconds = len(np.unique(rows["t_ns"] // SECOND))
        known_s = (until_ns - self._since_ns) // SECOND
        if seconds < max(_STEADY_S, _STEADY * min(_OF_S, known_s)) or len(rows) > seconds + _CHANGES:
            return None
        waits = np.sort(rows["max_ns"])
        low, median, usual = (float(waits[int(q * (len(waits) - 1))]) for q in (1 - _USUALLY, 0.5, _USUALLY))
        return usual if usual - low <= _EVEN * median and waited_ns > _BEYOND * float(waits[-_RECURRING]) else None

    def describe(self, symptom: str, slot: int) -> Episode:
        stall = self.names[slot]
        (pid, tick, comm), name = stall.reader, peer(stall.server)
        if symptom == "receiver_stalled":
            pid, tick, comm = stall.writer
        subject = f"connection of {process(stall.writer[2], stall.writer[0])} to {name}"
        scope = f"{stall.writer[0]} to {name}"
        key, times = (stall.server, stall.reader, stall.writer), (stall.from_ns, stall.to_ns)
        episode = Episode(symptom, key, slot, subject, scope, *times, "stalled_ns", "ns", stall.usual_ns)
        episode.pid, episode.start_tick, episode.comm = pid, tick, comm
        return episode

    def judge(self, symptom: str, second: int) -> None:
        """Opens and extends the episodes of this symptom."""
        for slot, stall in self.stalls.items():
            if stall.symptom != symptom:
                continue
            waited = float(stall.to_ns - stall.from_ns)
            if not self.extended(symptom, slot, second, waited, stall.to_ns):
                self.begin(symptom, slot, second, waited, 1)
