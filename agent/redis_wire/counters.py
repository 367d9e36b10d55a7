"""Counters in Redis that no longer expire: INCR without its EXPIRE. Pure.

A key has such a counter if its program set an expiry on it ``_GIVEN`` times before, and none since the counter last
began anew, and if it has only grown since then, for longer than several of its windows. Counters that are meant to
stay, and those whose expiry is set by a script or at an instant, are none: their window is not known.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from agent.common.fairness import UpperBound
from agent.limiters.script import ASKING, COUNTING, ENDING, MAKING
from agent.redis_wire.flows import RedisExchange
from agent.redis_wire.windows import counter_made, expiry_ns

_COMMANDS = frozenset(name.encode() for name in (*COUNTING, *ENDING, *ASKING, MAKING))
_KEYS = 4096
_GIVEN = 2
_NONE = (0, 0)
#: Counts of it since it began: so many that only grow are no coincidence, even if most requests were not read.
_COUNTS = 10
#: How long it must have gone on: a multiple of its window, and a minimum.
_WINDOWS, _LEAST_NS = 5, 30_000_000_000
#: Replies of two connections that cross come within this time.
_CROSSED_NS = 1_000_000_000
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "limiters",
        "counters in Redis that are watched for a lost expiry",
        _KEYS,
        "those unused for longest are no longer watched",
        "`status` (`redis_limiters`: `counters_forgotten`)",
    ),
)


@dataclass(slots=True)
class _Counter:
    """value: the highest count since it began; seen_ns: when it was replied; begun_ns: its first count, CLOCK_BOOTTIME;
    begun_at: that exchange's ``ends``. window_ns: the longest expiry that it was given; given: how often; given_at:
    ``ends`` of the last one. endless: no expiry was seen since it began. counts: how often it grew since it began.
    """

    value: int
    begun_ns: int
    begun_at: tuple[int, int]
    seen_ns: int
    given_at: tuple[int, int] = (-1, -1)
    window_ns: int = 0
    given: int = 0
    endless: bool = True
    counts: int = 1

    def begin(self, value: int, exchange: RedisExchange) -> None:
        self.value, self.begun_ns, self.begun_at, self.counts = value, exchange.ended_ns, exchange.ends, 1
        self.seen_ns = exchange.ended_ns


class RedisCounters:
    """By server and key. Of more than ``_KEYS``, the least recently used are forgotten (counted in ``forgotten``)."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, _Counter] = OrderedDict()
        self.forgotten = 0

    def unexpired(self, exchange: RedisExchange) -> tuple[int, int]:
        """Takes any exchange. For a count of a key whose counter no longer expires: (time since it began, the longest
        expiry that the key was given), ns; else zeros.
        """
        words, reply, ends = exchange.words, exchange.reply, exchange.flow.ends
        if exchange.command not in _COMMANDS or len(words) < 2 or ends is None or not isinstance(words[1], bytes):
            return _NONE
        command = exchange.command.decode()
        where = hash((ends.server, ends.server_port, words[1]))
        if command in COUNTING:
            return self._counted(where, exchange)
        one = self._kept.get(where)
        if one is None:
            return _NONE
        if command in ENDING and len(words) > 2 and type(reply) is int:
            self._given(one, exchange, expiry_ns(command, words[2]) or 0)
        elif command in ASKING and type(reply) is int and reply > 0:
            one.endless = False
        elif command == MAKING and len(words) > 5 and reply == b"OK" and (of := counter_made(words)):
            if exchange.ends != one.begun_at:
                one.begin(of[0], exchange)
            self._given(one, exchange, of[1])
        return _NONE

    def _given(self, one: _Counter, exchange: RedisExchange, window_ns: int) -> None:
        one.endless, one.window_ns = False, max(one.window_ns, window_ns)
        one.given += exchange.ends != one.given_at  # else it was seen at the connection's other end
        one.given_at = exchange.ends

    def _counted(self, where: int, exchange: RedisExchange) -> tuple[int, int]:
        value, now_ns = exchange.reply, exchange.ended_ns
        step = exchange.words[2] if len(exchange.words) > 2 else b"1"
        if type(value) is not int or not step.isdigit() or len(step) > 9:
            return _NONE
        one, first = self._kept.get(where), value == int(step)
        if one is None:
            if first:
                self._kept[where] = _Counter(value, now_ns, exchange.ends, now_ns)
                if len(self._kept) > _KEYS:
                    self._kept.popitem(last=False)
                    self.forgotten += 1
            return _NONE
        self._kept.move_to_end(where)
        if exchange.ends == one.begun_at:  # its first count, seen at the connection's other end
            return _NONE
        late = now_ns - one.seen_ns > _CROSSED_NS
        if value <= one.value and (first or late or 2 * value < one.value):  # else replies of two connections crossed
            one.begin(value, exchange)
            one.endless = first
            return _NONE
        if value > one.value:
            one.value, one.seen_ns, one.counts = value, now_ns, one.counts + 1
        age_ns = now_ns - one.begun_ns
        lost = one.endless and one.given >= _GIVEN and one.window_ns > 0 and one.counts >= _COUNTS
        return (age_ns, one.window_ns) if lost and age_ns > max(_WINDOWS * one.window_ns, _LEAST_NS) else _NONE
