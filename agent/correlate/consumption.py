"""How a consumer group consumed its queue. Shared by several causes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from agent.correlate.catalogue import Rule
from agent.correlate.clients import READS as CLIENTS
from agent.correlate.clients import Client, silent_before, talking
from agent.correlate.episode import UNKNOWN_CULPRIT, UNTAKEN, Culprit, Episode, Evidence, Verdict, item
from agent.correlate.queues import DELIVERED
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View
from agent.correlate.waits import CPUS
from agent.correlate.words import Words, render, text, value

FACTS = ("consumers", "in", "out", "taken", "since_s", "crept")
READS = {
    **CLIENTS,
    **CPUS,
    "queue_lag": (
        *("system", "cluster", "destination", "partition", "consumer_group", "peer"),
        *("idle_consumer", "idle_s", "status", "reason"),
    ),
}
_STARVING = 0.3  # share of the time from which a wait for a CPU counts
_NOTHING = 0.03  # of the usual rate: messages in progress when all consumers stopped
_RATED_NS = 5 * SECOND
_STOPPED = 0.6  # a consumer without requests for this share of the time has stopped


@dataclass(frozen=True)
class Consumption:
    """Rates in messages a second, before and during the episode; None if unknown. clients: of the server, those that
    talk to it far less than before first; name: of the consumer concerned, if the server gives it.
    """

    count: float | None
    before: float | None
    out: float | None
    out_was: float | None
    arriving: float | None
    arriving_was: float | None
    delivered: bool
    clients: tuple[Client, ...]
    name: str
    #: the longest time without a request of one consumer, as a share of the time; None if the server does not report it
    idle_share: float | None
    crept: bool  # some messages are still acknowledged: the consumer is slow, not stopped
    starved: tuple[Client, float] | None  # the client with the longest wait for a CPU, ns; None if no wait was long
    keys: Mapping[str, Any]  # of the queue, in ``queue_lag``

    @property
    def silent(self) -> tuple[Client, ...]:
        """Clients that stopped talking to the server then."""
        return tuple(client for client in self.clients if client.silent)

    @property
    def slower(self) -> bool:
        """Whether less is acknowledged than usual, as far as that is known."""
        return not self.grown and (self.idle or self.out is None or self.out < 0.9 * (self.out_was or 0))

    @property
    def gone(self) -> bool:
        return self.count == 0

    @property
    def held(self) -> bool:
        """It is about one consumer; the others continue."""
        return self.delivered and self.out is not None and self.out > 0 and self.out >= 0.5 * (self.out_was or 0)

    @property
    def idle(self) -> bool:
        """Nothing is acknowledged, except messages in progress."""
        return (
            not self.crept
            and self.out is not None
            and self.out <= _NOTHING * (self.out_was or 0)
            and ((self.out_was or 0) > 0 or (self.arriving or 0) > 0)
        )

    @property
    def grown(self) -> bool:
        """Far more arrives than usual, and the consumers are no slower, nor is it about one that requests nothing."""
        out, was = self.arriving, self.arriving_was
        return (
            out is not None
            and was is not None
            and out >= 1.5 * was
            and out - was >= 1
            and self.out is not None
            and self.out >= 0.8 * (self.out_was or 0)
            and not (self.held and (self.idle_share or 0.0) >= _STOPPED)
        )

    @property
    def lone(self) -> Client | None:
        """The one client that stopped while others of the group continue; None if there is none, or there may be
        several.
        """
        named = [client for client in self.silent if self.name and _same(self.name, client)]
        one = named if len(named) == 1 else self.silent
        return one[0] if len(one) == 1 and (self.count is None or self.count > 1) else None

    @property
    def one_less(self) -> bool:
        """The rate of acknowledgements fell by no more than the share of one consumer."""
        share = 0.0 if self.count is None else 1 - 1 / max(self.count, 1)
        return (
            (1.0 if self.idle_share is None else self.idle_share) >= _STOPPED
            and self.out is not None
            and 0.8 * share * (self.out_was or 0) <= self.out < 0.9 * (self.out_was or 0)
        )

    @property
    def culprit(self) -> Culprit:
        """The consumer by its name and the process by its silence, as far as known."""
        lone = self.lone
        if lone is None:
            return Culprit(object=self.name) if self.name else UNKNOWN_CULPRIT
        return Culprit(lone.pid, lone.comm, self.name)

    @property
    def who(self) -> Words:
        """The consumer, for the middle of a sentence; empty if unknown."""
        lone = self.lone
        if self.name and lone is not None:
            return render("consumer {name} ({who})", name=self.name, who=lone.who)
        return render("consumer {name}", name=self.name) if self.name else lone.who if lone is not None else ""

    @property
    def sure(self) -> float:
        """Factor for scores: lower if the consumers wait for a CPU."""
        return 1.0 if self.starved is None else 0.6

    @property
    def usual(self) -> Words:
        return "" if self.out_was is None else render(" (usually {rate})", rate=value(self.out_was))

    @property
    def members(self) -> Evidence:
        return item("queue_lag", "consumers", self.count, "", column="consumers", baseline=self.before, keys=self.keys)

    @property
    def rates(self) -> tuple[Evidence, ...]:
        """The rates of acknowledgements and arrivals, and the silent clients."""
        return (
            item(
                "queue_lag", "acknowledged", self.out, "1/s", column="out_per_s", baseline=self.out_was, keys=self.keys
            ),
            item(
                "queue_lag",
                "arriving",
                self.arriving,
                "1/s",
                column="in_per_s",
                baseline=self.arriving_was,
                keys=self.keys,
            ),
            *(
                item(
                    "tcp_rtt",
                    "segments to the server",
                    round(client.usual * client.share, 2),
                    "1/s",
                    column="samples",
                    baseline=client.usual,
                    comm=client.comm,
                    keys={"pid": client.pid},
                )
                for client in self.silent[:3]
            ),
        )


def consumption(episode: Episode, view: View) -> Consumption:
    return view.once(_consumption, episode)


def _consumption(episode: Episode, view: View) -> Consumption:
    known, server = episode.facts.get, episode.key[-1]
    assert isinstance(server, bytes)
    of = silent_before if episode.metric == UNTAKEN else talking
    clients = of(view, server, episode.start_ns, episode.end_ns)
    waits = [(view.starved_ns(client.pid, episode), client) for client in clients]
    worst = max(waits, key=lambda wait: (wait[0], -wait[1].pid), default=None)
    starving = worst is not None and worst[0] >= _STARVING * (episode.end_ns - episode.start_ns)
    return Consumption(
        known("consumers"),
        known("consumers_base"),
        known("taken", known("out")),
        known("out_base"),
        known("in"),
        known("in_base"),
        episode.metric in DELIVERED,
        tuple(clients),
        episode.words,
        _idle_share(episode, view),
        bool(known("crept", 0.0)),
        (worst[1], worst[0]) if worst is not None and starving else None,
        episode.keys,
    )


def of_removed(cause: str, rule: Rule, statuses: tuple[bytes, ...]) -> Rule:
    """The rule of a cause for messages that were removed unread. Rates of so short a time as one poll are noise: what
    counts is then whether the queue had one of these statuses.
    """

    def removed(episode: Episode, view: View) -> Iterator[Verdict]:
        if episode.metric != "removed":
            return
        if episode.end_ns - episode.start_ns >= _RATED_NS:
            yield from rule(episode, view)
        elif len(polls := polls_of(episode, view)) and polls["status"][-1] in statuses:
            why = text(polls["reason"][-1]).partition(";")[0].partition(",")[0]
            yield Verdict(cause, 0.8, episode.scope, render("{why}", why=why), (consumption(episode, view).members,))

    return removed


def polls_of(episode: Episode, view: View, before_ns: int = 0) -> np.ndarray:
    """Rows of ``queue_lag`` of the episode's queue, from ``before_ns`` before it.

    A consumer that reports messages need not name system, partition and cluster, and may have a name of its own for the
    cluster. Its queue is then the only one with the other names; if there are several, there are no rows.
    """
    system, destination, partition, group, _ = (str(part).encode() for part in episode.key)
    reported = episode.facts.get("produced") == 0  # by a consumer (agent/correlate/message_order.py)
    its = {"destination": destination, "consumer_group": group}
    its |= {name: it for name, it in (("system", system), ("partition", partition)) if it or not reported}

    def which(polls: np.ndarray) -> np.ndarray:
        return np.asarray(np.logical_and.reduce([polls[name] == it for name, it in its.items()]))

    polls = view.rings["queue_lag"].between(episode.start_ns - before_ns, episode.end_ns, which)
    cluster = str(episode.keys.get("cluster") or "").encode()
    own = polls[polls["cluster"] == cluster]
    if (cluster and len(own)) or not reported:
        return np.asarray(own)
    return np.asarray(polls if len(np.unique(polls[["system", "cluster"]])) == 1 else own)


def _idle_share(episode: Episode, view: View) -> float | None:
    """The longest time without a request, as a share of the episode. Slow consumers have such times, too, but a stopped
    one has nothing else.
    """
    server, polls = episode.key[-1], polls_of(episode, view)
    longest = float(np.nan_to_num(polls["idle_s"][[row.tobytes() == server for row in polls["peer"]]]).max(initial=0))
    lasted = (episode.end_ns - episode.start_ns) / SECOND
    return min(1.0, longest / lasted) if longest > 0 and lasted > 0 else None


def _same(name: str, client: Client) -> bool:
    """Whether a consumer's name matches a process: many are named after their program, or their pid."""
    plain = "".join(c for c in name.lower() if c.isalnum())
    comm = "".join(c for c in client.comm.lower() if c.isalnum())
    return bool(plain) and ((comm != "" and (plain in comm or comm in plain)) or str(client.pid) in name)
