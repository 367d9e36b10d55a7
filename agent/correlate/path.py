"""The network to a peer during a wait for it: slower or not, from values that only the network can raise. Pure.

The kernel alone answers a SYN, so a connect takes one round trip, however slow the server is. A connection's RTT
includes the time until the peer acknowledges, and a peer that answers within the delayed acknowledgement (Linux: 40 ms)
acknowledges with its answer: a rise above that is the network's. Lost segments make connects and RTT longer, too. So
connects with a retransmitted SYN are ignored, and of the RTT only seconds count in which even the shortest one was
long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.common.alike import begins
from agent.correlate.episode import Episode, Evidence, item
from agent.correlate.local import in_netns, is_loopback
from agent.correlate.rows import groups, known
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View, addresses, per_time, to_peer
from agent.correlate.words import peer
from agent.tables import TABLES

_OK = TABLES["tcp_connect"].code("result", "ok")
_SERVER = TABLES["tcp_rtt"].code("role", "server")
_SYN = TABLES["tcp_retransmit"].code("kind", "syn")
ENOUGH = 0.3  # of a wait, from which a cause is worth naming
_MOST = 0.8  # of a wait, from which one round trip is all of it
_DELAYED_ACK_US = 50_000  # TCP_DELACK_MIN, and a tick: a peer that answers sooner may acknowledge with its answer
_DELAYED_ELSEWHERE_US = 210_000  # other systems than Linux wait for up to 200 ms
_REACH_NS = 60 * SECOND
_SLACK_NS = 20_000_000  # a decision may be reported a little after its end
_SPREAD = 0.5  # of the median, from which round trips count as varying
_FEW = 4  # too few samples for a spread
_SYN_NS = 900_000_000  # a connect that lost a SYN takes a second at least (Linux)
_MOSTLY = 0.75  # this share of the connects was quick
_SETTLED = 8  # samples after which a smoothed RTT has made two thirds of a change
_SATURATED_NS = 500_000_000  # time a second that threads of this host waited for CPUs, beyond the usual
Spans = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Path:
    """usual, worst: smoothed RTT, us; now: round trips while they were slower. held: unless the peer delayed its
    acknowledgements. quickest: a round trip that was quick throughout, us, if only that shows that the network was
    fine. low, high: the range of jitter, us, if there was any. entries: evidence.
    """

    usual: float | None
    worst: float | None
    now: float | None
    slower: bool
    held: bool
    quickest: float | None
    low: float | None
    high: float | None
    entries: tuple[Evidence, ...]


def path(
    episode: Episode,
    view: View,
    raw: bytes,
    netns: int | None,
    longest_ns: float,
    spans: Spans,
    here: bool = False,
) -> Path:
    """The path to the peer ``raw`` for a process that waited for it for ``longest_ns`` at once, within these times
    (begins, ends). here: the peer is a process of this host.
    """
    name = peer(raw)
    usual, floor, worst = rtt_us(view, raw, netns, episode)
    clean, dirty, before = _connects(view, raw, netns, episode, spans)
    enough = ENOUGH * longest_ns / 1e3
    rtt = item("tcp_rtt", "smoothed RTT", worst, "us", column="srtt_us", baseline=usual, keys={"peer": name})
    low = high = None
    if len(clean) >= _FEW:
        low, high = (float(q) for q in np.quantile(clean, (0.1, 0.9)))
        if high - low < max(_SPREAD * float(np.median(clean)), 2 * (usual or 0)):
            low = high = None
    if len(clean):
        ordinary = float(np.median(before)) if len(before) else usual
        typical = float(np.median(clean))
        slow = typical if high is None else float(np.quantile(clean, _MOSTLY, method="lower"))
        if ordinary is not None and typical > 2 * ordinary and slow - ordinary >= enough:
            connect = item(
                "tcp_connect",
                "connect",
                typical * 1e3,
                "ns",
                column="duration_ns",
                baseline=ordinary * 1e3,
                keys={"peer": name},
            )
            return Path(ordinary, max(typical, worst or 0), typical, True, False, None, low, high, (connect, rtt))
    rise = 0.0 if usual is None or floor is None else floor - usual
    bound = float(_DELAYED_ACK_US if here else _DELAYED_ELSEWHERE_US)
    if here and rise * 1e3 >= _MOST * longest_ns and _answered_at_once(view, raw, netns, episode, longest_ns):
        bound = 0.0
    if usual is not None and floor is not None and floor > 2 * usual and rise >= max(enough, bound) and not dirty:
        return Path(usual, worst, floor, True, False, None, low, high, (rtt,))
    if usual is None or worst is None or worst <= 2 * usual or (worst - usual) < enough:
        return Path(usual, worst, None, False, False, None, None, None, (rtt,))
    # From here on the RTT is not conclusive.
    if len(clean) >= _FEW:
        return Path(usual, worst, None, False, False, float(np.median(clean)), None, None, (rtt,))
    quickest = quickest_us(view, raw, netns, episode, spans)
    if quickest is not None and quickest < ENOUGH * worst:
        return Path(usual, worst, None, False, False, quickest, None, None, (rtt,))
    held = quickest is None and worst - usual <= _DELAYED_ACK_US
    slower = not dirty and (not held or (worst - usual) * 1e3 >= _MOST * longest_ns)
    return Path(usual, worst, worst if slower else None, slower, held, None, None, None, (rtt,))


def _answered_at_once(view: View, raw: bytes, netns: int | None, episode: Episode, longest_ns: float) -> bool:
    """Whether a server of this host sent its answers long before they arrived."""
    rows = view.rings["service_latency"].between(episode.start_ns, episode.end_ns + SECOND)
    there = np.isin(rows["netns"], view.servers.netns_of(raw, netns))
    rows = rows[there & (rows["sport"] == int.from_bytes(raw[16:18], "little")) & (rows["requests"] > 0)]
    return bool(len(rows)) and rows["max_ns"].min() >= 0 and float(rows["max_ns"].max()) < ENOUGH * longest_ns


def _connects(
    view: View, raw: bytes, netns: int | None, episode: Episode, spans: Spans
) -> tuple[np.ndarray, int, np.ndarray]:
    """(us of connects within the spans, how many there had a retransmitted SYN, us of those in the minute before)."""
    begin, end = merged(*spans)
    if not len(begin):
        return np.empty(0), 0, np.empty(0)
    found = to_peer(view.rings["tcp_connect"].between(episode.start_ns - _REACH_NS, int(end[-1]) + _SLACK_NS), raw)
    found = in_netns(found[found["result"] == _OK], netns)
    again = to_peer(view.rings["tcp_retransmit"].between(episode.start_ns - _REACH_NS, int(end[-1]) + _SLACK_NS), raw)
    again = in_netns(again[again["kind"] == _SYN], netns)
    began = found["t_ns"] - found["duration_ns"]
    dirty = np.zeros(len(found), np.bool_)
    for row in again:
        dirty |= (found["pid"] == row["pid"]) & (began <= row["t_ns"]) & (row["t_ns"] <= found["t_ns"])
    inside = _within(found, begin, end)
    before = found["t_ns"] < episode.start_ns
    us = found["duration_ns"] / 1e3
    return us[inside & ~dirty & ~before], int((inside & dirty).sum()), us[before & ~dirty]


def _within(connects: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Which connects began and ended within one of the times."""
    if not len(begin):
        return np.zeros(len(connects), np.bool_)
    at = np.searchsorted(begin, connects["t_ns"] - connects["duration_ns"] + _SLACK_NS, "right") - 1
    return np.asarray((at >= 0) & (connects["t_ns"] <= end[np.maximum(at, 0)] + _SLACK_NS))


def merged(begin: np.ndarray, end: np.ndarray) -> Spans:
    """Overlapping or adjacent times merged; in order."""
    if not len(begin):
        return begin, end
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    first = np.append(True, begin[1:] > end[:-1])
    return begin[first], end[np.append(np.flatnonzero(first)[1:] - 1, len(end) - 1)]


def covered(its: Spans, of: Spans) -> float:
    """The share of the time of some spans that others cover."""
    begins, ends = merged(*of)
    taken = float((ends - begins).sum())
    return min(1.0, float(overlap_ns(*merged(*its), begins, ends).sum()) / taken) if taken > 0 else 0.0


def overlap_ns(from_ns: np.ndarray, to_ns: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """How much of each span from begins to ends some other spans, which do not overlap each other, cover."""
    return np.asarray((np.minimum(to_ns[:, None], ends) - np.maximum(from_ns[:, None], begins)).clip(0).sum(axis=0))


def rtt_us(
    view: View, raw: bytes, netns: int | None, episode: Episode
) -> tuple[float | None, float | None, float | None]:
    """(usual, minimum of its worst second, worst during the episode) smoothed RTT towards a peer, us; without a value
    during the episode, the last one before it. The minimum is of all connections: a lost segment delays some of them.

    As seen from that network namespace. If it is unknown and loopback has rows in several, all are None.
    """
    rows = to_peer(view.rings["tcp_rtt"].between(episode.start_ns - _REACH_NS, episode.end_ns + SECOND), raw)
    rows = in_netns(rows, netns)
    if netns is None and is_loopback(raw) and len(np.unique(rows["netns"])) > 1:
        return None, None, None
    mean = rows["rtt_sum_us"] / np.maximum(rows["samples"], 1)
    before = rows["t_ns"] <= episode.start_ns
    shortest = np.where(known(rows["raw_min_us"]), rows["raw_min_us"], rows["rtt_min_us"])
    usual = float(np.median(mean[before])) if before.any() else None
    if before.all():
        return usual, None, float(mean[-1]) if len(mean) else None
    floor = np.minimum.reduceat(shortest[~before], np.flatnonzero(begins(rows["t_ns"][~before] // SECOND)))
    return usual, float(floor.max()), float(rows["rtt_max_us"][~before].max())


def quickest_us(
    view: View, raw: bytes, netns: int | None, episode: Episode, spans: Spans | None = None
) -> float | None:
    """The shortest round trip to that address during the episode that its program cannot have delayed, us. spans: the
    times for connects.

    The network is usually the same for all connections to one address, so the one with the lowest RTT is used. It must
    have had time to rise, since the RTT is smoothed over eight samples, and whole seconds are bad. Delays may vary, so
    the mean of each second counts.
    """
    address = np.frombuffer(raw, np.uint8)[:16]
    done = in_netns(view.rings["tcp_connect"].between(episode.start_ns, episode.end_ns), netns)
    done = done[(done["result"] == _OK) & (addresses(done) == address).all(axis=1)]
    if spans is not None:
        done = done[_within(done, *merged(*spans))]
    rows = in_netns(view.rings["tcp_rtt"].between(episode.start_ns + 2 * SECOND, episode.end_ns - SECOND), netns)
    rows = rows[(rows["role"] != _SERVER) & (addresses(rows) == address).all(axis=1)]
    single = _whole_within(rows[known(rows["raw_min_us"])], episode)
    # a delay that varies leaves a few round trips short
    took = [float(single["raw_min_us"].max())] if single["samples"].sum() >= _FEW else []
    connects = done["duration_ns"][done["duration_ns"] < _SYN_NS] / 1e3  # slower ones lost a SYN
    if len(connects) >= (_FEW if took else 1):
        took.append(float(np.quantile(connects, _MOSTLY) if spans is not None else connects.min()))
    if len(rows):
        first, group = groups([rows["pid"], rows["proc_start_ns"], rows["peer"]])
        worst = np.zeros(len(first))
        np.maximum.at(worst, group, rows["rtt_sum_us"] / np.maximum(rows["samples"], 1))
        took += worst[np.bincount(group, rows["samples"]) >= _SETTLED].tolist()
    return min(took, default=None)


def _whole_within(rows: np.ndarray, episode: Episode) -> np.ndarray:
    """The rows with an interval that lies in the episode as a whole."""
    lasted = np.where(known(rows["interval_ns"]), rows["interval_ns"], SECOND)
    return np.asarray(rows[(rows["t_ns"] - lasted >= episode.start_ns) & (rows["t_ns"] <= episode.end_ns)])


def cpu_saturated(view: View, episode: Episode) -> bool:
    """Whether this host's CPUs were so busy meanwhile that everything on it was slow, including its network stack."""
    sums = view.rings["syscall_latency"]
    before, now = (
        per_time(sums.between(a, b))
        for a, b in ((episode.start_ns - _REACH_NS, episode.start_ns), (episode.start_ns, episode.end_ns + SECOND))
    )
    more = (float(np.mean(now)) if len(now) else 0.0) - (float(np.median(before)) if len(before) else 0.0)
    return more > _SATURATED_NS
