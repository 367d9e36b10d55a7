"""What all kinds of brokers on a Redis server share: the connection, refused logins, rows for an outage."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

from agent.common.address import peer_bytes
from agent.common.clocks import boot_ns
from agent.common.resp import RedisDown, RedisUrl, RespClient
from agent.queues.order import OrderedQueue
from agent.queues.queue import Row
from agent.queues.redis_info import Counters
from agent.queues.timers import QueueTimer, ServerTimers, TimedQueue, elsewhere

LOGIN_RETRY_NS = 10_000_000_000  # a refused login is not repeated at each poll: servers log and count refusals

#: Errors raised while reading malformed answers.
_ODD = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)


class RedisServer(TimedQueue, OrderedQueue):
    """One Redis server. ``poll`` returns the rows of the subclass, or ``down`` rows if the server does not answer."""

    def __init__(self, name: str, url: RedisUrl, timeout_s: float) -> None:
        self.name, self._timeout_s = name, timeout_s
        self._client = RespClient(url, timeout_s)
        self._server = Counters()
        self._not_before_ns, self._refusal = 0, ""
        self.role: object = None  # as of the last poll
        self._due: list[QueueTimer] | None = None  # as of the last poll, if the subclass has timers
        self._ordered: list[Row] = []  # rows of ``message_order`` of the last poll

    def poll(self) -> list[Row]:
        """Raises nothing, whatever the server answers."""
        started_ns, self.role, self._due, self._ordered = boot_ns(), None, None, []
        try:
            if started_ns < self._not_before_ns:
                raise RedisDown(self._refusal, failure="login")
            rows = self._poll(started_ns)
            self.role = next((row["server_role"] for row in rows if row.get("server_role")), None)
            if self.role in ("replica", "cut off") and self._due is not None:
                self._due = []  # they are its primary's, which may be polled, too: each counts once
        except RedisDown as error:
            if error.refused_login:
                self._not_before_ns, self._refusal = started_ns + LOGIN_RETRY_NS, str(error)
            rows = self._down(str(error), error.failure)
        except _ODD as error:
            self._client.close()
            rows = self._down(f"its answer cannot be read ({type(error).__name__})")
        peer = None if self._client.peer is None else peer_bytes(*self._client.peer)
        return [{**row, "peer": peer} for row in rows]

    def order(self) -> list[Row]:
        return self._ordered

    def timers(self) -> ServerTimers | None:
        if self._due is None:
            return None
        host = self._client.peer[0] if self._client.peer is not None else ""
        why = elsewhere(host)
        due = [one if one.kind == "id" else replace(one, elsewhere=why) for one in self._due]
        return ServerTimers(due, self._server.version)

    def use(self, url: RedisUrl) -> None:
        """Queries another server of the same data from now on, after a fail-over."""
        self.name = f"{self.name.partition(' ')[0]} {url.database}"
        self._client = RespClient(url, self._timeout_s)
        self._server.forget()  # its errors are not those of the one before
        self._not_before_ns, self._refusal = 0, ""

    def close(self) -> None:
        self._client.close()

    @abstractmethod
    def _poll(self, now_ns: int) -> list[Row]:
        """The rows. Raises RedisDown, and any of ``_ODD``."""

    @abstractmethod
    def _interrupted(self) -> list[Row]:
        """The server is down: forgets what would not hold after an outage. Returns the identifying columns of the known
        queues, so that their series continue.
        """

    def _down(self, reason: str, failure: str = "other") -> list[Row]:
        """One row for each known queue; else one for the server."""
        self._server.forget()
        status = "unknown" if failure == "permission" else "down"
        row = {"status": status, "reason": f"{self.name}: {reason}", "failure": failure}
        return [{**row, **queue} for queue in self._interrupted()] or [row]
