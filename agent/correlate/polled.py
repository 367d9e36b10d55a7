"""What the agent's poller saw of a broker that took long to answer, as far as several causes go by it."""

from __future__ import annotations

from dataclasses import dataclass

from agent.correlate.episode import Episode, item
from agent.correlate.view import View, place
from agent.correlate.waits import CPUS, NETWORK, SHARE
from agent.correlate.words import peer

READS = {**NETWORK, **CPUS}


@dataclass(frozen=True)
class Polled:
    """blind_ns: how long tickscope itself did not run; starved_ns: how long the server waited for a CPU. usual, worst: smoothed RTT, us."""

    where: str
    scope: str
    server: tuple[str, int] | None
    blind_ns: float
    starved_ns: float
    usual: float | None
    worst: float | None
    took_ns: float
    seen: dict[str, object]
    rtt: dict[str, object]

    @property
    def who(self) -> str:
        return f"{self.server[0]} (pid {self.server[1]})" if self.server else "the server"

    @property
    def blind(self) -> bool:
        return self.blind_ns > 0.5 * self.took_ns

    @property
    def starving(self) -> bool:
        return self.blind or self.starved_ns > 0.5 * self.took_ns

    @property
    def slower(self) -> bool:
        """Whether the network explains it."""
        usual, worst = self.usual, self.worst
        return usual is not None and worst is not None and worst > 2 * usual and (worst - usual) * 1e3 >= SHARE * self.took_ns


def polled(episode: Episode, view: View) -> Polled:
    return view.once(_polled, episode)


def _polled(episode: Episode, view: View) -> Polled:
    raw = episode.key[1]
    assert isinstance(raw, bytes)
    where, netns = peer(raw), view.netns(episode, raw)
    usual, worst = view.rtt_us(raw, netns, episode) if where else (None, None)
    server = view.server(raw, netns, episode)
    starved = min(view.starved_ns(server[1], episode), episode.value) if server else 0.0
    seen = item("queue_lag", "time without an answer", episode.value, "ns", column="poll_ns", baseline=episode.base, peer=where, reason=episode.words,
                t_ns=episode.start_ns)
    return Polled(where, place(where, raw, netns), server, view.blind_ns(episode), starved, usual, worst, episode.value, seen,
                  item("tcp_rtt", "smoothed RTT", worst, "us", column="srtt_us", peer=where, baseline=usual))
