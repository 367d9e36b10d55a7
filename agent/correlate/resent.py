"""Retransmissions to a peer: how many of how many segments, whether the segments had been lost, and how long a wait
they can explain. Pure.

A peer that gets a segment twice reports it (DSACK): its acknowledgement was late, and nothing was lost; or that was
lost on its way back. One that is later than the retransmission timeout makes the smoothed RTT longer. Linux waits for
200 ms plus a round trip before it retransmits a segment, for a second before it retransmits a SYN, and twice as long
each time. So a wait that is far longer than the number of tries explains has another reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.correlate.episode import Episode, Evidence, item
from agent.correlate.local import in_netns, is_loopback
from agent.correlate.rows import as_bytes, groups, known
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View, addresses, to_peer
from agent.correlate.words import Words, render, value
from agent.tables import TABLES

_SYN = TABLES["tcp_retransmit"].code("kind", "syn")
_CLIENT = TABLES["tcp_rtt"].code("role", "client")
_RTO_NS, _SYN_NS, _MOST, _REACH_NS = 200_000_000, SECOND, 12, 60 * SECOND
_SPURIOUS = 0.5  # share of the retransmissions that the peer had already
#: What one acknowledgement after the timeout (200 ms) adds to the smoothed RTT (an eighth), less what may be missing.
_LATE_US = 20_000


@dataclass(frozen=True)
class Resent:
    """again: retransmitted segments, including the peer's own if it is on this host; sent: to it meanwhile, None if
    unknown; doubled: of all these, those that the receiver had already; late: unless no acknowledgement was later than
    the timeout during a wait of at least that. syns: retransmitted SYNs, which a kernel answers, whatever its server
    does. answered: of the retransmissions, the peer's own.
    """

    again: int
    sent: int | None
    doubled: int
    most_ns: float
    syns: int = 0
    answered: int = 0
    late: bool = True

    @property
    def spurious(self) -> bool:
        """Whether nothing was lost."""
        return self.late and self.doubled >= _SPURIOUS * max(self.again, 1)

    def explains(self, waited_ns: float) -> float:
        """How much of a wait, from 0 to 1."""
        return 0.0 if self.spurious else min(1.0, self.most_ns / max(waited_ns, 1.0))

    def evidence(self, raw: bytes) -> Evidence:
        """raw: the peer."""
        own = self.again == self.answered > 0
        keys = {"sport": int.from_bytes(raw[16:], "little")} if own else {"peer": raw}
        return item("tcp_retransmit", "retransmitted segments", self.again, "", column="count", keys=keys)

    def text_words(self) -> Words:
        """How many, of how many."""
        if self.sent is None or self.sent <= self.again:
            return render("{n}", n=value(self.again, "TCP segment"))
        return render("{n} of {sent}", n=value(self.again), sent=value(self.sent, "TCP segment"))


#: No clients: the peer's own retransmissions do not count.
NO_CLIENTS = np.empty(0, "V16")


def resent(
    episode: Episode,
    view: View,
    raw: bytes,
    netns: int | None,
    rows: np.ndarray,
    usual_us: float | None = None,
    clients: np.ndarray = NO_CLIENTS,
) -> Resent:
    """rows: of ``tcp_retransmit``, to the peer. usual_us: a usual round trip. clients: addresses, V16; what the peer
    retransmitted to them counts, too, if it is a process of this host.
    """
    counts = np.maximum(rows["count"], 1)
    near = view.rings["tcp_rtt"].between(episode.start_ns - _REACH_NS, episode.end_ns + SECOND)
    back = of_peer(near[near["t_ns"] > episode.start_ns], raw, netns, clients)
    near = in_netns(to_peer(near, raw), netns)
    near = near[(near["role"] == _CLIENT) & known(near["segments"])]
    sums = near[near["t_ns"] > episode.start_ns]
    answered = int(np.maximum(of_peer(view.during("tcp_retransmit", episode), raw, netns, clients)["count"], 1).sum())
    most = _after(answered, _RTO_NS, usual_us)
    syn = rows["kind"] == _SYN
    if len(rows):
        first, group = groups([rows["saddr"], rows["sport"], syn])
        for n, one in zip(np.bincount(group, counts), first, strict=True):
            most = max(most, _after(int(n), _SYN_NS if syn[one] else _RTO_NS, usual_us))
    return Resent(
        int(counts.sum()) + answered,
        int(sums["segments"].sum()) if len(sums) else None,
        int(sums["doubled"].sum()) + int(back["doubled"].clip(0).sum()),
        most,
        int(counts[syn].sum()),
        answered,
        _late(episode, sums, near),
    )


def _late(episode: Episode, sums: np.ndarray, near: np.ndarray) -> bool:
    """Shorter waits may be of faster retransmissions (tail loss probes, RACK after reordering)."""
    if not len(sums) or episode.unit != "ns" or episode.value < _RTO_NS:
        return True
    return float(sums["rtt_max_us"].max() - near["rtt_min_us"].min()) >= _LATE_US


def had_already(episode: Episode, view: View, raw: bytes, netns: int | None, rows: np.ndarray) -> bool:
    """Whether the peer had most of the retransmitted segments: round trips vary, and nothing was lost."""
    return len(rows) > 0 and resent(episode, view, raw, netns, rows).spurious


def of_peer(rows: np.ndarray, raw: bytes, netns: int | None, clients: np.ndarray) -> np.ndarray:
    """The rows of the peer's own end, if it is on this host, of connections to these addresses. netns: of the clients,
    which a peer on loopback shares.
    """
    here = (rows["saddr"] == np.frombuffer(raw[:16], "V16")[0]) & (rows["sport"] == int.from_bytes(raw[16:], "little"))
    rows = in_netns(rows[here], netns) if is_loopback(raw) else rows[here]
    if not len(rows):
        return rows
    ends = addresses(rows).copy().view("V16").reshape(-1)
    return np.asarray(rows[np.isin(as_bytes(ends), as_bytes(clients))])


def _after(tries: int, first_ns: float, usual_us: float | None) -> float:
    """The longest wait that so many tries explain, until the next try."""
    return (first_ns + 2e3 * (usual_us or 0.0)) * (2.0 ** (min(tries, _MOST) + 1) - 1) if tries else 0.0
