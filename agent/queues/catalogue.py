"""The brokers that can be polled. Each kind is one file in ``brokers/``; no other registration is needed.

The file defines ``BROKER``, with the name of the file. Its setting, the flag of ``run``, the environment variable,
``doctor`` and the documents follow from it. These files are loaded whenever settings are read, so a client that takes
much memory is imported when a server is polled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from agent.common.declared import declared, files
from agent.common.settings import TOP, Place, any_of, json_schema, one_or_list, read, value
from agent.queues.judged import Judged
from agent.queues.queue import Queue


@dataclass(frozen=True)
class Broker:
    """A kind of broker.

    name: of its setting, a list of servers, and of ``queue_lag.system``, unless ``system_of`` gives that by the server.
    title: for display. watched: what is reported. form: an example of a server; note: a remark on it. parse: such a
    text -> a server; raises AgentError without any password in its text.

    open: a server -> what is polled. section: the dataclass of a server that may also be written as `key: value` lines
    (agent/common/settings.py); ``open`` then accepts it, too.
    """

    name: str
    title: str
    watched: str
    form: str
    note: str
    parse: Callable[[str], Any]
    open: Callable[[Any], Queue]
    section: type | None = None
    system_of: Callable[[Any], str] | None = None

    @property
    def variable(self) -> str:
        """The environment variable: servers, separated by spaces."""
        return f"TICKSCOPE_{self.name.upper()}_URL"

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    def server(self, given: Any, place: Place = TOP) -> Any:
        """The argument for ``open``. Raises AgentError, without the value: a URL in it may hold a password."""
        if self.section is not None and isinstance(given, Mapping):
            return read(self.section, given, place)
        if not isinstance(given, str):
            raise place.error(f"{self.name} must be a list of texts" + (" or sections" if self.section else ""))
        return value(self.parse, self.form).read(given, place)

    def checked(self, given: Any, place: Place) -> tuple[Any, ...]:
        """The servers of the setting, unchanged. Raises AgentError."""
        servers = given if isinstance(given, (list, tuple)) else (given,)
        for number, server in enumerate(servers):
            here = place.below(number)
            with here.continuing():
                self.server(server, here)
        return tuple(servers)

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the setting."""
        text = {"type": "string"}
        one = any_of(text, json_schema(self.section)) if self.section is not None else text
        return one_or_list(one)

    def sources(self, servers: Iterable[Any]) -> list[Judged]:
        """What is polled, one per server. Raises AgentError."""
        read_ones = [self.server(server) for server in servers]
        names = [(self._system(one), getattr(one, "cluster", "")) for one in read_ones]
        return [
            Judged(name[0], self.open(one), named=name[1], shared=names.count(name) > 1)
            for name, one in zip(names, read_ones, strict=True)
        ]

    def systems(self, servers: Iterable[Any]) -> frozenset[str]:
        """``queue_lag.system`` of the rows of these servers. Raises AgentError."""
        if self.system_of is None:
            return frozenset({self.name})
        return frozenset(self._system(self.server(server)) for server in servers)

    def _system(self, server: Any) -> str:
        return self.name if self.system_of is None else self.system_of(server)


def names() -> list[str]:
    """Names of all kinds. Loads none of them."""
    from agent.queues import brokers as package

    return files(package)


@cache
def broker(name: str) -> Broker:
    """The kind of this name; loads no other. Raises ModuleNotFoundError, and AgentError for a wrong
    declaration.
    """
    (found,) = declared("agent.queues.brokers", name, "BROKER", Broker, named=True)
    return found


def brokers() -> dict[str, Broker]:
    """All kinds by name."""
    return {name: broker(name) for name in names()}
