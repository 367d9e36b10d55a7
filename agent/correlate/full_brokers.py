"""Brokers that reached a limit: of memory, of free disk space, of clients, or that cannot write to their disk."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.episode import Episode, Evidence, Verdict, item
from agent.correlate.refusing import Refusing, refusing
from agent.correlate.view import View
from agent.correlate.words import render, value

NAME = "resource_limit"


def of_brokers(episode: Episode, view: View) -> Iterator[Verdict]:
    for broker in refusing(episode, view):
        if broker.errors["OOM"]:
            words = render(
                "{who} refused {n} commands (memory full: {used} of {limit} bytes)",
                who=broker.who,
                n=value(broker.errors["OOM"]),
                used=value(broker.memory),
                limit=value(broker.memory_limit),
            )
            evidence = broker.replies("OOM"), _memory(broker)
            yield Verdict(NAME, 0.96, broker.scope, words, evidence, "memory", broker.culprit)
        elif broker.errors["MEMORY_ALARM"]:
            words = render(
                "{who} has a memory alarm ({used} of {limit} bytes)",
                who=broker.who,
                used=value(broker.memory),
                limit=value(broker.memory_limit),
            )
            evidence = broker.replies("MEMORY_ALARM"), _memory(broker)
            yield Verdict(NAME, 0.96, broker.scope, words, evidence, "memory", broker.culprit)
        elif broker.errors["DISK_ALARM"]:
            words = render("{who} has a disk alarm: less space is free than its limit", who=broker.who)
            yield Verdict(NAME, 0.96, broker.scope, words, (broker.replies("DISK_ALARM"),), "disk_full", broker.culprit)
        elif broker.errors["MISCONF"]:
            words = render(
                "{who} refused {n} commands (it cannot write its data to disk)",
                who=broker.who,
                n=value(broker.errors["MISCONF"]),
            )
            yield Verdict(NAME, 0.85, broker.scope, words, (broker.replies("MISCONF"),), "disk_full", broker.culprit)
        elif broker.full:
            words = render("{who} takes no more clients", who=broker.who)
            seen = item(
                "queue_lag",
                "connections refused",
                broker.turned_away or None,
                "",
                column="clients_refused",
                clients=broker.clients,
                limit=broker.clients_limit,
                reason=", ".join(broker.down),
                keys={"peer": broker.where},
            )
            yield Verdict(NAME, 0.97, broker.scope, words, (seen,), "clients", broker.culprit)


def _memory(broker: Refusing) -> Evidence:
    return item(
        "queue_lag",
        "memory used",
        broker.memory,
        "bytes",
        column="memory_bytes",
        limit=broker.memory_limit,
        keys={"peer": broker.where},
    )
