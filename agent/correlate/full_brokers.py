"""Brokers that reached a limit: of memory, of clients, or that cannot write to their disk."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.refusing import refusing
from agent.correlate.view import View
from agent.correlate.words import render, value

NAME = "resource_limit"


def of_brokers(episode: Episode, view: View) -> Iterator[Verdict]:
    for b in refusing(episode, view):
        if b.errors["OOM"]:
            words = render(
                "{who} refused {n} commands (memory full: {used} of {limit} bytes)",
                who=b.who,
                n=value(b.errors["OOM"]),
                used=value(b.memory),
                limit=value(b.memory_limit),
            )
            used = item(
                "queue_lag",
                "memory used",
                b.memory,
                "bytes",
                column="memory_bytes",
                limit=b.memory_limit,
                keys={"peer": b.where},
            )
            yield Verdict(NAME, 0.96, b.scope, words, (b.replies("OOM"), used), "memory", b.culprit)
        elif b.errors["MISCONF"]:
            words = render(
                "{who} refused {n} commands (it cannot write its data to disk)",
                who=b.who,
                n=value(b.errors["MISCONF"]),
            )
            yield Verdict(NAME, 0.85, b.scope, words, (b.replies("MISCONF"),), "disk_full", b.culprit)
        elif b.full:
            words = render("{who} takes no more clients", who=b.who)
            seen = item(
                "queue_lag",
                "connections refused",
                b.turned_away or None,
                "",
                column="clients_refused",
                clients=b.clients,
                limit=b.clients_limit,
                reason=", ".join(b.down),
                keys={"peer": b.where},
            )
            yield Verdict(NAME, 0.97, b.scope, words, (seen,), "clients", b.culprit)
