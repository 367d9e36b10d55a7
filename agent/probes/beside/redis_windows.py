"""Counters that expire, and sorted sets of times: limiters that are made of plain commands. Pure.

INCR of a key is a decision where somebody also gives such keys an end (EXPIRE and its like): the first is told then, the others at once. ZCARD or ZCOUNT of a
key is one where old elements are taken out of it before (ZREMRANGEBYSCORE). What the program compares the count with is not on the wire: the result is unknown,
unless a declaration says the limit.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator

from agent.limiters.script import COUNTING, ENDING, SORTED, RedisCall, RedisLimiter
from agent.limiters.scripted import Limiters
from agent.probes.beside.redis_flows import RedisExchange

_PREFIXES, _PENDING = 1024, 64
_HEAD = re.compile(rb"[^:/.{|_]{0,24}[:/.{|_]?")


def _head(key: bytes) -> bytes:
    match = _HEAD.match(key)
    return match[0] if match else b""


class Windows:
    """Keeps which keys' beginnings are windows, and for how long, by server."""

    def __init__(self, limiters: Limiters) -> None:
        self._known: OrderedDict[tuple[bytes, int, bytes], int] = OrderedDict()
        self._limiters = [one for one in limiters.all if set(one.commands) & {*COUNTING, "ZCARD", "ZCOUNT"}]

    def take(self, exchange: RedisExchange) -> Iterator[tuple[RedisExchange, RedisLimiter | None, int]]:
        """Decisions that are known with this answer: (of which exchange, what is declared of it, its window in ns or 0)."""
        command, words = exchange.command.decode("latin-1"), exchange.words
        if len(words) < 2 or command not in (*COUNTING, *ENDING, *SORTED) or exchange.flow.ends is None:
            return
        key, flow = words[1], exchange.flow
        where = flow.ends.server, flow.ends.server_port, _head(key)  # type: ignore[union-attr]
        if command in COUNTING and type(exchange.reply) is int:
            declared = self._declared(exchange)
            if declared:
                self._know(where, self._known.get(where, 0))
            if where in self._known:
                yield exchange, declared, self._known.get(where, 0)
            else:
                flow.kept[key] = exchange
                if len(flow.kept) > _PENDING:
                    flow.kept.pop(next(iter(flow.kept)))
        elif command in ENDING and len(words) > 2 and words[2].isdigit() and len(words[2]) < 13:
            window_ns = int(words[2]) * (1_000_000_000 if command == "EXPIRE" else 1_000_000)
            before = flow.kept.pop(key, None)
            if before is not None or where in self._known:
                self._know(where, window_ns)
            if before is not None:
                yield before, self._declared(before), window_ns
        elif command == "ZREMRANGEBYSCORE":
            self._know((*where[:2], b"zset " + where[2]), self._known.get((*where[:2], b"zset " + where[2]), 0))
        elif command in ("ZCARD", "ZCOUNT") and (*where[:2], b"zset " + where[2]) in self._known:
            yield exchange, self._declared(exchange), 0

    def _know(self, where: tuple[bytes, int, bytes], window_ns: int) -> None:
        self._known[where] = window_ns
        if len(self._known) > _PREFIXES:
            self._known.popitem(last=False)

    def _declared(self, exchange: RedisExchange) -> RedisLimiter | None:
        call = RedisCall(exchange.command.decode(), "", exchange.words[1:2], exchange.words[2:], exchange.reply)
        return next((one for one in self._limiters if one.matching(call, None)), None)
