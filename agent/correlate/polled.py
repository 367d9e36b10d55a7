"""What the agent's poller saw of a broker that answered late. Shared by several causes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.correlate.brokers import POLLER, failed_by_itself, failure
from agent.correlate.episode import Culprit, Episode, Evidence, item
from agent.correlate.local import in_netns
from agent.correlate.path import ENOUGH, rtt_us
from agent.correlate.preemption import preempted_ns
from agent.correlate.resent import had_already
from agent.correlate.rows import known
from agent.correlate.thresholds import SECOND
from agent.correlate.view import LEAD_NS, View, addresses, place, to_peer
from agent.correlate.waits import CPUS, NETWORK, SHARE
from agent.correlate.words import peer, process
from agent.tables import TABLES

POLLS = {"queue_lag": ("system", "status", "failure", "reason", "poll_ns", "peer")}
READS = {
    **POLLS,
    **NETWORK,
    **CPUS,
    "tcp_rtt": (*NETWORK["tcp_rtt"], "comm"),
    "tcp_retransmit": ("netns", "peer", "kind", "count"),
    "cpu_wait": ("interval_ns", "wait_ns"),
}
_SERVER, _SYN = TABLES["tcp_rtt"].code("role", "server"), TABLES["tcp_retransmit"].code("kind", "syn")
_NO_ANSWER = TABLES["queue_lag"].code("failure", "no_answer")
_SHORTLY_NS, _REACH_NS = 5 * SECOND, 60 * SECOND
#: Times the usual duration of a poll: a server with many queues, or far away, always takes long.
_LONGER = 4.0
#: Round trips of a poll that asks several questions, at least: one that connects first has more.
_TRIPS = 4
_SINGLE = 3  # rows of single round trips that are enough
#: What a delayed acknowledgement adds to a round trip at most (TCP_DELACK_MAX of Linux), us.
_DELAYED_ACK_US = 200_000.0


@dataclass(frozen=True)
class Polled:
    """asked: the end that the poller asks: another port of the broker's address, if that is not the port of clients.
    blind_ns: how long tickscope itself, or its poller, did not run; starved_ns: how long the server waited for a
    CPU. usual, worst: smoothed RTT, us; single: median of the shortest round trips of its clients, us; None if
    too few are known. trip: the same, also of the first seconds, so maybe too short; a smoothed RTT rises slowly.
    trips: round trips of the longest poll. resent_syns: of the poller's connects, which make its RTT
    long without a slow network. took_ns: the time without an answer; longest_ns: the longest poll of it.
    """

    where: str
    asked: str
    scope: str
    server: tuple[str, int] | None
    blind_ns: float
    starved_ns: float
    usual: float | None
    worst: float | None
    took_ns: float
    longest_ns: float
    seen: Evidence
    rtt: Evidence
    single: float | None = None
    trip: float | None = None
    trips: float = _TRIPS
    resent_syns: int = 0
    again: int = 0  # retransmitted segments between tickscope's host and the server, unless it had most of them already

    @property
    def who(self) -> str:
        return process(*self.server) if self.server else "the server"

    @property
    def blind(self) -> bool:
        return self.blind_ns > 0.5 * self.took_ns

    @property
    def starving(self) -> bool:
        return self.blind or self.starved_ns > 0.5 * self.took_ns

    @property
    def slow_trips(self) -> float:
        """How certainly round trips explain it. Those after the first count without what may be a delayed
        acknowledgement, which a server that is slow also has; and not if segments were lost, since a loss makes a round
        trip long. It makes only some long, so the network was not slow if most of the shortest ones stayed short.
        """
        usual, worst = self.usual, self.worst
        if usual is None or worst is None or worst <= 2 * usual:
            return 0.0
        if self.resent_syns if self.single is None else self.single < ENOUGH * worst:
            return 0.0
        more, needed = max(worst, self.trip or 0.0) - usual, SHARE * self.longest_ns / 1e3
        if more >= needed:
            return 0.85
        others = 0.0 if self.again else (self.trips - 1) * max(0.0, more - _DELAYED_ACK_US)
        return 0.75 if more + others >= needed else 0.0

    @property
    def slower(self) -> bool:
        """Whether the network explains it."""
        return self.slow_trips > 0


def polled(episode: Episode, view: View) -> Polled:
    return view.once(_polled, episode)


def _polled(episode: Episode, view: View) -> Polled:
    raw = episode.key[1]
    assert isinstance(raw, bytes)
    where, netns = peer(raw), view.netns(episode, raw)
    asked = _asked(episode, view, raw, netns)
    usual, _, worst = rtt_us(view, asked, netns, episode) if where else (None, None, None)
    server = view.server(raw, netns, episode)
    starved = min(view.starved_ns(server[1], episode), episode.value) if server else 0.0
    rows = in_netns(view.during("tcp_retransmit", episode), netns)
    rows = rows[rows["peer"] == np.frombuffer(asked, "V18")[0]]
    again = int(np.maximum(rows["count"], 1).sum())
    if had_already(episode, view, asked, netns, rows):
        again, rows = 0, rows[:0]
    longest_ns = _longest_ns(episode, view, raw)
    single, trip, trips = _round_trips(episode, view, asked, netns)
    seen = item(
        "queue_lag",
        "time without an answer",
        episode.value,
        "ns",
        column="poll_ns",
        baseline=episode.base,
        reason=episode.words,
        t_ns=episode.start_ns,
        end_ns=episode.end_ns,
        keys={"peer": where},
    )
    return Polled(
        where,
        peer(asked),
        place(where, raw, netns),
        server,
        max(view.blind_ns(episode), _preempted_ns(episode, view)),
        starved,
        usual,
        worst,
        episode.value,
        longest_ns,
        seen,
        item("tcp_rtt", "smoothed RTT", worst, "us", column="srtt_us", baseline=usual, keys={"peer": peer(asked)}),
        single,
        trip,
        max(_TRIPS, trips * longest_ns / max(episode.end_ns - episode.start_ns, 1)),
        int(((rows["kind"] == _SYN) & (rows["comm"] == POLLER)).sum()),
        again,
    )


def _round_trips(
    episode: Episode, view: View, asked: bytes, netns: int | None
) -> tuple[float | None, float | None, int]:
    """(median of the shortest single round trips of its clients, of each second within the episode, us; the same with
    its first seconds; None if too few are known; number of the poller's round trips).
    """
    rows = to_peer(view.rings["tcp_rtt"].between(episode.start_ns, episode.end_ns + SECOND), asked)
    rows = in_netns(rows, netns)
    rows = rows[rows["role"] != _SERVER]
    # the shortest of a second may be of the one before it (agent/probes/tcp.py)
    inside = (rows["t_ns"] >= episode.start_ns + 3 * SECOND) & (rows["t_ns"] <= episode.end_ns)
    measured = known(rows["raw_min_us"])
    single, all_of_it = (
        float(np.median(some)) if len(some) >= _SINGLE else None
        for some in (rows["raw_min_us"][inside & measured], rows["raw_min_us"][measured])
    )
    return single, all_of_it, int(rows["samples"][rows["comm"] == POLLER].sum())


def _asked(episode: Episode, view: View, raw: bytes, netns: int | None) -> bytes:
    """The port of that address to which pollers talk most, unless they talk to this one."""
    rows = in_netns(view.rings["tcp_rtt"].between(episode.start_ns - _REACH_NS, episode.end_ns + SECOND), netns)
    rows = rows[(rows["comm"] == POLLER) & (addresses(rows) == np.frombuffer(raw, np.uint8)[:16]).all(axis=1)]
    ends, times = np.unique(rows["peer"], return_counts=True)
    return raw if raw in ends.tolist() or not len(ends) else bytes(ends[int(np.argmax(times))].tobytes())


def _longest_ns(episode: Episode, view: View, raw: bytes) -> float:
    """The longest of the polls that make the episode: each of them gives up after a while."""
    polls = view.polls([raw], episode.start_ns - LEAD_NS, episode.end_ns + LEAD_NS)
    longest = float(polls["poll_ns"].max(initial=0))
    return min(longest, episode.value) if longest > 0 else episode.value


def _preempted_ns(episode: Episode, view: View) -> float:
    """How long tickscope's poller process waited for a CPU."""
    waits = view.rings["cpu_wait"]
    rows = waits.between(episode.start_ns, episode.end_ns + 2 * SECOND)
    pids = np.unique(rows["pid"][rows["comm"] == POLLER])
    return max((preempted_ns(waits, int(pid), episode) for pid in pids), default=0.0)


@dataclass(frozen=True)
class BrokerOutage:
    """An outage of a queue's server: it did not answer, or was unreachable (down); the total time, and the error of its
    polls.
    """

    down: bool
    gone_ns: float
    why: str
    scope: str
    culprit: Culprit
    seen: Evidence


def away(episode: Episode, view: View) -> BrokerOutage | None:
    """The outage of the queue's server during a part of the time that its messages wait, or shortly before; None if
    there was none.
    """
    return view.once(_away, episode)


def _away(episode: Episode, view: View) -> BrokerOutage | None:
    raw = episode.key[-1]
    assert isinstance(raw, bytes)
    where = peer(raw)
    polls = view.polls([raw], episode.start_ns - _REACH_NS, episode.end_ns)
    polls = polls[~failed_by_itself(polls)]
    polls = polls[np.unique(polls["t_ns"], return_index=True)[1]]
    before = polls[polls["t_ns"] < episode.start_ns - _SHORTLY_NS]
    usual = before["poll_ns"][known(before["poll_ns"]) & (before["status"] != b"down")]
    polls = polls[len(before) :]
    down = polls["status"] == b"down"
    long_ns = max(view.config.poll_stall_ns, _LONGER * float(np.median(usual)) if len(usual) else 0.0)
    at = np.flatnonzero(down | (polls["poll_ns"] >= long_ns))
    if not len(at):
        return None
    bad = polls[at]
    failed = down & (polls["failure"] != _NO_ANSWER)
    runs = np.split(bad, np.flatnonzero(np.diff(at) > 1) + 1)  # between them it answered as usual
    gone = float(sum(run["t_ns"][-1] - run["t_ns"][0] + max(0, int(run["poll_ns"][0])) for run in runs))
    if gone < 0.3 * (episode.end_ns - episode.start_ns):
        return None
    server = view.server(raw, view.home, episode)
    seen = item(
        "queue_lag",
        "time without an answer",
        gone,
        "ns",
        column="poll_ns",
        t_ns=int(bad["t_ns"][0]),
        end_ns=int(bad["t_ns"][-1]),
        keys={"peer": where},
    )
    why = failure(polls[failed]["reason"][-1], where) if failed.any() else ""
    culprit = Culprit(server[1], server[0], where) if server else Culprit(object=where)
    return BrokerOutage(bool(failed.any()), gone, why, place(where, raw, view.home), culprit, seen)
