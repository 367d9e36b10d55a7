"""Reads what a NATS server reports of JetStream (``/jsz``) and of itself (``/varz``). Pure and strict: a document of
another form is refused as a whole. Absent is unknown, except where the server leaves out what is 0, false or empty.
"""

from __future__ import annotations

import calendar
import json
import re
from dataclasses import dataclass
from typing import Any

_MOST = (1 << 63) - 1
_MOST_TEXT = 1024
_MOST_BACKOFF = 16
_ID_LENGTH = 8  # that much of an account's id tells accounts of one tag apart
#: RFC 3339 as Go writes it: any number of digits of a second.
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII)
_EARLIEST_NS = 1_000_000_000_000_000_000  # 2001: what is before is no time; Go's zero is of the year 1


class NotNats(ValueError):
    """The document is not of the form."""


@dataclass(frozen=True)
class NatsServer:
    """``/varz``. name: as consumers and streams name their leader. cluster: empty without one. port: of clients.
    version: empty if it is not reported.
    """

    server_id: str
    name: str
    cluster: str
    port: int
    memory_bytes: int | None
    clients: int | None
    clients_limit: int | None
    version: str


@dataclass(frozen=True)
class NatsConsumer:
    """Sequence numbers are those of the stream; ``deliveries`` counts them, repeated ones too.

    floor: all before it, and it, are acknowledged. waits: messages that were not delivered. requests: waiting
    requests of a pull consumer. bound: whether a push consumer has a subscriber. delivered_ns: of the last delivery,
    the server's wall clock; 0 if unknown. most_deliveries: of one message; 0 without a limit. paused_s: for how long
    it stays paused. leader: None outside a cluster. ack_s: after how long an unacknowledged message is delivered
    again; several times with a back-off.
    """

    name: str
    durable: bool
    waits: int
    pending: int
    redelivered: int
    delivered: int
    deliveries: int
    floor: int
    delivered_ns: int
    requests: int
    push: bool
    bound: bool
    filtered: bool
    most_pending: int
    most_deliveries: int
    paused_s: float | None
    leader: str | None
    ack_s: tuple[float, ...]


@dataclass(frozen=True)
class NatsStream:
    """Times are of the server's wall clock, 0 if unknown. kept_s: 0 without a limit of age. window_s: of deduplication,
    0 without one. work: each message is for one consumer and is removed when it is acknowledged. trims: messages are
    removed by limits only. replaces: a newer message of the same subject removes an older one. bytes_used, most_bytes,
    most_messages: of all its messages, 0 without a limit. refuses: if it is full, it takes no more; others delete the
    oldest. account_id: the beginning of the account's id, if its name is a tag: several accounts may have the same one.
    """

    account: str
    name: str
    leader: str | None
    messages: int
    first: int
    first_ns: int
    last: int
    last_ns: int
    kept_s: float
    window_s: float
    work: bool
    trims: bool
    replaces: bool
    bytes_used: int
    most_bytes: int
    most_messages: int
    refuses: bool
    consumers: tuple[NatsConsumer, ...]
    account_id: str = ""


@dataclass(frozen=True)
class NatsReport:
    """``/jsz``. enabled: whether JetStream is. domain: its name, often empty."""

    server_id: str
    now_ns: int
    enabled: bool
    domain: str
    streams: tuple[NatsStream, ...]


def read_server(answer: bytes) -> NatsServer:
    """Raises NotNats."""
    given = _document(answer)
    cluster, port = given.get("cluster", {}), _count(given, "port", 4222)
    if port > 65535:
        raise NotNats("port is none")
    return NatsServer(
        _text(given, "server_id"),
        _text(given, "server_name", ""),
        _text(_mapping(cluster), "name", ""),
        port,
        _count(given, "mem") if "mem" in given else None,
        _count(given, "connections") if "connections" in given else None,
        _count(given, "max_connections") if "max_connections" in given else None,
        _text(given, "version", ""),
    )


def read_report(answer: bytes) -> NatsReport:
    """Raises NotNats."""
    given = _document(answer)
    streams = tuple(
        _stream(account, stream)
        for account in _list(given, "account_details")
        for stream in _list(account, "stream_detail")
    )
    return NatsReport(
        _text(given, "server_id"),
        time_ns(_text(given, "now")),
        not _flag(given, "disabled"),
        _text(_mapping(given.get("config", {})), "domain", ""),
        streams,
    )


def time_ns(given: str) -> int:
    """Nanoseconds since 1970; 0 for a time before 2001. Raises NotNats."""
    found = _TIME.fullmatch(given)
    if found is None:
        raise NotNats("no time")
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    if year < 2001:
        return 0
    if not (1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1] and hour < 24 and minute < 60):
        raise NotNats("no time")
    at_s = calendar.timegm((year, month, day, hour, minute, min(second, 59)))
    if found[8]:
        away_s = 3600 * int(found[9]) + 60 * int(found[10])
        at_s -= away_s if found[8] == "+" else -away_s
    at_ns = at_s * 1_000_000_000 + int((found[7] or "").ljust(9, "0"))
    if at_ns > _MOST:
        raise NotNats("no time")
    return at_ns if at_ns >= _EARLIEST_NS else 0


def _stream(account: dict[str, Any], given: dict[str, Any]) -> NatsStream:
    owner = _text(account, "name")
    its_id = _text(account, "id", owner)
    state, config = _mapping(given.get("state")), _mapping(given.get("config"))
    retention = _text(config, "retention", "limits")
    return NatsStream(
        owner,
        _text(given, "name"),
        _leader(given),
        _count(state, "messages"),
        _count(state, "first_seq"),
        time_ns(_text(state, "first_ts")),
        _count(state, "last_seq"),
        time_ns(_text(state, "last_ts")),
        _count(config, "max_age", 0) / 1e9,
        _count(config, "duplicate_window", 0) / 1e9,
        retention == "workqueue",
        retention == "limits",
        _whole(config.get("max_msgs_per_subject", 0)) > 0,
        _count(state, "bytes", 0),
        max(0, _whole(config.get("max_bytes", 0))),
        max(0, _whole(config.get("max_msgs", 0))),
        _text(config, "discard", "old") == "new",
        tuple(map(_consumer, _list(given, "consumer_detail"))),
        "" if its_id == owner else its_id[:_ID_LENGTH],
    )


def _consumer(given: dict[str, Any]) -> NatsConsumer:
    config, delivered = _mapping(given.get("config")), _mapping(given.get("delivered"))
    floor = _mapping(given.get("ack_floor"))
    return NatsConsumer(
        name=_text(given, "name"),
        durable=bool(_text(config, "durable_name", "")),
        waits=_count(given, "num_pending"),
        pending=_count(given, "num_ack_pending"),
        redelivered=_count(given, "num_redelivered"),
        delivered=_count(delivered, "stream_seq"),
        deliveries=_count(delivered, "consumer_seq"),
        floor=_count(floor, "stream_seq"),
        delivered_ns=time_ns(_text(delivered, "last_active")) if "last_active" in delivered else 0,
        requests=_count(given, "num_waiting", 0),
        push=bool(_text(config, "deliver_subject", "")),
        bound=_flag(given, "push_bound"),
        filtered=bool(_text(config, "filter_subject", "") or config.get("filter_subjects")),
        most_pending=max(0, _whole(config.get("max_ack_pending", 0))),
        most_deliveries=max(0, _whole(config.get("max_deliver", 0))),
        paused_s=_count(given, "pause_remaining", 0) / 1e9 if _flag(given, "paused") else None,
        leader=_leader(given),
        ack_s=_ack_s(config),
    )


def _ack_s(config: dict[str, Any]) -> tuple[float, ...]:
    given = config.get("backoff") or [config.get("ack_wait", 0)]
    if not isinstance(given, list) or not all(_whole(one) >= 0 for one in given[:_MOST_BACKOFF]):
        raise NotNats("backoff is no list of times")
    return tuple(one / 1e9 for one in given[:_MOST_BACKOFF])


def _leader(given: dict[str, Any]) -> str | None:
    """None outside a cluster; empty while there is none."""
    cluster = given.get("cluster")
    return None if cluster is None else _text(_mapping(cluster), "leader", "")


def _document(answer: bytes) -> dict[str, Any]:
    try:
        return _mapping(json.loads(answer))
    except (ValueError, RecursionError):
        raise NotNats("it is not this server's JSON") from None


def _mapping(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise NotNats("no object")
    return given


def _list(given: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = given.get(key)
    if found is not None and not isinstance(found, list):
        raise NotNats(f"{key} is no list")
    return [_mapping(one) for one in found or ()]


def _text(given: dict[str, Any], key: str, absent: str | None = None) -> str:
    found = given.get(key, absent)
    if not isinstance(found, str) or len(found) > _MOST_TEXT:
        raise NotNats(f"{key} is no text")
    return found


def _flag(given: dict[str, Any], key: str) -> bool:
    found = given.get(key, False)
    if not isinstance(found, bool):
        raise NotNats(f"{key} is neither true nor false")
    return found


def _whole(found: Any) -> int:
    if not isinstance(found, int) or isinstance(found, bool) or not -_MOST <= found <= _MOST:
        raise NotNats("no whole number")
    return found


def _count(given: dict[str, Any], key: str, absent: int | None = None) -> int:
    found = given.get(key, absent)
    if found is None or _whole(found) < 0:
        raise NotNats(f"{key} is no count")
    return _whole(found)
