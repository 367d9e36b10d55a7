"""Peers that processes of this host call: round trips to them, retransmitted segments, waits for them, second by
second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat

import numpy as np

from agent.common.alike import begins, least, most, packed
from agent.common.copies import pick
from agent.common.fairness import UpperBound
from agent.correlate.ends import MOST, EndWatch
from agent.correlate.local import is_loopback
from agent.correlate.rows import OfSecond, among, columns_of, groups
from agent.correlate.series import Series
from agent.correlate.thresholds import SECOND, CorrelatorConfig
from agent.correlate.view import NO_PEER, addresses, own_ends
from agent.tables import TABLES

_BLOCKED = TABLES["syscall_latency"].code("basis", "blocked")
_WAITING = TABLES["syscall_latency"].code("kind", "waiting")
_SERVER, _CLIENT = (TABLES["tcp_rtt"].code("role", name) for name in ("server", "client"))
_OK = TABLES["tcp_connect"].code("result", "ok")
_SYN, _DATA = (TABLES["tcp_retransmit"].code("kind", name) for name in ("syn", "data"))
_CONTACTING = [b"established", b"syn_sent"]  # in other states no process waits for the peer any more
#: The initial retransmission timeout of a lone segment.
RTO_NS = 200_000_000
#: A wait for a retransmitted segment takes ``RTO_NS`` or longer, less the resolution of its timer. It is far longer
#: than usual beyond so many times the 90th percentile.
RESENT_NS, RATIO = 180_000_000, 5.0
#: Pairs of a process and a peer that have a baseline of their own.
_PAIRS = 1024
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "findings",
        "pairs of a process and a peer whose usual wait is known",
        _PAIRS,
        "far longer waits of the others are not found",
        "`status`, `probe_status` row `correlator`, a note of `findings`",
    ),
)
#: In so many seconds losses are judged.
WITHIN_S = 5
_LATE_S = 10  # sums that are missing for so long are not late: the probe is off
#: A regular peer is seen in this share of so many seconds; after so many tries regularity does not matter.
_RECENT_S, _REGULAR, _TRIES = 10, 0.7, 3
#: Of the pause before the try before.
_SOONER = 0.8
#: Columns that symptoms of peers read.
READS = {
    "tcp_rtt": ("netns", "role", "saddr", "sport", "peer", "samples", "rtt_min_us", "segments", "doubled"),
    "tcp_connect": ("netns", "peer", "result", "duration_ns"),
    "tcp_retransmit": ("netns", "saddr", "sport", "peer", "kind", "state", "count"),
    "syscall_latency": ("basis", "kind", "peer", "max_ns"),
}


class _Unanswered:
    """Retransmissions to a peer since it last answered. since_ns: of the first unanswered segment; last_ns: of the last
    try.
    """

    def __init__(self, since_ns: int) -> None:
        self.since_ns, self.last_ns, self.tries = since_ns, 0, 0
        self._tried: dict[tuple[bytes, int], tuple[int, int]] = {}  # by own end: time of the last try, time before it

    def add(self, own: tuple[bytes, int], t_ns: int, count: int) -> None:
        last_ns = self._tried.get(own, (t_ns, 0))[0]
        self._tried[own] = t_ns, t_ns - last_ns
        self.last_ns, self.tries = t_ns, self.tries + count

    def acknowledged(self, own: tuple[bytes, int], t_ns: int, count: int) -> bool:
        """Whether the connection had an acknowledgement before this try. count: above 1 for several tries."""
        last_ns, pause_ns = self._tried.get(own, (0, 0))
        return count <= 1 and pause_ns > RTO_NS and t_ns - last_ns < _SOONER * pause_ns


class PeerWatch(EndWatch):
    """One subject is one ip:port that clients of this host talk to from one network namespace, unless it is served in
    the same one, since there is no link between them then.

    floor_us: the shortest smoothed RTT of the second, of the connections with most samples; connect_us: the median
    of its connects, without those with a retransmitted SYN; again: retransmitted segments, including the peer's own
    if it is on this host, without those that the receiver had already; sent, lost: segments with data, and the
    retransmitted ones less those that the receiver had already: below 0 where it reports these later; wait_ns: the
    longest wait of a process for it; late_ns: the longest one that took far longer than that process usually waits
    for it, 0 if none did. here: it is a process of this host. A peer that does not respond has no round trips: the
    wait for it then follows from retransmissions to it. dark: 1 in such a second.
    """

    metrics = ("floor_us", "connect_us", "again", "sent", "lost", "wait_ns", "late_ns", "here", "dark")

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self._unanswered: dict[tuple[int, bytes], _Unanswered] = {}
        self._summed = -_LATE_S  # the last second of which sums of system calls arrived
        self._resent = -WITHIN_S  # the last second with a retransmission
        # The longest waits of each process for each peer. Some clients of a peer wait for it all the time (consumers to
        # which it pushes messages), others hardly ever (producers).
        self._pairs = Series(("wait_ns",), _PAIRS)

    @property
    def dropped(self) -> int:
        return super().dropped + self._pairs.dropped

    def fill(self, second: int, rows: OfSecond) -> np.ndarray:
        self._pairs.begin(second)
        if len(rows["syscall_latency"]):
            self._summed = second
        answered = self._count_answers(second, rows, rows["tcp_rtt"])
        return np.concatenate([answered, self._silent(second, rows, rows["tcp_rtt"])])

    def _count_answers(self, second: int, rows: OfSecond, talks: np.ndarray) -> np.ndarray:
        mine = pick(talks, (talks["role"] == _CLIENT) & (talks["peer"] != NO_PEER) & (talks["samples"] > 0))
        served = pick(talks, talks["role"] == _SERVER)
        there = own_ends(served)
        first, group = groups([mine["netns"], mine["peer"]])
        away = ~among(packed([mine["netns"][first], mine["peer"][first]]), packed([served["netns"], there]).tolist())
        if not away.any():
            return np.empty(0, np.int64)
        if not away.all():
            which = away[group]
            first, group = np.cumsum(which)[first[away]] - 1, (np.cumsum(away) - 1)[group[which]]
            mine = pick(mine, which)
        samples = np.bincount(group, mine["samples"])
        top = most(np.zeros(len(first), np.int64), group, mine["samples"])
        busy = 2 * mine["samples"] >= top[group]  # a smoothed RTT of few samples lags behind
        floor = least(np.full(len(first), np.inf), group[busy], mine["rtt_min_us"][busy])
        chosen = np.sort(np.argsort(-samples, kind="stable")[:MOST])
        chosen = chosen[[not is_loopback(end) for end in mine["peer"][first[chosen]].tolist()]]
        ends = mine["peer"][first[chosen]]
        slots = self.slots(mine["netns"][first[chosen]], ends, second)
        at = ContactedEnds(mine, chosen, first, group)
        if len(rows["tcp_retransmit"]):
            self._resent = second
        nothing = np.zeros(at.n)
        again, sent, lost = nothing, nothing, nothing
        if second - self._resent < WITHIN_S:
            again, sent, lost = _resent(rows["tcp_retransmit"], mine, served, at)
        waits = _for_peers(rows["syscall_latency"])
        usual = (again == 0) & ~np.isin(slots, self._active_slots)
        values = {
            "floor_us": floor[chosen],
            "connect_us": _connects(rows, at),
            "again": again,
            "sent": sent,
            "lost": lost,
            "wait_ns": _waits(waits, at) if len(rows["syscall_latency"]) else np.full(at.n, np.nan),
            "late_ns": self._late(second, waits, at, usual),
            "here": among(ends, there.tolist()).astype(np.float64),
            "dark": np.zeros(len(ends)),
        }
        return self.put(second, slots, **values)

    def _late(self, second: int, waits: np.ndarray, at: ContactedEnds, usual: np.ndarray) -> np.ndarray:
        """usual: bool per subject, whether this second belongs to the baselines of those who wait for it."""
        out = np.zeros(at.n)
        subject_of = at.of_processes(waits)
        waits, subject_of = pick(waits, subject_of >= 0), subject_of[subject_of >= 0]
        if not len(waits):
            return out
        first, group = groups([waits["pid"], waits["proc_start_ns"], waits["peer"]])
        longest, subject_of = most(np.zeros(len(first)), group, waits["max_ns"]), subject_of[first]
        pairs = columns_of(waits, first, "pid", "proc_start_ns", "peer")
        slots = np.array([self._pairs.slot(pair, second) for pair in pairs], np.int64)
        long = np.flatnonzero((slots >= 0) & (longest > RESENT_NS))
        before = self._pairs.baseline("wait_ns", slots[long], second, 1)
        late = long[(longest[long] > RATIO * before.high) & (before.seen >= self.config.warm_s)]
        most(out, subject_of[late], longest[late])
        kept = (slots >= 0) & usual[subject_of]
        self._pairs.put(second, slots[kept], wait_ns=longest[kept])
        return out

    def _silent(self, second: int, rows: OfSecond, talks: np.ndarray) -> np.ndarray:
        """Peers that were active before and now only get retransmissions: none of their connections had an
        acknowledgement. A second without a try belongs to such a time while the next try is not overdue, since each
        takes twice as long. A peer that is not seen every second needs more tries. Not each acknowledgement is sampled:
        a connection whose next try comes sooner than the one before had one.
        """
        again = pick(rows["tcp_retransmit"], among(rows["tcp_retransmit"]["state"], _CONTACTING))
        if not len(again) and not self._unanswered:
            return np.empty(0, np.int64)
        mine = pick(talks, (talks["role"] == _CLIENT) & (talks["samples"] > 0))
        one = groups([mine["netns"], mine["peer"]])[0]
        answered = set(zip(mine["netns"][one].tolist(), mine["peer"][one].tolist(), strict=True))
        counts: dict[tuple[int, bytes], int] = {}
        known = set(self.names.values())
        columns = ("netns", "peer", "saddr", "sport", "t_ns", "count")
        for *its, saddr, sport, t_ns, count in zip(*(again[c].tolist() for c in columns), strict=True):
            key = its[0], its[1]
            if key in known and key not in answered:
                counts[key] = counts.get(key, 0) + max(count, 1)
                tried = self._unanswered.get(key)
                if tried is None or tried.acknowledged((saddr, sport), t_ns, count):
                    tried = self._unanswered[key] = _Unanswered(t_ns - RTO_NS)
                tried.add((saddr, sport), t_ns, max(count, 1))
        for key, tried in list(self._unanswered.items()):
            overdue_ns = tried.last_ns + int(1.2 * (tried.last_ns - tried.since_ns)) + SECOND
            if key in answered or second * SECOND > overdue_ns:
                del self._unanswered[key]
        late = 0 < second - self._summed < _LATE_S  # the agent itself: some process always calls
        if not self._unanswered or late:
            return np.empty(0, np.int64)
        keys = list(self._unanswered)
        slots = self.slots(np.array([key[0] for key in keys]), np.array([key[1] for key in keys], "V18"), second)
        since, tries = np.array([(one.since_ns, one.tries) for one in self._unanswered.values()]).T
        waits = (second + 1) * SECOND - since.astype(np.float64)
        resent = np.array([counts.get(key, 0) for key in keys], np.float64)
        fits = slots >= 0
        for i in np.flatnonzero(fits & (tries < _TRIES)):
            lately = self.series.recent("floor_us", slots[i : i + 1], int(since[i]) // SECOND, _RECENT_S)
            fits[i] = np.count_nonzero(~np.isnan(lately)) >= _REGULAR * _RECENT_S
        self.series.put(second, slots[fits], again=resent[fits], wait_ns=waits[fits], dark=np.ones(int(fits.sum())))
        return slots[fits]


class ContactedEnds:
    """The subjects that rows are about. Rows without a network namespace get that of their process; if that is unknown,
    too, all subjects with that end.
    """

    def __init__(self, mine: np.ndarray, chosen: np.ndarray, first: np.ndarray, group: np.ndarray) -> None:
        """mine: the clients' connections of the second; chosen: the groups of it that are subjects."""
        self.n = len(chosen)
        number = np.full(len(first), -1)
        number[chosen] = np.arange(self.n)
        one = pick(mine, first[chosen])
        self._exact = dict(zip(packed([one["netns"], one["peer"]]).tolist(), range(self.n), strict=True))
        self.of_end: dict[bytes, list[int]] = {}
        for i, end in enumerate(one["peer"].tolist()):
            self.of_end.setdefault(end, []).append(i)
        subject_of = number[group]
        there = np.flatnonzero(subject_of >= 0)  # the last of each stays
        pids, ends = mine["pid"][there], mine["peer"][there]
        self._of_process = dict(zip(packed([pids, ends]).tolist(), subject_of[there].tolist(), strict=True))

    def of(self, rows: np.ndarray) -> np.ndarray:
        """By namespace and peer, -1 for none."""
        return _index(self._exact, [rows["netns"], rows["peer"]])

    def of_processes(self, rows: np.ndarray) -> np.ndarray:
        return _index(self._of_process, [rows["pid"], rows["peer"]])

    def added(self, out: np.ndarray, ends: np.ndarray, values: np.ndarray) -> np.ndarray:
        """out, with the values of these ends added to the subjects that have that end."""
        some = among(ends, self.of_end)
        for end, value in zip(ends[some].tolist(), values[some].tolist(), strict=True):
            out[self.of_end[end]] += value
        return out


def _connects(rows: OfSecond, at: ContactedEnds) -> np.ndarray:
    again, out = rows["tcp_retransmit"], np.full(at.n, np.nan)
    done = pick(rows["tcp_connect"], rows["tcp_connect"]["result"] == _OK)
    subject_of = at.of(done)
    order = np.lexsort((done["duration_ns"], subject_of))
    order = order[subject_of[order] >= 0]
    first = np.flatnonzero(begins(subject_of[order]))
    middle = (first + np.append(first[1:], len(order)) - 1) // 2
    out[subject_of[order][first]] = done["duration_ns"][order][middle] / 1e3
    dirty = at.of(pick(again, again["kind"] == _SYN))
    out[dirty[dirty >= 0]] = np.nan
    return out


def _resent(
    resent: np.ndarray, mine: np.ndarray, served: np.ndarray, at: ContactedEnds
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(again, sent, lost) of each subject."""
    there = pick(served, _to_clients(served, mine))
    subject_of, ends, sums = at.of(mine), own_ends(there), []
    for column in ("segments", "doubled"):
        out = np.zeros(at.n)
        np.add.at(out, subject_of[subject_of >= 0], mine[column][subject_of >= 0].clip(0))  # unknown is below 0
        sums.append(at.added(out, ends, there[column].clip(0)))
    sent, had = sums
    data = pick(resent, resent["kind"] == _DATA)
    return (_again(resent, mine, at) - had).clip(0), sent, _again(data, mine, at) - had


def _again(again: np.ndarray, mine: np.ndarray, at: ContactedEnds) -> np.ndarray:
    """Retransmitted segments between the clients' connections and each subject."""
    out = np.zeros(at.n)
    count = np.maximum(again["count"], 1)
    subject_of = at.of(again)
    np.add.at(out, subject_of[subject_of >= 0], count[subject_of >= 0])
    back = _to_clients(again, mine)
    return at.added(out, own_ends(pick(again, back)), count[back])


def _to_clients(rows: np.ndarray, mine: np.ndarray) -> np.ndarray:
    """Which rows are of connections to an address of these clients: a server also has clients elsewhere."""
    ends = addresses(rows).copy().view("V16").reshape(-1)
    return among(ends, mine["saddr"].tolist())


def _for_peers(rows: np.ndarray) -> np.ndarray:
    """The waits for a peer, in rows of ``syscall_latency``."""
    return pick(rows, (rows["basis"] == _BLOCKED) & (rows["kind"] == _WAITING) & (rows["peer"] != NO_PEER))


def _waits(waits: np.ndarray, at: ContactedEnds) -> np.ndarray:
    out = np.zeros(at.n)
    subject_of = at.of_processes(waits)
    most(out, subject_of[subject_of >= 0], waits["max_ns"][subject_of >= 0])
    some = pick(waits, subject_of < 0)
    longest: dict[bytes, int] = {}
    for end, ns in zip(some["peer"].tolist(), some["max_ns"].tolist(), strict=True):
        longest[end] = max(ns, longest.get(end, 0))
    for end, its in at.of_end.items():
        out[its] = np.maximum(out[its], longest.get(end, 0))
    return out


def _index(at: Mapping[bytes, int], keys: Sequence[np.ndarray]) -> np.ndarray:
    """The subject of each end, -1 for none."""
    its = packed(keys).tolist()
    return np.fromiter(map(at.get, its, repeat(-1)), np.int64, len(its))
