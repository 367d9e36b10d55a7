"""Finds the streams of a Redis server, or other keys, by SCAN, a bounded step a poll."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import hiredis

from agent.common.fairness import UpperBound
from agent.common.resp import RedisDown, Reply
from agent.queues.patterns import is_chosen
from agent.queues.redis_rights import Command

MAX_STREAMS = 1024  # found by SCAN; streams named in the URL are not limited
MAX_NAME_BYTES = 1024  # of a stream or group; longer ones are not watched, which is reported in a row
SCAN_STEPS, SCAN_COUNT = 4, 500  # at most 2,000 keys are scanned for streams in one poll
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "queues",
        "streams found by SCAN",
        MAX_STREAMS,
        "not watched",
        "`queue_lag.reason`",
        setting="`?streams=` in the URL",
    ),
    UpperBound("queues", "name of a stream or group", MAX_NAME_BYTES, "not watched", "`queue_lag.reason`", "bytes"),
    UpperBound(
        "queues",
        "keys searched for streams in one poll",
        SCAN_STEPS * SCAN_COUNT,
        "the next poll continues",
        "`queue_lag.reason`",
        setting="`?streams=`",
    ),
)
REDISCOVER_NS = 15_000_000_000
_MAX_CURSOR_BYTES = 32


class Asked(Protocol):
    """Sends commands, as ``RespClient.pipeline``."""

    def pipeline(self, commands: Sequence[Command]) -> list[Reply]: ...


class Scan:
    """The keys found so far; a full pass over the keyspace replaces them. wanted: patterns of names; empty: all.
    condition: SCAN's own, on type or name. what: the keys, as the option of the URL that names them.

    A keyspace that one SCAN covers is scanned at every poll, so that a new stream shows at once; a larger one is
    scanned again after REDISCOVER_NS.
    """

    def __init__(
        self,
        wanted: Sequence[str],
        condition: tuple[str | bytes, str | bytes] = ("TYPE", "stream"),
        what: str = "streams",
    ) -> None:
        self._wanted, self._condition, self._what = wanted, condition, what
        self._cursor: bytes = b"0"
        self._found: set[bytes] = set()
        self._beyond = False
        self._streams: list[bytes] = []
        self._rescan_ns = 0
        self.more = False  # there are streams beyond MAX_STREAMS
        self.whole = False  # all keys have been scanned once

    def step(self, client: Asked, now_ns: int) -> list[bytes]:
        """The streams known now, at most MAX_STREAMS. Raises RedisDown, and any error of reading a malformed answer."""
        if now_ns < self._rescan_ns:
            return self._streams
        try:
            return self._pass(client, now_ns)
        except Exception:  # the next poll starts again, maybe with another server
            self._cursor, self._found, self._beyond = b"0", set(), False
            raise

    def _pass(self, client: Asked, now_ns: int) -> list[bytes]:
        for step in range(SCAN_STEPS):
            small = step == 0 and self._cursor == b"0"
            (reply,) = client.pipeline([("SCAN", self._cursor, "COUNT", SCAN_COUNT, *self._condition)])
            if isinstance(reply, hiredis.ReplyError):
                # ERR: a command that was renamed, or an option that the version lacks (TYPE is of Redis 6).
                failure = "permission" if str(reply).startswith(("NOPERM", "ERR ")) else "other"
                error = str(reply).partition(", with args")[0]
                why = f"cannot list {self._what}, name them with ?{self._what}= in the URL: {error}"
                raise RedisDown(why, failure=failure)
            cursor, keys = reply
            if not cursor.isdigit() or len(cursor) > _MAX_CURSOR_BYTES:
                raise ValueError("no cursor")
            self._cursor = cursor
            self._beyond |= any(len(k) > MAX_NAME_BYTES for k in keys)
            short = (k for k in keys if len(k) <= MAX_NAME_BYTES)
            self._found.update(k for k in short if is_chosen(k.decode("utf-8", "replace"), self._wanted))
            found, beyond = _first(self._found)  # bounds the memory, however many keys a server sends
            self._found, self._beyond = set(found), self._beyond or beyond
            self._streams, beyond = _first({*self._streams, *self._found})
            self.more |= beyond or self._beyond
            if self._cursor == b"0":
                self._streams, self.more, self.whole = found, self._beyond, True
                self._found, self._beyond, self._rescan_ns = set(), False, now_ns if small else now_ns + REDISCOVER_NS
                break
        return self._streams


def _first(names: set[bytes]) -> tuple[list[bytes], bool]:
    """The first MAX_STREAMS by name, and whether there are more."""
    return sorted(names)[:MAX_STREAMS], len(names) > MAX_STREAMS
