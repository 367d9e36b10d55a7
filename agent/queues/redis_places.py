"""Where the data of a Redis Sentinel service, or of a Redis Cluster, are now. A queue stays the same one when another
server answers: what is known of it is kept, and its rows have the cluster of the settings.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from binascii import crc_hqx
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

import hiredis

from agent.common.clocks import boot_ns
from agent.common.fairness import UpperBound
from agent.common.resp import EXPIRING, RedisDown, RedisUrl, RespClient
from agent.queues.order import OrderedQueue
from agent.queues.patterns import is_pattern
from agent.queues.queue import Row
from agent.queues.timers import QueueTimer, ServerTimers, TimedQueue

#: The place is asked for so often, and at once when a server does not answer, or is no primary.
ASK_NS = 5_000_000_000
#: For all Sentinels, or nodes, that are asked in one poll.
_ASK_S = 0.4
LOGIN_RETRY_S = 10.0
MAX_SHARDS = 64
#: For docs/limits.md.
BOUNDS = (UpperBound("queues", "primaries of a Redis Cluster", MAX_SHARDS, "not watched", "`queue_lag.reason`"),)
SLOTS = 16384
Ranges = tuple[tuple[int, int], ...]
_ODD = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)


class OneServer(Protocol):
    """The queues of one server: a ``RedisServer``."""

    name: str
    role: object

    def use(self, url: RedisUrl) -> None: ...

    def poll(self) -> list[Row]: ...

    def order(self) -> list[Row]: ...

    def timers(self) -> ServerTimers | None: ...

    def close(self) -> None: ...


class Streams(OneServer, Protocol):
    """The streams of one server (agent/queues/brokers/redis.py)."""

    moved: bool

    def choose(self, named: list[bytes], expiring: Collection[str]) -> None: ...


Open = Callable[..., Any]  #: (url, timeout_s, shard) -> Streams


class _Asking:
    """Asks servers in turn; the one that answered last comes first."""

    def __init__(self, url: RedisUrl, timeout_s: float) -> None:
        self._url, self._timeout_s = url, timeout_s
        self.places: list[tuple[str, int]] = list(url.addresses)
        self._refused: tuple[float, RedisDown] | None = None

    def ask(self, command: tuple[str, ...]) -> tuple[Any, tuple[str, int]]:
        """The reply, and who gave it. A refused login is not repeated at once. Raises RedisDown."""
        if self._refused is not None and time.monotonic() < self._refused[0]:
            raise self._refused[1]
        until, why = time.monotonic() + _ASK_S, RedisDown("no server was asked in time", failure="no_answer")
        for place in list(self.places):
            left = until - time.monotonic()
            if left <= 0:
                break
            client = RespClient(self._url.at(*place), min(left, self._timeout_s))
            try:
                (reply,) = client.pipeline([command])
            except RedisDown as error:
                why = RedisDown(f"{client.url.server}: {error}", error.refused_login, error.failure)
            else:
                if not isinstance(reply, hiredis.ReplyError):
                    self._first(place)
                    return reply, place
                failure = "permission" if str(reply).startswith("NOPERM") else "other"
                why = RedisDown(f"{client.url.server}: {reply}", failure=failure)
            finally:
                client.close()
            self._last(place)
        self._refused = (time.monotonic() + LOGIN_RETRY_S, why) if why.refused_login else None
        raise why

    def know(self, places: Iterable[tuple[str, int]]) -> None:
        """Servers that may be asked, too."""
        self.places = list(dict.fromkeys([*self.places, *places]))[: 2 * MAX_SHARDS]

    def _first(self, place: tuple[str, int]) -> None:
        self.places = [place, *(one for one in self.places if one != place)]

    def _last(self, place: tuple[str, int]) -> None:
        self.places = [*(one for one in self.places if one != place), place]


class _Places(TimedQueue, OrderedQueue):
    """Polls the servers on which the data are now. ``_doubt``: they are to be found at the next poll. name: of the
    source; by default that of Redis Streams.
    """

    def __init__(self, url: RedisUrl, opening: Open, timeout_s: float, name: str = "") -> None:
        self.name, self._url, self._timeout_s = name or f"redis {url.database}", url, timeout_s
        self._opening = opening
        self._asked_ns, self._doubt = 0, True

    def poll(self) -> list[Row]:
        """Raises nothing, whatever the servers answer."""
        now_ns = boot_ns()
        if self._doubt or now_ns - self._asked_ns >= ASK_NS:
            self._asked_ns = now_ns
            try:
                self._find()
            except (RedisDown, *_ODD) as error:
                if not self._known():
                    return self._down(error)
        return self._poll()

    @abstractmethod
    def _find(self) -> None:
        """Finds the servers. Raises RedisDown, and any of ``_ODD``."""

    def order(self) -> list[Row]:
        return [row for one in self._servers() for row in one.order()]

    def close(self) -> None:
        for one in self._servers():
            one.close()

    @abstractmethod
    def _servers(self) -> list[Any]:
        """Those that are polled: each a ``OneServer``."""

    @abstractmethod
    def _known(self) -> bool:
        """Whether they have been found once."""

    @abstractmethod
    def _poll(self) -> list[Row]:
        """The rows of these servers; sets ``_doubt``."""

    def _down(self, error: Exception) -> list[Row]:
        if not isinstance(error, RedisDown):
            error = RedisDown(f"its answer cannot be read ({type(error).__name__})")
        status = "unknown" if error.failure == "permission" else "down"
        return [{"status": status, "reason": f"{self.name}: {error}", "failure": error.failure}]


class SentinelStreams(_Places):
    """The primary that Sentinel names."""

    def __init__(self, url: RedisUrl, opening: Open, timeout_s: float = 0.5, name: str = "") -> None:
        super().__init__(url, opening, timeout_s, name)
        self._streams: OneServer | None = None
        theirs = RedisUrl(
            tls=url.tls,
            tls_files=url.tls_files,
            tls_keys=url.tls_keys,
            addresses=url.addresses,
            user=url.sentinel_user,
            password=url.sentinel_password,
        )
        self._sentinels = _Asking(theirs, timeout_s)
        self._place: tuple[str, int] | None = None

    def _poll(self) -> list[Row]:
        assert self._streams is not None
        rows = _timed(self._streams)
        self._doubt = self._streams.role != "primary"
        return rows

    def timers(self) -> ServerTimers | None:
        return None if self._streams is None else self._streams.timers()

    def _servers(self) -> list[Any]:
        return [self._streams] if self._streams is not None else []

    def _known(self) -> bool:
        return self._streams is not None

    def _find(self) -> None:
        reply, _ = self._sentinels.ask(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._url.service))
        if reply is None:
            raise RedisDown(f"Sentinel knows no service {self._url.service}")
        place = reply[0].decode(), int(reply[1])
        if place == self._place:
            return
        if self._streams is None:
            self._streams = self._opening(self._url.at(*place), self._timeout_s)
        else:
            self._streams.close()
            self._streams.use(self._url.at(*place))
        self._place = place


class ClusterStreams(_Places):
    """All primaries of a Redis Cluster, one after the other."""

    def __init__(self, url: RedisUrl, opening: Open, timeout_s: float = 0.5) -> None:
        super().__init__(url, opening, timeout_s)
        self._nodes = _Asking(url, timeout_s)
        self._named = [name for name in url.streams if not is_pattern(name)]
        self._keys = [name for _, name in url.expiring if not is_pattern(name)]
        self._shards: dict[Ranges, tuple[tuple[str, int], Streams]] = {}
        self._missing = self._left_out = 0

    def _poll(self) -> list[Row]:
        rows: list[Row] = []
        for _, streams in self._shards.values():
            rows += _timed(streams)
        self._doubt = any(streams.moved or streams.role != "primary" for _, streams in self._shards.values())
        if self._missing:
            why = f"{self._missing} of {SLOTS} slots have no primary: their streams are not served"
            rows.append({"status": "unknown", "reason": f"{self.name}: {why}"})
        if self._left_out:
            rows.append({"reason": f"more than {MAX_SHARDS} primaries: {self._left_out} are not watched"})
        return rows

    def timers(self) -> ServerTimers | None:
        """Of the primaries that answered; for the others a row without a time. All versions are named."""
        polled = [streams.timers() for _, streams in self._shards.values()]
        found = [one for one in polled if one is not None]
        if not found:
            return None
        due = [timer for one in found for timer in one.timers]
        if len(found) < len(polled):
            why = f"{len(polled) - len(found)} of {len(polled)} primaries did not answer"
            due += [
                QueueTimer(name.encode(), b"", EXPIRING[option], unknown=why) for option, name in self._url.expiring
            ]
        return ServerTimers(due, ", ".join(sorted({one.version for one in found})))

    def _servers(self) -> list[Any]:
        return [streams for _, streams in self._shards.values()]

    def _known(self) -> bool:
        return bool(self._shards)

    def _find(self) -> None:
        reply, asked = self._nodes.ask(("CLUSTER", "SLOTS"))
        found = shards(reply, asked[0])
        before, self._shards = self._shards, {}
        self._left_out = max(0, len(found) - MAX_SHARDS)
        self._missing = SLOTS - sum(end - start + 1 for ranges in found for start, end in ranges)
        by_place = {place: ranges for ranges, (place, _) in before.items()}
        for ranges, place in list(found.items())[:MAX_SHARDS]:
            was = before.pop(ranges, None) or before.pop(by_place.get(place, ()), None)
            if was is None:
                streams = self._opening(self._url.at(*place), self._timeout_s, True)
            else:
                streams = was[1]
                if was[0] != place:
                    streams.close()
                    streams.use(self._url.at(*place))
            named, keys = (
                [name for name in some if _within(slot(name.encode()), ranges)] for some in (self._named, self._keys)
            )
            streams.choose([name.encode() for name in named], keys)
            self._shards[ranges] = place, streams
        for _, streams in before.values():
            streams.close()
        self._nodes.know(place for place, _ in self._shards.values())


def _timed(server: OneServer) -> list[Row]:
    """Its rows, with the duration of its own poll: another server, or Sentinel, may take longer to answer."""
    asked_ns = boot_ns()
    rows = server.poll()
    took_ns = boot_ns() - asked_ns
    return [{**row, "poll_ns": took_ns} for row in rows]


def shards(reply: list[Any], asked: str) -> dict[Ranges, tuple[str, int]]:
    """The primary's address by the slots that it serves, from ``CLUSTER SLOTS``. asked: the host that replied. Raises
    errors of malformed replies.
    """
    slots: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for start, end, primary, *_ in reply[:SLOTS]:
        if not 0 <= int(start) <= int(end) < SLOTS:
            raise ValueError("no slots")
        host = (primary[0] or b"").decode() or asked
        slots.setdefault((asked if host == "?" else host, int(primary[1])), []).append((int(start), int(end)))
    return {tuple(sorted(ranges)): place for place, ranges in sorted(slots.items())}


def slot(key: bytes) -> int:
    """The slot of a key (redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec)."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


def _within(number: int, ranges: Ranges) -> bool:
    return any(start <= number <= end for start, end in ranges)
