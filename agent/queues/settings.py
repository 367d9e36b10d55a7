"""Which brokers are polled, and how often. Each kind of broker is a key (agent/queues/catalogue.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent.common.settings import Place, Setting, ValueType, number, setting
from agent.queues.catalogue import broker, brokers, names


def _servers(given: Mapping[str, Any], place: Place) -> dict[str, tuple[Any, ...]]:
    found = dict[str, tuple[Any, ...]]()
    for name, servers in given.items():
        here = place.below(name)
        with here.continuing():
            found[name] = broker(name).checked(servers, here)
    return {name: servers for name, servers in found.items() if servers}


def _with_environment(given: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    named = {name: env.get(one.variable, "").split() for name, one in brokers().items()}
    return {**given, **{name: servers for name, servers in named.items() if servers}}


def _kinds() -> Iterator[Setting]:
    for name, one in brokers().items():
        kind = ValueType(one.checked, "a list of servers", schema=one.schema)
        yield Setting(name, name, (), kind, f"{one.form} ({one.note})", one.variable, flag=True)


@dataclass(frozen=True)
class QueueSettings:
    """brokers: servers by kind of broker."""

    brokers: Mapping[str, tuple[Any, ...]] = setting(
        {},
        ValueType(
            _servers,
            "lists of servers",
            lambda data: {name: tuple(servers) for name, servers in data.items()},
            keys=names,
            environment=_with_environment,
            settings=_kinds,
        ),
    )
    poll_s: float = setting(1.0, number(0.1, 3600), "interval between two polls of queues")
