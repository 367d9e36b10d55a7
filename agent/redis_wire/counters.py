"""RedisCounters in Redis that no longer expire: INCR without its EXPIRE. Pure.

A key has such a counter if its program set an expiry on it ``_GIVEN`` times before, and none since the counter last
began anew, and if it has only grown since then, for longer than several of its windows. RedisCounters that are meant to
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
#: Counts of it since it began: so many that only grow are no coincidence, even if most requests were not read.
_COUNTS = 10
#: How long it must have gone on: a multiple of its window, and a minimum.
_WINDOWS, _LEAST_NS = 5, 30_000_000_000
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "limiters",
        "counters in Redis that are watched for a lost expiry",
        _KEYS,
        "those that were not used for longest are not watched",
        "`status` (`redis_limiters`: `counters_forgotten`)",
    ),
)


@dataclass(slots=True)
class _Counter:
    """value: the last count. begun_ns: its first count, CLOCK_BOOTTIME. window_ns: the longest expiry that it was
    given; given: how often. endless: no expiry was seen since it began. counts: since it began.
    """

    value: int
    begun_ns: int
    window_ns: int = 0
    given: int = 0
    endless: bool = True
    counts: int = 1


class RedisCounters:
    """By server and key. Of more than ``_KEYS``, the least recently used are forgotten (counted in ``forgotten``)."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, _Counter] = OrderedDict()
        self.forgotten = 0

    def unexpired_ns(self, exchange: RedisExchange) -> int:
        """Takes any exchange. For a count of a key whose counter no longer expires, the time since it began; else 0."""
        words, reply, ends = exchange.words, exchange.reply, exchange.flow.ends
        if exchange.command not in _COMMANDS or len(words) < 2 or ends is None or not isinstance(words[1], bytes):
            return 0
        command = exchange.command.decode()
        where = hash((ends.server, ends.server_port, words[1]))
        if command in COUNTING:
            return self._counted(where, exchange)
        one = self._kept.get(where)
        if one is None:
            return 0
        if command in ENDING and len(words) > 2 and type(reply) is int:
            self._given(one, expiry_ns(command, words[2]) or 0)
        elif command in ASKING and type(reply) is int and reply > 0:
            one.endless = False
        elif command == MAKING and len(words) > 5 and reply == b"OK" and (of := counter_made(words)):
            one.value, one.begun_ns, one.counts = of[0], exchange.ended_ns, 1
            self._given(one, of[1])
        return 0

    def _given(self, one: _Counter, window_ns: int) -> None:
        one.endless, one.given, one.window_ns = False, one.given + 1, max(one.window_ns, window_ns)

    def _counted(self, where: int, exchange: RedisExchange) -> int:
        value, now_ns = exchange.reply, exchange.ended_ns
        step = exchange.words[2] if len(exchange.words) > 2 else b"1"
        if type(value) is not int or not step.isdigit() or len(step) > 9:
            return 0
        one, first = self._kept.get(where), value == int(step)
        if one is None:
            if first:
                self._kept[where] = _Counter(value, now_ns)
                if len(self._kept) > _KEYS:
                    self._kept.popitem(last=False)
                    self.forgotten += 1
            return 0
        self._kept.move_to_end(where)
        if value <= one.value and (first or 2 * value < one.value):  # else replies of two connections crossed
            one.value, one.begun_ns, one.counts, one.endless = value, now_ns, 1, first
            return 0
        one.value, one.counts = max(value, one.value), one.counts + 1
        age_ns = now_ns - one.begun_ns
        lost = one.endless and one.given >= _GIVEN and one.window_ns > 0 and one.counts >= _COUNTS
        return age_ns if lost and age_ns > max(_WINDOWS * one.window_ns, _LEAST_NS) else 0
