"""Segments to a peer that were sent again: of how many, whether they had been lost at all, and for how long that can
have held anybody up. Pure.

A peer that gets a segment twice says so (DSACK): it was late, or what acknowledged it was, and nothing was lost. Linux
waits for 200 ms, and as long as a round trip takes, before it sends a segment again, for a second before it sends a SYN
again, and each time twice as long: after so many tries a wait that is far longer has another reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.correlate.episode import Episode, Evidence, item
from agent.correlate.local import in_netns
from agent.correlate.rows import groups, known
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View, to_peer
from agent.correlate.words import Words, render, value
from agent.tables import TABLES

_SYN = TABLES["tcp_retransmit"].code("kind", "syn")
_CLIENT = TABLES["tcp_rtt"].code("role", "client")
_RTO_NS, _SYN_NS, _MOST = 200_000_000, SECOND, 12
_SPURIOUS = 0.5  # of what was sent again, that the peer had


@dataclass(frozen=True)
class Resent:
    """again: segments, those of the peer's own among them where it is on this host; sent: to it meanwhile, None where
    that is not known; doubled: of these, those that it had already.
    syns: of those sent again, the first of their connections, to which a kernel answers, whatever its server does.
    answered: of those sent again, the peer's own.
    """

    again: int
    sent: int | None
    doubled: int
    most_ns: float
    syns: int = 0
    answered: int = 0

    @property
    def spurious(self) -> bool:
        return self.doubled >= _SPURIOUS * max(self.again, 1)

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


def resent(
    episode: Episode, view: View, raw: bytes, netns: int | None, rows: np.ndarray, answered: int, usual_us: float | None
) -> Resent:
    """rows: of ``tcp_retransmit``, to the peer; answered: segments that the peer itself sent again. usual_us: what a
    round trip takes.
    """
    counts = np.maximum(rows["count"], 1)
    sums = in_netns(to_peer(view.rings["tcp_rtt"].between(episode.start_ns, episode.end_ns + SECOND), raw), netns)
    sums = sums[(sums["role"] == _CLIENT) & known(sums["segments"])]
    most = _after(answered, _RTO_NS, usual_us)
    syn = rows["kind"] == _SYN
    if len(rows):
        first, group = groups([rows["saddr"], rows["sport"], syn])
        for n, one in zip(np.bincount(group, counts), first, strict=True):
            most = max(most, _after(int(n), _SYN_NS if syn[one] else _RTO_NS, usual_us))
    return Resent(
        int(counts.sum()) + answered,
        int(sums["segments"].sum()) if len(sums) else None,
        int(sums["doubled"].sum()) if len(sums) else 0,
        most,
        int(counts[syn].sum()),
        answered,
    )


def had_already(episode: Episode, view: View, raw: bytes, netns: int | None, again: int) -> bool:
    """Whether the peer said of most of what was sent again that it had it: round trips vary, and nothing was lost."""
    return (
        again > 0
        and resent(episode, view, raw, netns, view.during("tcp_retransmit", episode)[:0], again, None).spurious
    )


def _after(tries: int, first_ns: float, usual_us: float | None) -> float:
    """For how long who sent again so often has waited at most: until the next try, too."""
    return (first_ns + 2e3 * (usual_us or 0.0)) * (2.0 ** (min(tries, _MOST) + 1) - 1) if tries else 0.0
