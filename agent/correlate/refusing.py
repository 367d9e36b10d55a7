"""What brokers reported about themselves while decisions failed, or they refused service: errors, limits, their role,
failed polls.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from agent.correlate.brokers import failed_by_itself, failure
from agent.correlate.episode import Culprit, Episode, Evidence, item
from agent.correlate.local import is_loopback
from agent.correlate.rows import known
from agent.correlate.thresholds import SECOND
from agent.correlate.view import SERVERS, View, place
from agent.correlate.words import peer, process, text

#: Columns that ``refusing`` reads.
READS = {
    **SERVERS,
    "queue_lag": (
        *("system", "status", "failure", "reason", "peer", "server_role", "errors", "errors_per_s"),
        *("memory_bytes", "memory_limit_bytes", "clients", "clients_limit", "clients_refused"),
    ),
}
_NEAR_NS = 1_500_000_000  # polls are a second apart
_BEFORE_NS = 60 * SECOND


@dataclass(frozen=True)
class Refusing:
    """One broker. errors: its error replies to others, by kind; down: errors of failed polls meanwhile; turned_away:
    connections beyond its limit; roles: before, and meanwhile. own: whether it is the episode's subject.
    """

    where: str
    scope: str
    who: str
    culprit: Culprit
    own: bool
    errors: Counter[str]
    down: tuple[str, ...]
    turned_away: int
    roles: tuple[str, str]
    memory: float | None
    memory_limit: float | None
    clients: float | None
    clients_limit: float | None

    @property
    def full(self) -> bool:
        return self.turned_away > 0 or any("max number of clients" in why for why in self.down)

    def replies(self, *kinds: str) -> Evidence:
        """Evidence: the number of error replies of these kinds, or of polls that found such an alarm."""
        n = sum(self.errors[kind] for kind in kinds)
        return item(
            "queue_lag",
            f"{' and '.join(kinds)} replies",
            n,
            "",
            column="errors",
            role=self.roles[1],
            keys={"peer": self.where},
        )


def refusing(episode: Episode, view: View) -> list[Refusing]:
    """The polled brokers that the episode is about, or that its process talks to."""
    return view.once(_refusing, episode)


def _refusing(episode: Episode, view: View) -> list[Refusing]:
    mine = episode.key[1]
    own = isinstance(mine, bytes)
    here = not isinstance(episode.key[0], int) or view.home in (None, episode.key[0])
    if isinstance(mine, bytes) and is_loopback(mine) and not here:
        return []  # the loopback of another namespace: not the broker that is polled
    servers = [mine] if isinstance(mine, bytes) else view.peers(episode)
    polls = view.polls(servers, episode.start_ns - _BEFORE_NS, episode.end_ns + _NEAR_NS)
    found = []
    for raw in servers:
        rows = polls[polls["peer"] == np.frombuffer(raw, "V18")[0]]
        if len(rows):
            found.append(_one(episode, view, raw, own, rows))
    return found


def _one(episode: Episode, view: View, raw: bytes, own: bool, rows: np.ndarray) -> Refusing:
    name, netns = peer(raw), view.home if own else view.netns(episode, raw)
    server = view.server(raw, netns, episode)
    now = rows[rows["t_ns"] >= episode.start_ns - (0 if own else _NEAR_NS)]
    before = rows[rows["t_ns"] < episode.start_ns]
    _, first = np.unique(now["t_ns"], return_index=True)  # all rows of a poll have the same values of the server
    errors: Counter[str] = Counter()
    for error in now["errors"][first]:
        for part in text(error).split(", "):
            kind, _, n = part.partition(" ")
            errors[kind] += int(n) if n.isdigit() else 0
    totals = rows["clients_refused"][known(rows["clients_refused"])].astype(np.int64)
    late = int(np.count_nonzero(known(now["clients_refused"])))
    turned = int(np.diff(totals[-late - 1 :]).clip(0).sum()) if late else 0
    down = now[(now["status"] == b"down") & (now["reason"] != b"") & ~failed_by_itself(now)]
    return Refusing(
        name,
        place(name, raw, netns),
        f"{process(*server)} at {name}" if server else f"the server at {name}",
        Culprit(server[1], server[0], name) if server else Culprit(object=name),
        own,
        errors,
        tuple(dict.fromkeys(failure(why, name) for why in down["reason"])),
        turned,
        (
            _last(before["server_role"]),
            _last(now["server_role"][now["server_role"] != b"primary"]) or _last(now["server_role"]),
        ),
        *(_number(now[c]) for c in ("memory_bytes", "memory_limit_bytes", "clients", "clients_limit")),
    )


def _last(names: np.ndarray) -> str:
    some = names[names != b""]
    return text(some[-1]) if len(some) else ""


def _number(values: np.ndarray) -> float | None:
    some = values[known(values)]
    return float(some[-1]) if len(some) else None
