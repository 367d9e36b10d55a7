"""What only the management API of RabbitMQ has: types and arguments of queues, their consumers, connections that are
blocked, the port of AMQP. Asked less often than the metrics; while it fails, the metrics go on.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from agent.common.address import with_port
from agent.common.http_get import HttpClient, HttpDown
from agent.common.printable import printable

#: Of requests, for queues and for consumers in turns, so that one slow answer does not cost the other.
INTERVAL_NS = 2_500_000_000
#: After a failure: the API is slower than the metrics, and refused logins are logged.
RETRY_NS = 10_000_000_000
_QUEUES = "/api/queues?columns=vhost,name,type,arguments,effective_policy_definition"
_CONSUMERS = "/api/consumers?columns=queue,prefetch_count,ack_required,activity_status,channel_details"
_CHANNELS = "/api/channels?columns=name,global_prefetch_count"
_CONNECTIONS = "/api/connections?columns=state,channels"
_MAX_VHOSTS = 1024  # that are remembered
_MAX_ADDRESSES, _MAX_CHANNELS = 64, 1024  # of a queue's consumers
_MAX_SETS = 1024  # different sets of channels that are compared
_UNTAGGED, _TAG = "Not management user", "rabbitmqctl set_user_tags USER monitoring"

Name = tuple[bytes, bytes]  #: virtual host, queue


class AboutQueue(NamedTuple):
    """type: classic, quorum or stream. ttl_ms: how long messages stay in it at most. delays: whether they leave it by
    that time-out, for another queue. expires_ms: after so long without a use it is deleted. None: no such limit.
    rejects: whether it refuses messages when it is full. priorities: whether it delivers some messages before older
    ones.
    """

    type: str
    delays: bool
    ttl_ms: int | None = None
    expires_ms: int | None = None
    rejects: bool = False
    priorities: bool = False


@dataclass
class QueueConsumers:
    """Of one queue. addresses: the consumers' ``ip:port`` as the node sees them, at most 64. limit: how many messages
    they may have unacknowledged; None: without a limit, or not known. channels: theirs, one object for all queues with
    the same; empty: none, or more than 1,024 channels or sets of them. shared: whether all limits are those of
    channels, and thus also of other queues. within: channels of the queues that no other channel consumes, each once,
    if shared and there is a limit.
    """

    addresses: list[str] = field(default_factory=list)
    limit: int | None = 0
    channels: frozenset[object] = frozenset()
    shared: bool = True
    within: list[frozenset[object]] = field(default_factory=list)


class Management:
    """The API of one node. ``problem``: why it is not known what it has; empty if it answers. find_port: whether to ask
    for the port of AMQP. blocked: connections that publish and are blocked by an alarm; None: not known. vhosts: whose
    queues it has ever listed.
    """

    def __init__(self, client: HttpClient, find_port: bool) -> None:
        self._client, self._find_port = client, find_port
        self._next_ns = 0
        self.queues: dict[Name, AboutQueue] = {}
        self.vhosts = set[bytes]()
        self.consumers: dict[Name, QueueConsumers] = {}
        self.blocked: int | None = None
        self.amqp_port: int | None = None
        self._consumers_next = False
        self._problems = {False: "", True: ""}  # of queues, of consumers

    @property
    def problem(self) -> str:
        return self._problems[False] or self._problems[True]

    def ask(self, now_ns: int, deadline_s: float, login: tuple[str, str] | None, alarmed: bool = False) -> None:
        """Asks again if it is time. now_ns: CLOCK_BOOTTIME; deadline_s: time.monotonic. alarmed: also for connections
        that are blocked. Raises nothing.
        """
        if now_ns < self._next_ns:
            return
        turn, self._consumers_next = self._consumers_next, not self._consumers_next

        def get(path: str) -> Any:
            return json.loads(self._client.get(path, deadline_s, login=login))

        try:
            if turn:
                self.consumers, self.blocked = {}, None
                found = get(_CONSUMERS)
                self.consumers = queue_consumers(found, get(_CHANNELS) if unlimited(found) else [])
                self.blocked = blocked(get(_CONNECTIONS)) if alarmed else None
            else:
                if self._find_port and self.amqp_port is None:
                    self.amqp_port = amqp_port(get("/api/overview"))
                self.queues = about_queues(get(_QUEUES))
                theirs = {vhost for vhost, _ in self.queues}
                self.vhosts = theirs | self.vhosts if len(self.vhosts) < _MAX_VHOSTS else theirs
            self._problems[turn] = ""
        except HttpDown as error:
            why = explanation(error.body)
            remedy = _TAG if why == _UNTAGGED else error.remedy
            self._problems[turn] = ": ".join(filter(None, (error.reason, why, remedy)))
        except (TypeError, ValueError, RecursionError):
            self._client.close()
            self._problems[turn] = "its answer is no such JSON"
        self._next_ns = now_ns + (RETRY_NS if self._problems[turn] else INTERVAL_NS)

    def unseen(self, names: Iterable[Name]) -> str:
        """What is wrong if it answers without queues that exist; else empty."""
        theirs = {vhost for vhost, _ in self.queues}
        hidden = sorted({vhost for vhost, _ in names} - theirs)
        return f"its user has no permission for virtual host {hidden[0].decode(errors='replace')}" if hidden else ""

    def close(self) -> None:
        self._client.close()


def explanation(body: bytes) -> str:
    """The reason in the body of a refusal, such as ``Not management user``; empty if there is none."""
    try:
        reason = _mapping(json.loads(body)).get("reason")
    except (ValueError, RecursionError):
        return ""
    return printable(reason)[:80] if isinstance(reason, str) else ""


def amqp_port(overview: Any) -> int | None:
    """The node's port of AMQP, or else of AMQP with TLS; None if there is neither, or the user may not see listeners.
    Raises TypeError for another document.
    """
    listeners = overview.get("listeners", []) if isinstance(overview, dict) else None
    if not isinstance(listeners, list):
        raise TypeError("no listeners")
    ports = {
        one.get("protocol"): one.get("port")
        for one in reversed(listeners)
        if isinstance(one, dict) and isinstance(one.get("protocol"), str) and one.get("node") == overview.get("node")
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
        ttl, expires = (
            min(filter(None, (_number(arguments.get(f"x-{key}")), _number(policy.get(key)))), default=None)
            for key in ("message-ttl", "expires")
        )
        target = arguments.get("x-dead-letter-exchange", policy.get("dead-letter-exchange"))
        overflow = arguments.get("x-overflow", policy.get("overflow"))
        name = tuple(one[key].encode(errors="replace") for key in ("vhost", "name"))
        found[name[0], name[1]] = AboutQueue(
            str(one.get("type") or ""),
            ttl is not None and isinstance(target, str),
            ttl,
            expires,
            isinstance(overflow, str) and overflow.startswith("reject-publish"),
            _number(arguments.get("x-max-priority")) is not None,
        )
    return found


def unlimited(given: Any) -> bool:
    """Whether a consumer has no limit of its own: its channel may have one. Raises TypeError for another document."""
    if not isinstance(given, list):
        raise TypeError("no list of consumers")
    return any(
        _mapping(one).get("ack_required") is True and not _number(_mapping(one).get("prefetch_count")) for one in given
    )


def queue_consumers(given: list[Any], channels: Any) -> dict[Name, QueueConsumers]:
    """By queue. given, channels: of ``/api/consumers`` and ``/api/channels``. A channel's limit is shared by its
    consumers, so it counts once for each queue. Consumers that wait until the single active one ends get no messages.
    Raises TypeError for other documents.
    """
    if not isinstance(channels, list):
        raise TypeError("no list of channels")
    shared = {_mapping(one).get("name"): _number(_mapping(one).get("global_prefetch_count")) for one in channels}
    found: dict[Name, QueueConsumers] = {}
    on = defaultdict[Name, set[object]](set)
    counted = set[tuple[Name, str]]()
    for one in map(_mapping, given):
        queue, channel = _mapping(one.get("queue")), _mapping(one.get("channel_details"))
        if not all(isinstance(queue.get(key), str) for key in ("vhost", "name")):
            raise TypeError("no queue")
        name = queue["vhost"].encode(errors="replace"), queue["name"].encode(errors="replace")
        its = found.setdefault(name, QueueConsumers())
        host, port, where = channel.get("peer_host"), _number(channel.get("peer_port")), channel.get("name")
        if isinstance(host, str) and port and len(its.addresses) < _MAX_ADDRESSES:
            address = with_port(host[:64], port)
            its.addresses += [] if address in its.addresses else [address]
        if one.get("activity_status") == "waiting":
            continue
        limit = _number(one.get("prefetch_count"))
        on[name].add(where if isinstance(where, str) else None)
        its.shared &= not limit
        if not limit and isinstance(where, str):
            limit = shared.get(where)
            if limit and (name, where) in counted:
                continue
            counted.add((name, where))
        its.limit = its.limit + limit if limit and its.limit is not None and one.get("ack_required") is True else None
    for name, theirs in on.items():
        found[name].channels = frozenset(theirs if len(theirs) <= _MAX_CHANNELS else ())
    _find_within(found.values())
    return found


def _find_within(found: Collection[QueueConsumers]) -> None:
    """Sets of channels are found by the one that the fewest sets have: no set is compared with all others."""
    same: dict[frozenset[object], tuple[frozenset[object], list[frozenset[object]]]] = {}
    for one in found:
        one.channels, one.within = same.setdefault(one.channels, (one.channels, []))
    if len(same) > _MAX_SETS:
        for one in found:
            one.channels = frozenset()
        return
    often = Counter(chain.from_iterable(same))
    by_rarest = defaultdict[object, list[frozenset[object]]](list)
    for channels in filter(None, same):
        by_rarest[min(channels, key=often.__getitem__)].append(channels)
    wanted = {id(one.within) for one in found if one.shared and one.limit}
    for channels, within in same.values():
        if id(within) in wanted:
            within += [other for one in channels for other in by_rarest.get(one, ()) if other <= channels]


def blocked(given: Any) -> int:
    """Connections that publish and are blocked. Raises TypeError for another document."""
    if not isinstance(given, list):
        raise TypeError("no list of connections")
    return sum(_mapping(one).get("state") == "blocked" for one in given)


def _mapping(given: Any) -> dict[Any, Any]:
    return given if isinstance(given, dict) else {}


def _number(given: Any) -> int | None:
    return given if isinstance(given, int) and not isinstance(given, bool) and 0 < given < 1 << 53 else None
