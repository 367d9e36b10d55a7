"""The input of the rules about causes: recent rows, by process, peer and time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar, cast

import numpy as np

from agent.columns import NULL_I64
from agent.common.alike import least, most, packed
from agent.common.copies import only, pick, together
from agent.correlate.calls import CallRows
from agent.correlate.episode import Episode
from agent.correlate.guard import Guard
from agent.correlate.limiters import took
from agent.correlate.local import Servers, in_netns, is_loopback
from agent.correlate.preemption import preempted_ns
from agent.correlate.rows import LastRows, Which, among, groups, known, of_codes, start_ticks
from agent.correlate.steps import ClockJump
from agent.correlate.thresholds import SECOND, CorrelatorConfig
from agent.correlate.unixpeers import with_unix
from agent.correlate.wakers import through_threads
from agent.tables import TABLES

_BLOCKED = TABLES["syscall_latency"].code("basis", "blocked")
_WAITING = TABLES["syscall_latency"].code("kind", "waiting")
NO_PEER = np.zeros(1, "V18")
_SERVER = TABLES["tcp_rtt"].code("role", "server")
_ACCEPT, _CONNECTION = (TABLES["socket_queue"].code("kind", name) for name in ("accept", "connection"))
_RESOLVED = of_codes(TABLES["dns_lookup"].code("result", name) for name in ("ok", "nodata"))
_BROKEN = TABLES["tls_handshake"].code("result", "failed")
_TALKS = ("tcp_rtt", "tcp_connect")
_SLOW_DECISION_NS = 10_000_000
LEAD_NS = 200_000_000
_CALLEES = 8  # servers of one process that are followed
_STORMS = 16
_BROKERS = 128  # and as many clients of them
_CHILDREN_NS = 30 * SECOND  # they have rows at least so often
_UNUSED_NS = 10 * SECOND  # the listening process is not the one that serves, if it has workers
_LONG_NS = 50_000_000  # that these spent in calls of one kind in a second
_REACH_NS = 30 * SECOND  # sums of an interval come at its end
T = TypeVar("T")

#: Columns that identify servers of addresses, and the network namespaces of processes.
SERVERS = {
    "tcp_rtt": ("netns", "role", "saddr", "sport", "peer"),
    "socket_queue": ("netns", "kind", "saddr", "sport"),
    "tcp_connect": ("netns", "peer"),
    "unix_peer": ("peer", "path", "server_pid", "server_comm"),
}
_ELSEWHERE = {
    "limiter_decision",
    "clock_change",
    "unix_peer",
}  # kept in another form: slow decisions, jumps, connections


class View:
    """Evidence of the last ``keep_ns``, reduced to rows that can be evidence.

    forms: of the rows, by table that some cause reads. polled: symptoms of the agent's own polls.
    """

    def __init__(
        self, config: CorrelatorConfig, forms: Mapping[str, np.dtype[np.void]], polled: Collection[str]
    ) -> None:
        self.config, self._forms, self._polled = config, forms, polled
        self.guard = Guard()
        most = {"queue_lag": config.keep_polls}
        self.rings = {
            t: (CallRows if t == "slow_syscall" else LastRows)(form, most.get(t, config.keep_rows), config.keep_ns)
            for t, form in forms.items()
            if t not in _ELSEWHERE
        }
        self.watched: Which | None = None  # polls -> which of them are of queues that may have a symptom; None: all
        self.decisions = LastRows(forms["limiter_decision"], config.keep_rows, config.keep_ns)
        self.calls = LastRows(forms["syscall_latency"], config.keep_rows, config.keep_ns)  # long ones of consumers
        self._brokers: dict[bytes, None] = {}  # that are polled; the last ones
        self._consumers: dict[int, None] = {}  # their clients, and children of these, the last ones
        self._listeners: dict[int, None] = {}  # processes for which connections waited, the last ones
        self._children: dict[tuple[int, int], tuple[str, int]] = {}  # (client or listener, child): comm, last seen
        self._older: np.ndarray | None = None  # rows of connections to servers that are older than the agent
        self.recorded: set[str] = set()  # the tables of which there was any row
        self.jumps: list[ClockJump] = []
        self.storms: list[Episode] = []  # of retries, the last ones
        self.servers = Servers(config.servers, config.server_age_ns)
        self.with_more_peers: set[int] = set()  # processes that had too many to consider them all, in this second
        self.home: int | None = None  # the agent's own network namespace
        self._sums_ns = self._newest_ns = -1
        self._shared: dict[tuple[object, int], object] = {}

    def once(self, work: Callable[[Episode, View], T], episode: Episode) -> T:
        """A result that several causes share, computed once each time that an episode is ranked."""
        key = work, id(episode)
        if key not in self._shared:
            self._shared[key] = work(episode, self)
        return cast(T, self._shared[key])

    def track(self) -> dict[LastRows, set[tuple[int, int]]]:
        """From here on, the times that are read are recorded."""
        self._shared = {}
        rings = (self.decisions, self.calls, *self.rings.values())
        spans: dict[LastRows, set[tuple[int, int]]] = {ring: set() for ring in rings}
        for ring, its in spans.items():
            ring.track(its)
        return spans

    def tracked(self, spans: dict[LastRows, set[tuple[int, int]]]) -> tuple[Any, ...]:
        """What was read since ``track``, for ``unchanged``."""
        for ring in spans:
            ring.track(None)
        return self._beside(), [(ring, ring.version, its) for ring, its in spans.items() if its]

    def unchanged(self, tracked: tuple[Any, ...]) -> bool:
        """Whether everything that was read is still the same."""
        return bool(tracked[0] == self._beside()) and all(
            ring.unchanged(version, spans) for ring, version, spans in tracked[1]
        )

    def _beside(self) -> tuple[object, ...]:
        """State outside of the rings: jumps and their affected limiters, servers."""
        storms = [(id(storm), storm.end_ns) for storm in self.storms]
        return (
            self.home,
            self.servers.version,
            len(self.recorded),
            [(id(jump), len(jump.series.affected)) for jump in self.jumps],
            storms,
        )

    def note(self, active: Iterable[Episode]) -> None:
        """Records symptoms that may be the cause of others."""
        fresh = [e for e in active if e.symptom == "retry_storm" and e not in self.storms]
        self.storms = [*self.storms, *fresh][-_STORMS:]

    def add(self, rows: Mapping[str, np.ndarray]) -> None:
        floor = self.config.evidence_floor_ns
        self.recorded.update(table for table, its in rows.items() if len(its))
        if "unix_peer" in rows and "tcp_rtt" in self.rings:
            rows = {**rows, "tcp_rtt": with_unix(self._forms["tcp_rtt"], rows.get("tcp_rtt"), rows["unix_peer"])}
        self._learn(rows.get("queue_lag"), rows.get("tcp_rtt"), rows.get("cpu_use"), rows.get("socket_queue"))
        for table, ring in self.rings.items():
            kept = rows.get(table)
            if kept is None:
                continue
            if table == "slow_syscall":
                kept = through_threads(pick(kept, kept["duration_ns"] >= floor))
            elif table == "tls_handshake":
                kept = pick(kept, (kept["duration_ns"] >= floor) | (kept["result"] == _BROKEN))
            elif table == "dns_lookup":
                kept = pick(kept, (kept["duration_ns"] >= floor) | ~_RESOLVED[kept["result"]])
            elif table == "syscall_latency":
                self._sums_ns = max(self._sums_ns, int(kept["t_ns"].max(initial=-1)))
                if self._consumers:
                    long = pick(kept, (kept["basis"] == _BLOCKED) & (kept["sum_ns"] >= _LONG_NS))
                    self.calls.add(pick(long, among(long["pid"], self._consumers)))
                waited = (kept["kind"] == _WAITING) & (kept["peer"] != NO_PEER) & (kept["max_ns"] >= floor)
                kept = pick(kept, (kept["basis"] == _BLOCKED) & (waited | (kept["run_queue_ns"] >= floor)))
            elif table == "tcp_rtt":
                self.servers.learn(pick(kept, kept["role"] == _SERVER))
                kept = merge_rtt(kept)
            elif table == "queue_lag" and self.watched is not None:
                stays = self.watched(kept)
                if not stays.all():
                    stays[_each_poll(kept)] = True
                kept = only(kept, stays)
            elif table == "socket_queue":
                kept = pick(kept, kept["kind"] != _ACCEPT)
            ring.add(kept)
        listening = rows.get("socket_queue")
        if listening is not None:
            listening = only(listening, listening["kind"] == _ACCEPT)
            self.servers.learn(listening, _UNUSED_NS)
            polled = listening["netns"][known(listening["netns"])]
            self.home = int(polled[-1]) if len(polled) else self.home
        decisions = rows.get("limiter_decision")
        if decisions is not None:
            with np.errstate(invalid="ignore"):
                self.decisions.add(pick(decisions, took(decisions) >= _SLOW_DECISION_NS))

    def children(self, pid: int, episode: Episode) -> list[tuple[int, str]]:
        """(pid, comm) of those of a broker's client, or of who listens where connections wait, that were there in the
        episode; the last ones first.
        """
        since_ns = min(episode.end_ns, self._newest_ns) - _CHILDREN_NS
        return [
            (child, comm)
            for (parent, child), (comm, at_ns) in reversed(self._children.items())
            if parent == pid and at_ns >= since_ns
        ]

    def older_clients(self, server: bytes) -> np.ndarray:
        """Rows of ``socket_queue``: connections of processes to that server that are older than the agent."""
        return to_peer(self._older if self._older is not None else np.empty(0, self._forms["socket_queue"]), server)

    def _learn(
        self,
        polls: np.ndarray | None,
        talks: np.ndarray | None,
        uses: np.ndarray | None,
        queues: np.ndarray | None,
    ) -> None:
        """Which servers are polled, which processes talk to them or listen where connections wait, and which are
        children of these.
        """
        if polls is not None and len(polls):
            polled = polls["peer"][groups([polls["peer"]])[0]]
            _note(self._brokers, [raw.tobytes() for raw in polled if raw != NO_PEER[0]])
        if talks is not None and self._brokers:
            talks = talks[(talks["role"] != _SERVER) & (talks["pid"] > 0)]
            _note(self._consumers, np.unique(talks["pid"][among(talks["peer"], self._brokers)]).tolist())
        if queues is not None:
            waits = (queues["kind"] == _ACCEPT) & (queues["queue"] > 0) & (queues["pid"] > 0)
            _note(self._listeners, np.unique(queues["pid"][waits]).tolist())
            if self._older is None and len(queues):  # the first poll
                older = (queues["t_ns"] == queues["t_ns"].min()) & (queues["kind"] == _CONNECTION) & (queues["pid"] > 0)
                self._older = pick(queues, older)
        if uses is not None and (self._consumers or self._listeners):
            works = among(uses["parent_pid"], self._consumers)
            _note(self._consumers, uses["pid"][works].tolist())
            its = uses[works | among(uses["parent_pid"], self._listeners)]
            for row in its:
                key, comm = (int(row["parent_pid"]), int(row["pid"])), row["comm"].decode("utf-8", "replace")
                self._children.pop(key, None)
                self._children[key] = comm, int(row["t_ns"])
                self._newest_ns = max(self._newest_ns, int(row["t_ns"]))
            while len(self._children) > _BROKERS:
                del self._children[next(iter(self._children))]

    def netns(self, episode: Episode, peer: bytes) -> int | None:
        """The network namespace from which the episode's process talks to a peer; for the agent's own polls, the
        agent's.
        """
        if episode.symptom in self._polled:
            return self.home
        found = [
            self.own(self.rings[t].between(episode.start_ns - 60 * SECOND, episode.end_ns + SECOND), episode)
            for t in _TALKS
        ]
        for rows in (*(to_peer(rows, peer) for rows in found), *found):
            seen = np.unique(rows["netns"][known(rows["netns"])])
            if len(seen):
                return int(seen[0]) if len(seen) == 1 else None
        return None

    def server(self, peer: bytes, netns: int | None, episode: Episode) -> tuple[str, int] | None:
        """(comm, pid) of the process of this host that serves a peer, as seen from that network namespace, if known."""
        return self.servers.find(peer, netns, self.has_address(peer, netns, episode))

    def started(self, pid: int, episode: Episode) -> int | None:
        """When a process started, in units of 10 ms, by its last row around the episode; None if it has none."""
        for table in ("syscall_latency", "service_latency", "tcp_rtt", "slow_syscall", "cpu_use"):
            if table in self.rings:
                rows = self.rings[table].between(episode.start_ns - 60 * SECOND, episode.end_ns + 2 * SECOND)
                rows = rows[rows["pid"] == pid]
                if len(rows):
                    return int(start_ticks(rows[-1:])[0])
        return None

    def serving(self, episode: Episode) -> tuple[str, int] | None:
        """The same for the peer that an episode is about (agent/correlate/ends.py), if it is about one."""
        netns, raw = episode.key if len(episode.key) == 2 else (None, None)
        return self.servers.find(raw, netns) if isinstance(raw, bytes) and isinstance(netns, int) else None

    def has_address(self, peer: bytes, netns: int | None, episode: Episode) -> bool:
        """Whether the peer's address is also the asker's own."""
        rows = self.rings["tcp_rtt"].between(episode.start_ns - 60 * SECOND, episode.end_ns + SECOND)
        return bool((in_netns(to_peer(rows, peer), netns)["saddr"] == np.frombuffer(peer[:16], "V16")[0]).any())

    def during(self, table: str, episode: Episode, lead_ns: int = LEAD_NS) -> np.ndarray:
        """Rows of the episode's time, and a little earlier and later, since an effect shows after its cause."""
        return self.rings[table].between(episode.start_ns - lead_ns, episode.end_ns + lead_ns)

    def polls(self, servers: Collection[bytes], from_ns: int, to_ns: int) -> np.ndarray:
        """Polls of these servers between these times: one row of each poll, and of each status in it."""

        def which(rows: np.ndarray) -> np.ndarray:
            its = np.flatnonzero(among(rows["peer"], servers))
            return np.asarray(its[_each_poll(pick(rows, its))])

        return self.rings["queue_lag"].between(from_ns, to_ns, which)

    def own(self, rows: np.ndarray, episode: Episode) -> np.ndarray:
        """The rows of the episode's process; none if that is unknown."""
        if episode.pid is None:
            return rows[:0]
        return pick(rows, (rows["pid"] == episode.pid) & (start_ticks(rows) == episode.start_tick))

    def sums(self, episode: Episode, lead_ns: int = SECOND) -> np.ndarray:
        """The ``syscall_latency`` rows with an interval that meets the episode. Intervals are long if the agent itself
        could not run.
        """
        rows = self.rings["syscall_latency"].between(episode.start_ns - lead_ns, episode.end_ns + _REACH_NS)
        return np.asarray(
            rows[rows["t_ns"] - np.maximum(rows["interval_ns"], SECOND) <= episode.end_ns + lead_ns - SECOND]
        )

    def informed(self, episode: Episode) -> bool:
        """Whether the sums of the episode's first second are here, or will not come. They are late if CPUs are busy."""
        return not episode.start_ns - _REACH_NS < self._sums_ns < min(episode.end_ns, episode.start_ns + SECOND)

    def starved_ns(self, pid: int, episode: Episode) -> float:
        """How much longer than usual a process was ready to run but waited for a CPU during the episode; the sum of its
        threads.
        """
        rows, before = (
            self.sums(episode, 0),
            self.rings["syscall_latency"].between(episode.start_ns - 60 * SECOND, episode.start_ns),
        )
        now, usual = (per_time(part[part["pid"] == pid]) for part in (rows, before))
        woken = float((now - (np.median(usual) if len(usual) else 0.0)).clip(0).sum()) if len(now) else 0.0
        return max(woken, preempted_ns(self.rings["cpu_wait"], pid, episode))

    def blind_ns(self, episode: Episode) -> float:
        """How long the agent itself did not run around the episode: its sums of a second then cover a longer time. 0 up
        to a second.
        """
        longest = float(self.sums(episode)["interval_ns"].max(initial=0)) - SECOND
        return longest if longest > SECOND else 0.0

    def cpu_saturated(self, from_ns: int, to_ns: int, now_ns: int) -> bool:
        """Whether the host's threads still wait for CPUs about as long as between these two times, compared with
        before.
        """
        ring = self.rings["syscall_latency"]
        before, during, now = (
            per_time(ring.between(a, b))
            for a, b in ((from_ns - 60 * SECOND, from_ns), (from_ns, to_ns + SECOND), (now_ns - 3 * SECOND, now_ns))
        )
        if not len(during) or not len(now):
            return False
        usual = float(np.median(before)) if len(before) else 0.0
        return bool(np.mean(during) > 1.5 * usual and np.mean(now) - usual > 0.5 * (np.mean(during) - usual))

    def unusual_waits(self, episode: Episode) -> dict[bytes, float]:
        """The longest wait of the episode's process for each peer during the episode, ns, if that is twice any wait
        before it.

        This uses the sums per process and peer, which do not identify threads, so a connection that is idle for as long
        as always must not count.
        """
        rows = self.own(
            self.rings["syscall_latency"].between(episode.start_ns - 60 * SECOND, episode.end_ns + 2 * SECOND), episode
        )
        rows = rows[(rows["kind"] == _WAITING) & (rows["peer"] != NO_PEER)]
        waits: dict[bytes, float] = {}
        for i in groups([rows["peer"]])[0] if len(rows) else ():
            mine = rows[rows["peer"] == rows["peer"][i]]
            later = mine["t_ns"] >= episode.start_ns
            now, before = mine["max_ns"][later].max(initial=0), mine["max_ns"][~later].max(initial=0)
            if now > 2 * before:
                waits[rows["peer"][i].tobytes()] = float(now)
        return waits

    def peers(self, episode: Episode) -> list[bytes]:
        """Peers that the episode's process had client connections to in the last minute."""
        rows = self.own(self.rings["tcp_rtt"].between(episode.start_ns - 60 * SECOND, episode.end_ns + SECOND), episode)
        rows = rows[(rows["role"] != _SERVER) & (rows["peer"] != NO_PEER)]
        return [rows["peer"][i].tobytes() for i in groups([rows["peer"]])[0]] if len(rows) else []

    def callees(self, episode: Episode) -> list[int]:
        """The processes of this host that serve these peers."""
        found = [self.server(raw, self.netns(episode, raw), episode) for raw in self.peers(episode)[:_CALLEES]]
        return [server[1] for server in found if server]


def _note(last: dict[T, None], found: Iterable[T]) -> None:
    """Adds these; the oldest make room."""
    for one in found:
        last.pop(one, None)
        last[one] = None
    while len(last) > _BROKERS:
        del last[next(iter(last))]


def _each_poll(polls: np.ndarray) -> np.ndarray:
    """The first row of each poll and status, in order: all rows of a poll have the same values of the server."""
    return np.sort(groups([polls[c] for c in ("t_ns", "peer", "system", "status")])[0])


def place(what: str, peer: bytes, netns: int | None) -> str:
    """Common to episodes about this peer (or its host): on loopback, each network namespace has its own."""
    return what if netns in (None, NULL_I64) or not is_loopback(peer) else f"{what} in {netns}"


def to_peer(rows: np.ndarray, peer: bytes) -> np.ndarray:
    return pick(rows, rows["peer"] == np.frombuffer(peer, "V18")[0])


def per_time(rows: np.ndarray) -> np.ndarray:
    """ns that threads waited for a CPU, one value for each time of ``rows``."""
    _, group = np.unique(rows["t_ns"], return_inverse=True)
    return np.bincount(group.reshape(-1), rows["run_queue_ns"].clip(0))


def addresses(rows: np.ndarray) -> np.ndarray:
    """The address of each row's peer, shape (n, 16)."""
    return np.asarray(np.ascontiguousarray(rows["peer"]).view(np.uint8).reshape(len(rows), 18)[:, :16])


def own_ends(rows: np.ndarray) -> np.ndarray:
    """Each row's own end, in the form of a peer; port 0 if unknown."""
    return packed([rows["saddr"], rows["sport"].clip(0, 65535).astype("<u2")]).view("V18")


def merge_rtt(rows: np.ndarray) -> np.ndarray:
    """One row per process, peer and time, connections summed; clients of a server are distinguished by address only."""
    rows = together((rows, rows[:0]))  # a copy
    samples = np.where(known(rows["samples"]) & known(rows["rtt_sum_us"]), rows["samples"], 0)
    single = (samples == 0) & known(rows["srtt_us"])
    rows["rtt_sum_us"] = np.where(single, rows["srtt_us"], np.where(samples > 0, rows["rtt_sum_us"], 0))
    for name in ("rtt_min_us", "rtt_max_us"):
        rows[name] = np.where(known(rows[name]), rows[name], rows["srtt_us"])
    rows["samples"] = np.where(single, 1, samples)
    rows = only(rows, rows["samples"] > 0)
    if not len(rows):
        return rows
    raw = np.ascontiguousarray(rows["peer"]).view(np.uint8).reshape(len(rows), 18)
    raw[rows["role"] == _SERVER, 16:] = 0
    rows["peer"] = raw.reshape(-1).view("V18")
    rows["sport"] = np.where(rows["role"] == _SERVER, rows["sport"], 0)
    first, group = groups(rows[name] for name in ("t_ns", "pid", "proc_start_ns", "netns", "role", "sport", "peer"))
    merged = pick(rows, first)
    merged["samples"] = np.bincount(group, rows["samples"])
    merged["rtt_sum_us"] = np.bincount(group, rows["rtt_sum_us"])
    merged["rtt_max_us"] = most(np.zeros(len(first), np.int64), group, rows["rtt_max_us"])
    for name in ("rtt_min_us", "raw_min_us"):
        merged[name] = _least(rows[name], group, len(first))
    for name in ("segments", "doubled"):
        is_known = known(rows[name])
        sums = np.bincount(group[is_known], rows[name][is_known], len(first)).astype(np.int64)
        merged[name] = np.where(np.bincount(group[is_known], minlength=len(first)) > 0, sums, NULL_I64)
    return pick(merged, np.argsort(merged["t_ns"], kind="stable"))


def _least(values: np.ndarray, group: np.ndarray, n: int) -> np.ndarray:
    """The smallest of each group's known values, NULL_I64 if there is none."""
    is_known = known(values)
    out = least(np.full(n, np.iinfo(np.int64).max), group[is_known], values[is_known])
    return np.where(out < np.iinfo(np.int64).max, out, NULL_I64)
