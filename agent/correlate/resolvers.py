"""Time that an episode's process lost on names: waits for name servers (port 53 or 853), and lookups that took long or
failed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.correlate.episode import Culprit, Episode, Evidence, item
from agent.correlate.local import in_netns, is_loopback
from agent.correlate.path import quickest_us
from agent.correlate.rows import groups
from agent.correlate.thresholds import SECOND
from agent.correlate.view import NO_PEER, View, addresses, place
from agent.correlate.waits import LOOKUPS, PEERS, PeerWait, on_peers, spent
from agent.correlate.words import peer, process, text
from agent.tables import TABLES

READS = {**PEERS, **LOOKUPS}
_TABLE = TABLES["dns_lookup"]
RESULT = _TABLE.by_name["result"]
_OK, _NODATA = (_TABLE.code("result", name) for name in ("ok", "nodata"))
_BEFORE_NS = 30 * SECOND
_ABOUT_AS_LONG = 0.5  # of the longest wait: excludes the quick answer after a repeated question


@dataclass(frozen=True)
class ProcessLookups:
    """server: the address; who: for display. netns: of the asker. share: of the lost time. longest, total: ns; times:
    waits, or lookups, about as long as the longest, together total. tries: questions of the longest lookup. quickest: a
    round trip to that address meanwhile, us; again: retransmitted TCP segments to it, for whatever purpose, most of
    them to again_to; refused: connections. failed: failed lookups beyond the usual number, mostly with result. name: of
    the longest, or failed, lookup.
    """

    server: str
    pid: int | None
    comm: str
    where: str
    share: float
    longest: float
    total: float
    times: int
    tries: int | None
    quickest: float | None
    worst: float | None
    again: int
    again_to: str
    refused: int
    failed: int
    result: str
    name: str
    slower: bool
    starving: bool
    sure: float
    evidence: tuple[Evidence, ...]

    @property
    def who(self) -> str:
        if not self.server:
            return "the resolver"
        return (
            f"name server {process(self.comm, self.pid)} at {self.server}" if self.pid else f"name server {self.server}"
        )

    @property
    def culprit(self) -> Culprit:
        return Culprit(self.pid, self.comm, self.server)

    @property
    def host(self) -> str:
        """Common to all findings about the path to it."""
        address, _, behind = self.where.rpartition(":")
        return address + behind.lstrip("0123456789")


def lookups_of(episode: Episode, view: View) -> ProcessLookups | None:
    """None if no lookup or wait was seen."""
    return view.once(_lookups_of, episode)


def _lookups_of(episode: Episode, view: View) -> ProcessLookups | None:
    found = [p for p in on_peers(episode, view) if p.resolver]
    lookups, lost, threaded = spent(episode, view, "dns_lookup")
    if not found and not len(lookups):
        return None
    first = found[0] if found else None
    raw = first.raw if first else _of_most(lookups)
    known = raw != NO_PEER.tobytes()
    netns = view.netns(episode, raw) if known else None
    server = view.server(raw, netns, episode) if known else None
    waited, taken = sum(p.own for p in found), float(lookups["duration_ns"].sum()) / lost if lost else 0.0
    by_lookup = taken >= waited
    durations = lookups["duration_ns"] if by_lookup else _waits(episode, view, found)["duration_ns"]
    longest = float(durations.max(initial=0)) or (first.longest if first else 0.0)
    many = durations[durations >= _ABOUT_AS_LONG * longest]
    bad = failed(lookups)
    begun = episode.start_ns - _BEFORE_NS
    usual = len(failed(view.own(view.rings["dns_lookup"].between(begun, episode.start_ns - SECOND), episode)))
    fresh = len(bad) - round(usual * (episode.end_ns - episode.start_ns) / (_BEFORE_NS - SECOND))
    top = _top(bad if len(bad) else lookups)
    resent, most_to = _resent(episode, view, raw, netns) if known and not is_loopback(raw) else (0, "")
    evidence = [first.wait] if first else []
    if top is not None:
        evidence.append(_lookup(top, episode, len(lookups), len(bad)))
    return ProcessLookups(
        peer(raw),
        server[1] if server else None,
        server[0] if server else "",
        place(peer(raw), raw, netns),
        min(1.0, max(waited, taken)),
        longest,
        max(float(many.sum()), longest),
        max(1, len(many)),
        int(top["tries"]) if top is not None and top["tries"] > 0 else None,
        quickest_us(view, raw, netns, episode) if known else None,
        first.worst if first else None,
        resent,
        most_to,
        sum(len(p.failed) for p in found),
        max(0, fresh),
        RESULT.word(int(top["result"])) if top is not None else "",
        text(top["name"]) if top is not None else "",
        bool(first and first.slower),
        bool(first and first.starving),
        first.sure if first else 1.0 if threaded else 0.9,
        tuple(evidence),
    )


def failed(lookups: np.ndarray) -> np.ndarray:
    return np.asarray(lookups[(lookups["result"] != _OK) & (lookups["result"] != _NODATA)])


def _waits(episode: Episode, view: View, found: list[PeerWait]) -> np.ndarray:
    calls = spent(episode, view, "slow_syscall")[0]
    return np.asarray(calls[np.isin(calls["peer"], np.frombuffer(b"".join(p.raw for p in found), "V18"))])


def _of_most(lookups: np.ndarray) -> bytes:
    """The name server with most of the time."""
    first, group = groups([lookups["peer"]])
    return bytes(lookups["peer"][first[int(np.argmax(np.bincount(group, lookups["duration_ns"])))]].tobytes())


def _top(lookups: np.ndarray) -> np.void | None:
    return lookups[int(np.argmax(lookups["duration_ns"]))] if len(lookups) else None


def _resent(episode: Episode, view: View, raw: bytes, netns: int | None) -> tuple[int, str]:
    """Retransmitted segments to the name server's address, and the ``ip:port`` of most of them."""
    rows = in_netns(view.during("tcp_retransmit", episode), netns)
    rows = rows[(addresses(rows) == np.frombuffer(raw, np.uint8)[:16]).all(axis=1)]
    if not len(rows):
        return 0, ""
    counts = np.maximum(rows["count"], 1)
    first, group = groups([rows["peer"]])
    return int(counts.sum()), peer(rows["peer"][first[int(np.argmax(np.bincount(group, counts)))]].tobytes())


def _lookup(top: np.void, episode: Episode, lookups: int, bad: int) -> Evidence:
    return item(
        "dns_lookup",
        "time to look a name up",
        float(top["duration_ns"]),
        "ns",
        column="duration_ns",
        lookups=lookups,
        failed=bad or None,
        keys={
            "pid": episode.pid,
            "peer": peer(top["peer"].tobytes()),
            "name": text(top["name"]),
            "result": RESULT.word(int(top["result"])),
        },
    )
