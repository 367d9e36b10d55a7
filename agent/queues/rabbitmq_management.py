"""What only the management API of RabbitMQ has: types and arguments of queues, the port of AMQP. Asked less often than
the metrics; while it fails, the metrics go on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from agent.common.http_get import HttpClient, HttpDown

INTERVAL_NS = 5_000_000_000
#: After a failure: the API is slower than the metrics, and refused logins are logged.
RETRY_NS = 10_000_000_000
_QUEUES = "/api/queues?columns=vhost,name,type,arguments,effective_policy_definition"

Name = tuple[bytes, bytes]  #: virtual host, queue


class AboutQueue(NamedTuple):
    """stream: whether it is one. delays: whether its messages leave it by a time-out, for another queue."""

    stream: bool
    delays: bool


class Management:
    """The API of one node. ``problem``: why it is not known what it has; empty if it answers. find_port: whether to ask
    for the port of AMQP.
    """

    def __init__(self, client: HttpClient, find_port: bool) -> None:
        self._client, self._find_port = client, find_port
        self._next_ns = 0
        self.queues: dict[Name, AboutQueue] = {}
        self.amqp_port: int | None = None
        self.problem = ""

    def ask(self, now_ns: int, deadline_s: float, login: tuple[str, str] | None) -> None:
        """Asks again if it is time. now_ns: CLOCK_BOOTTIME; deadline_s: time.monotonic. Raises nothing."""
        if now_ns < self._next_ns:
            return
        self._next_ns = now_ns + INTERVAL_NS
        try:
            if self._find_port and self.amqp_port is None:
                self.amqp_port = amqp_port(json.loads(self._client.get("/api/overview", deadline_s, login=login)))
            self.queues = about_queues(json.loads(self._client.get(_QUEUES, deadline_s, login=login)))
            self.problem = ""
        except HttpDown as error:
            self.problem = str(error)
        except (TypeError, ValueError, RecursionError):
            self._client.close()
            self.problem = "its answer is no such JSON"
        if self.problem:
            self._next_ns = now_ns + RETRY_NS

    def unseen(self, names: Iterable[Name]) -> str:
        """What is wrong if it answers without queues that exist; else empty."""
        theirs = {vhost for vhost, _ in self.queues}
        hidden = sorted({vhost for vhost, _ in names} - theirs)
        return f"its user has no permission for virtual host {hidden[0].decode(errors='replace')}" if hidden else ""

    def close(self) -> None:
        self._client.close()


def amqp_port(overview: Any) -> int | None:
    """The port of AMQP, or else of AMQP with TLS; None if there is neither, or the user may not see listeners. Raises
    TypeError for another document.
    """
    listeners = overview.get("listeners", []) if isinstance(overview, dict) else None
    if not isinstance(listeners, list):
        raise TypeError("no listeners")
    ports = {
        one.get("protocol"): one.get("port")
        for one in reversed(listeners)
        if isinstance(one, dict) and isinstance(one.get("protocol"), str)
    }
    return next(
        (port for name in ("amqp", "amqp/ssl") if isinstance(port := ports.get(name), int) and 0 < port < 65536), None
    )


def about_queues(given: Any) -> dict[Name, AboutQueue]:
    """Raises TypeError for another document."""
    if not isinstance(given, list):
        raise TypeError("no list of queues")
    found = {}
    for one in given:
        if not isinstance(one, dict) or not all(isinstance(one.get(key), str) for key in ("vhost", "name")):
            raise TypeError("no queue")
        arguments, policy = (_mapping(one.get(key)) for key in ("arguments", "effective_policy_definition"))
        ttl = _number(arguments.get("x-message-ttl")) or _number(policy.get("message-ttl"))
        target = arguments.get("x-dead-letter-exchange", policy.get("dead-letter-exchange"))
        name = tuple(one[key].encode(errors="replace") for key in ("vhost", "name"))
        found[name[0], name[1]] = AboutQueue(
            one.get("type") == "stream",
            ttl is not None and isinstance(target, str),
        )
    return found


def _mapping(given: Any) -> dict[Any, Any]:
    return given if isinstance(given, dict) else {}


def _number(given: Any) -> int | None:
    return given if isinstance(given, int) and not isinstance(given, bool) and 0 < given < 1 << 53 else None
