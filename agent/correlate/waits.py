"""Where slow decisions spent their time: waits on peers, blocked calls. Shared by several causes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.common.copies import pick
from agent.correlate.abandoned import READS as GIVEN_UP
from agent.correlate.abandoned import given_up
from agent.correlate.calls import BEFORE_NS, ended_or_since, until
from agent.correlate.catalogue import symptom_of
from agent.correlate.episode import NOT_ASKED, Culprit, Episode, Evidence, item
from agent.correlate.inferred_waits import SURE, InferredWait, inferred_waits
from agent.correlate.join import inside, within
from agent.correlate.limiters import took
from agent.correlate.local import in_netns, is_loopback
from agent.correlate.path import ENOUGH, Path, Spans, covered, path
from agent.correlate.preemption import near
from agent.correlate.resent import NO_CLIENTS, Resent, resent
from agent.correlate.rows import groups, start_ticks
from agent.correlate.served import READS as REQUESTS
from agent.correlate.served import on_others, owing, slow
from agent.correlate.thresholds import SECOND
from agent.correlate.view import LEAD_NS, NO_PEER, SERVERS, View, place, to_peer
from agent.correlate.wakers import of_threads
from agent.correlate.words import peer, process
from agent.tables import TABLES

WAITING = TABLES["slow_syscall"].code("kind", "waiting")
SHARE = ENOUGH  # a cause is worth naming from this share of the lost time on

NONE_GIVEN = given_up(None, None)
_OFTEN = 3  # waits, or seconds with some, from which they are usual
_GIVEN_UP = 0.5  # of the episode's value: a deadline that is passed on grows shorter along a chain

#: Ports of name servers: DNS, DNS over TLS.
_NAMES = (b"\x35\0", b"\x55\3")

#: Columns that ``spent`` reads of a table of calls, and that ``on_peers`` reads.
CALLS = ("tid", "peer", "duration_ns", "goroutine", "sock_id")
#: ... of calls on files: the holder of the lock, the disk, the bytes written; and who ended the wait.
ON_FILES = (
    *("holder_pid", "holder_comm", "holder_start_ns", "file", "device", "written_bytes", "frozen"),
    *("waker_pid", "waker_comm", "waker_tid", "waker_awake_ns"),
)
DECISIONS = ("tid", "limiter_id", "result", "wait_ns", "duration_ns", "goroutine")
SYSCALLS = {
    "slow_syscall": (*CALLS, "kind", "basis", "syscall", "fd_type", "blocked_ns", "run_queue_ns", *ON_FILES),
    "limiter_decision": DECISIONS,
    **REQUESTS,
}
HANDSHAKES = {"tls_handshake": ("tid", "peer", "library", "duration_ns", "result"), "limiter_decision": DECISIONS}
LOOKUPS = {
    "dns_lookup": ("tid", "peer", "name", "duration_ns", "tries", "result"),
    "limiter_decision": DECISIONS,
}
NETWORK = {
    **SERVERS,
    "tcp_rtt": (
        *SERVERS["tcp_rtt"],
        "interval_ns",
        "samples",
        "rtt_min_us",
        "rtt_max_us",
        "rtt_sum_us",
        "srtt_us",
        "raw_min_us",
        "segments",
        "doubled",
    ),
    **GIVEN_UP,
    "tcp_connect": ("netns", "peer", "result", "errno", "duration_ns"),
}
CPUS = {"syscall_latency": ("basis", "kind", "peer", "interval_ns", "max_ns", "run_queue_ns")}
PEERS = {
    **SYSCALLS,
    **HANDSHAKES,
    **LOOKUPS,
    **NETWORK,
    **CPUS,
    "tcp_retransmit": ("netns", "saddr", "sport", "peer", "kind", "count"),
    "tcp_reset": ("netns", "peer", "role", "direction"),
}


def slow_decisions(episode: Episode, view: View) -> np.ndarray:
    """The episode's slow decisions, or slow requests."""
    if symptom_of(episode).table in REQUESTS:
        return slow(episode, view)
    d = view.decisions.between(episode.start_ns, episode.end_ns)
    d = d[d["limiter_id"] == str(episode.key[0]).encode()] if len(d) else d
    mine = d["pid"] == episode.pid if episode.pid is not None else d["pid"] <= 0
    return np.asarray(
        d[mine & (start_ticks(d) == episode.start_tick) & (took(d) > min(episode.bar, episode.value * 0.5))]
    )


def spent(episode: Episode, view: View, table: str) -> tuple[np.ndarray, float, bool]:
    """(rows of a table behind the episode, lost time in ns, whether the rows lie inside decisions of their own thread).

    Rows inside decisions count only with their time inside: a call that began long before was idle until then.
    """
    rows = view.own(view.during(table, episode), episode)
    if symptom_of(episode).inside:
        slow = slow_decisions(episode, view)
        lost = float(np.maximum(took(slow) - episode.base, 0).sum())
        if len(slow):
            rows = until(rows, int(slow["t_ns"].max())) if table == "slow_syscall" else rows
            return _clipped(slow, rows, episode.stuck), lost, bool((slow["tid"] >= 0).all())
    if table == "slow_syscall":
        rows = pick(rows, ended_or_since(rows, episode.start_ns - BEFORE_NS, episode.stuck))
    return rows, float(max(episode.end_ns - episode.start_ns, 1)), False


def _clipped(decisions: np.ndarray, rows: np.ndarray, stuck: bool) -> np.ndarray:
    """The rows that ended inside a decision, with their duration limited to the longest time inside one."""
    i, j = inside(decisions, rows)
    begun = decisions["t_ns"][i] - decisions["duration_ns"][i]
    if "basis" in (rows.dtype.names or ()):
        since = ended_or_since(rows[j], begun - LEAD_NS, stuck)
        i, j, begun = i[since], j[since], begun[since]
    most = np.zeros(len(rows), np.int64)
    np.maximum.at(most, j, rows["t_ns"][j] - begun)
    chosen = np.unique(j)
    out = np.asarray(rows[chosen])
    out["duration_ns"] = np.minimum(out["duration_ns"], most[chosen])
    return out


def _ended_in(view: View, episode: Episode, calls: np.ndarray, table: str) -> np.ndarray:
    """Which calls ended within a TLS handshake, or a lookup, of their own thread."""
    handshakes = spent(episode, view, table)[0]
    hit = np.zeros(len(calls), np.bool_)
    if len(handshakes) and len(calls):
        _, number = groups([np.concatenate([handshakes["tid"], calls["tid"]])])
        n = len(handshakes)
        hit[
            within(
                number[n:],
                calls["t_ns"],
                number[:n],
                handshakes["t_ns"] - handshakes["duration_ns"],
                handshakes["t_ns"],
            )[1]
        ] = True
    return hit


@dataclass(frozen=True)
class PeerWait:
    """Waits of an episode's process on one peer, and the network towards it meanwhile.

    share, own: the waits as a fraction of the lost time; in ``own`` TLS handshakes are excluded. longest, starved_ns:
    the longest wait and, of it, the time that the peer's process waited for a CPU, ns. sure: the certainty that the
    time was lost in these waits. path: the network. reported_by_peer: the waits are inferred from the server's data, or
    the network's, not from the process's own waits. where, host: common to episodes about the peer, or about the path
    to its host. given: requests to it that were given up; unanswered: those of them without an answer to the SYN.
    again: retransmitted segments to it. raw, name: ip:port, as in rows and for display.
    """

    raw: bytes
    name: str
    where: str
    host: str
    server: tuple[str, int] | None
    share: float
    own: float
    longest: float
    sure: float
    reported_by_peer: bool
    given: int
    unanswered: int
    path: Path
    again: int
    resets: int
    failed: np.ndarray
    starved_ns: float
    wait: Evidence
    resent: Resent

    @property
    def who(self) -> str:
        return f"{process(*self.server)} at {self.name}" if self.server else self.name

    @property
    def culprit(self) -> Culprit:
        return Culprit(self.server[1], self.server[0], self.name) if self.server else Culprit(object=self.name)

    @property
    def dark(self) -> bool:
        """Whether not even its kernel answered."""
        return self.unanswered > 0.5 * self.given

    @property
    def slower(self) -> bool:
        """Whether the network explains it. After a request is given up, its connection shows no round trip."""
        if self.path.slower or not self.given or self.usual is None or self.worst is None:
            return self.path.slower
        return self.worst > 2 * self.usual and (self.worst - self.usual) * 1e3 >= SHARE * self.longest

    @property
    def usual(self) -> float | None:
        """Smoothed RTT, us."""
        return self.path.usual

    @property
    def worst(self) -> float | None:
        return self.path.worst

    @property
    def quickest(self) -> float | None:
        return self.path.quickest

    @property
    def rtt(self) -> Evidence:
        return self.path.entries[-1]

    @property
    def resolver(self) -> bool:
        return self.raw[16:] in _NAMES

    @property
    def starving(self) -> bool:
        return self.starved_ns > 0.5 * self.longest


def on_peers(episode: Episode, view: View) -> list[PeerWait]:
    """The peers that the episode's process waited on, longest first: they did not answer, or the network towards them
    was slow, lossy or gone.
    """
    return view.once(_on_peers, episode)


def _on_peers(episode: Episode, view: View) -> list[PeerWait]:
    calls, lost, threaded = spent(episode, view, "slow_syscall")
    serves = symptom_of(episode).table in REQUESTS
    if episode.tids:
        calls = of_threads(calls, episode.tids, episode.pid)
    elsewhere = bool(episode.tids and len(calls))  # it is known where these threads were
    calls = on_others(calls, episode, view) if serves else calls
    handshaking = _ended_in(view, episode, calls, "tls_handshake")
    to_peer, in_handshake = calls[calls["peer"] != NO_PEER], handshaking[calls["peer"] != NO_PEER]
    waited: dict[bytes, float] = {}
    in_tls: dict[bytes, float] = {}
    if len(to_peer):
        first, group = groups([to_peer["peer"]])
        sums = (np.bincount(group, to_peer["duration_ns"] * mask) for mask in (1, in_handshake))
        for i, total, part in zip(first, *sums, strict=True):
            waited[to_peer["peer"][i].tobytes()] = float(total)
            in_tls[to_peer["peer"][i].tobytes()] = float(part)
    sure = 1.0 if threaded else 0.9
    nameless = (calls["peer"] == NO_PEER) & (calls["kind"] == WAITING)
    nameless &= ~_ended_in(view, episode, calls, "dns_lookup")
    unnamed = calls[nameless]
    if len(unnamed) and len(known := view.peers(episode)) == 1:
        # Waits in poll or epoll have no peer; if the process has only one peer, it is that one.
        waited[known[0]] = waited.get(known[0], 0.0) + float(unnamed["duration_ns"].sum())
        in_tls[known[0]] = in_tls.get(known[0], 0.0) + float(unnamed["duration_ns"][handshaking[nameless]].sum())
        sure *= 0.85
    summed: dict[bytes, float] = {}
    if not waited and not elsewhere:
        worst = episode.value if symptom_of(episode).inside else 0.0
        summed = {
            raw: ns
            for raw, ns in view.unusual_waits(episode).items()
            if 0.5 * worst <= ns <= 2 * max(worst, lost) and (not serves or raw in view.peers(episode))
        }
        waited, sure = dict.fromkeys(summed, lost), 0.8
    late = (
        {one.raw: one for one in inferred_waits(episode, view, slow_spans(episode, view))}
        if serves and not waited and not elsewhere
        else {}
    )
    if late:
        summed, waited, sure = {raw: one.waited_ns for raw, one in late.items()}, dict.fromkeys(late, lost), SURE
    for raw in {row.tobytes() for row in _failed(view.own(view.during("tcp_connect", episode), episode))["peer"]}:
        waited.setdefault(raw, 0.0)
    given = _given_up(episode, view)
    for raw, requests in given.items():
        waited[raw] = max(waited.get(raw, 0.0), lost * covered_by(requests, slow_spans(episode, view)))
    for raw in {episode.idle_at, *(raw for raw in waited if _as_ever(raw, episode, view))}:
        waited.pop(raw, None)
    found = []
    queued = _queued(episode, view, to_peer)
    for raw, total in sorted(waited.items(), key=lambda entry: (-entry[1], entry[0])):
        share, own = (min(1.0, part / lost) if lost else 0.0 for part in (total, total - in_tls.get(raw, 0.0)))
        if 0 < share < queued.get(raw, 0.0):
            share, own = queued[raw], queued[raw] * own / share
        rows = _towards(to_peer, raw)
        most = max(rows["duration_ns"].max(initial=0), unnamed["duration_ns"].max(initial=0), summed.get(raw, 0))
        its = given.get(raw, NONE_GIVEN)
        most = max(most, its["duration_ns"].max(initial=0))
        longest = min(float(most), episode.value) if symptom_of(episode).inside else float(most)
        found.append(_peer(episode, view, raw, (share, own), (longest, sure), late.get(raw), its))
    return found


def _given_up(episode: Episode, view: View) -> dict[bytes, np.ndarray]:
    """By peer, the requests of the episode's process that were given up meanwhile, after half of its time or more; if
    it is about such requests, those of all processes to that peer.
    """
    closes, connects = (
        view.rings[table].between(episode.start_ns, episode.end_ns + 2 * SECOND)
        for table in ("tcp_close", "tcp_connect")
    )
    rows = given_up(closes, connects)
    rows = rows[(rows["duration_ns"] >= _GIVEN_UP * episode.value) if episode.unit == "ns" else rows["pid"] > 0]
    netns, to = episode.key if len(episode.key) == 2 else (None, None)
    if isinstance(to, bytes):
        rows = to_peer(rows[rows["netns"] == netns], to)
    else:
        rows = rows[(rows["pid"] == episode.pid) & (rows["tick"] == episode.start_tick)]
    return {rows["peer"][i].tobytes(): _towards(rows, rows["peer"][i].tobytes()) for i in groups([rows["peer"]])[0]}


def _as_ever(raw: bytes, episode: Episode, view: View) -> bool:
    """Whether a process that was not asked for answers waited for that peer as long before: for jobs."""
    if episode.key != NOT_ASKED or episode.tids:
        return False
    worst, before = 0, 0
    for table, column in (("slow_syscall", "duration_ns"), ("syscall_latency", "max_ns")):
        rows = view.rings[table].between(episode.start_ns - 60 * SECOND, episode.end_ns + SECOND)
        rows = _towards(view.own(rows[rows["kind"] == WAITING], episode), raw)
        now = rows["t_ns"] >= episode.start_ns
        worst = max(worst, int(rows[column][now].max(initial=0)))
        before = max(before, int(np.count_nonzero(2 * rows[column][~now] >= worst)))
    return worst > 0 and before >= _OFTEN


def _queued(episode: Episode, view: View, calls: np.ndarray) -> dict[bytes, float]:
    """By peer: the share of the time with slow requests in which some call waited for the peer, longer than ever
    before.
    """
    if not symptom_of(episode).inside or not len(calls):
        return {}
    spans = slow_spans(episode, view)
    return {raw: covered_by(_towards(calls, raw), spans) for raw in view.unusual_waits(episode)}


def covered_by(calls: np.ndarray, requests: Spans) -> float:
    """The share of the time with requests in which one of these calls lasted. Requests that wait for each other within
    the program (for a lock, or a connection of a pool) lose that time, too, though no call of theirs is among these.
    """
    return covered((calls["t_ns"] - calls["duration_ns"], calls["t_ns"]), requests)


def _peer(
    episode: Episode,
    view: View,
    raw: bytes,
    shares: tuple[float, float],
    most: tuple[float, float],
    late: InferredWait | None,
    given: np.ndarray,
) -> PeerWait:
    (longest, sure), name = most, peer(raw)  # the longest wait, and its certainty
    netns = view.netns(episode, raw)
    host = place(name.rpartition(":")[0], raw, netns)  # all ports of a host share one network path
    where, server = place(name, raw, netns), (late and late.server) or view.server(raw, netns, episode)
    if server and not late and (owes := owing(raw, netns, episode, view)):
        server = owes[:2]  # of several processes with one port
    sent_again, resets, connects = (
        in_netns(_towards(view.during(table, episode), raw), netns)
        for table in ("tcp_retransmit", "tcp_reset", "tcp_connect")
    )
    mine = _towards(view.rings["tcp_rtt"].between(episode.start_ns - 60 * SECOND, episode.end_ns + SECOND), raw)
    clients = view.own(mine, episode)["saddr"]
    if late and is_loopback(raw):  # loopback loses nothing: a busy process acknowledges late
        sent_again, clients = sent_again[:0], NO_CLIENTS
    failed = _failed(connects)
    wait = item(
        "tcp_close" if len(given) else "slow_syscall",
        "wait that was given up" if len(given) else "time waiting on the peer",
        longest,
        "ns",
        column="waited_ns" if len(given) else "duration_ns",
        share=round(shares[0], 2),
        keys={"peer": name, "pid": episode.pid},
    )
    its = path(episode, view, raw, netns, longest, slow_spans(episode, view), server is not None)
    whole = max(longest, float(episode.end_ns - episode.start_ns))
    each = longest / whole if len(given) else near(episode)  # requests that are given up fill the episode
    starved = min(view.starved_ns(server[1], episode) * each, longest) if server else 0.0
    back = resent(episode, view, raw, netns, sent_again, its.usual, clients)
    return PeerWait(
        raw,
        name,
        where,
        host,
        server,
        *shares,
        longest,
        sure,
        late is not None,
        len(given),
        int(np.count_nonzero(given["connecting"])),
        its,
        back.again,
        len(resets),
        failed,
        starved,
        wait,
        back,
    )


def slow_spans(episode: Episode, view: View) -> Spans:
    """The times of the waits: (begins, ends); of decisions, those at least half as slow as the slowest."""
    if episode.spans:
        return np.array([from_ns for from_ns, _ in episode.spans]), np.array([to_ns for _, to_ns in episode.spans])
    if symptom_of(episode).inside and len(slow := slow_decisions(episode, view)):
        slow = slow[took(slow) >= 0.5 * np.nanmax(took(slow))]
        return slow["t_ns"] - slow["duration_ns"], slow["t_ns"]
    return np.array([episode.start_ns]), np.array([episode.end_ns])


def _towards(rows: np.ndarray, raw: bytes) -> np.ndarray:
    return np.asarray(rows[rows["peer"] == np.frombuffer(raw, "V18")[0]])


def _failed(connects: np.ndarray) -> np.ndarray:
    return np.asarray(connects[connects["result"] == TABLES["tcp_connect"].code("result", "failed")])
