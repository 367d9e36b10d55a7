"""Limiters made of plain commands: counters that expire, and sorted sets of times. Pure.

INCR of a key is a decision if the client also sets an expiry on such keys (EXPIRE and the like, or the SET that creates
them). The first decision is reported at that time, later ones at once. ZCARD or ZCOUNT of a key is a decision if old
elements are removed from it before (ZREMRANGEBYSCORE). The limit is not on the wire: the result is unknown, unless a
declaration has the limit.

A key that ends with the second in which its window began is Envoy's. Its EXPIRE, sent with each INCRBY, gives the
window's length plus up to 300 s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from agent.common.recent import Recent
from agent.limiters.script import ASKING, COUNTING, ENDING, MAKING, SORTED, RedisCall, RedisLimiter
from agent.limiters.scripted import Limiters
from agent.limiters.scripts.laravel import ADDING, COUNTED
from agent.redis_wire.flows import RedisExchange

_PREFIXES, _PENDING = 1024, 64
#: Largest first count of a counter: larger ones are times or tokens, as in locks.
_FIRST_DIGITS = 4
#: Django's caches put a version before the key.
_HEAD = re.compile(rb"(?::\d{1,3}:)?[^:/.{|_]{0,24}[:/.{|_]?")
#: Envoy's units; windows begin at multiples of them.
_STAMPED, _UNITS_S = (
    re.compile(rb"(.+_)(\d{9,10})\Z", re.DOTALL),
    (31_536_000, 2_592_000, 604_800, 86_400, 3_600, 60, 1),
)
_TIMER = b":timer"
_COUNTED, _COUNTS = ("ZCARD", "ZCOUNT"), frozenset((*COUNTING, *ENDING, *ASKING, *SORTED, MAKING))
_UNIT_NS = {"EXPIRE": 1_000_000_000, "PEXPIRE": 1_000_000, "EX": 1_000_000_000, "PX": 1_000_000}
_MOST_NS = 10**18
_Where = tuple[bytes, int, bytes]


def _head(key: bytes) -> bytes:
    match = _HEAD.match(key)
    return match[0] if match else b""


def expiry_ns(unit: str, word: bytes) -> int | None:
    """Length of a window; 0 for an instant, or for more than any window lasts; None for no number."""
    length_ns = int(word) * _UNIT_NS.get(unit, 0) if word.isdigit() and len(word) < 14 else None
    return 0 if length_ns is not None and length_ns >= _MOST_NS else length_ns


def counter_made(words: list[bytes]) -> tuple[int, int] | None:
    """(first count, window in ns) of a SET that creates an expiring counter if there is none."""
    options = [word[:14].upper() for word in words[3:9] if isinstance(word, bytes)]
    unit = next((unit for unit in (b"EX", b"PX", b"EXAT", b"PXAT") if unit in options[:-1]), None)
    if unit is None or b"NX" not in options or not words[2][:20].isdigit() or len(words[2]) > _FIRST_DIGITS:
        return None
    window_ns = expiry_ns(unit.decode(), options[options.index(unit) + 1])
    return None if window_ns is None else (int(words[2]), window_ns)


def stamped(command: bytes, key: bytes) -> re.Match[bytes] | None:
    """(limited object, beginning of its window) of Envoy's keys."""
    return _STAMPED.match(key) if command == b"INCRBY" else None


class Windows:
    """Keeps, by server: which key prefixes are windows, and their length; which keys a SET created with an expiry;
    which prefixes of these were counted, and by what command. _units: of Envoy's keys, without their second, the window
    in s.
    """

    def __init__(self, limiters: Limiters) -> None:
        self._known, self._ending, self._units, self._timed = (Recent[_Where, int](_PREFIXES) for _ in range(4))
        self._made = Recent[_Where, bytes](_PREFIXES)
        self._limiters = [one for one in limiters.all if set(one.commands) & {*COUNTING, *_COUNTED}]

    def added(self, exchange: RedisExchange, call: RedisCall) -> None:
        """A key that a script created with its expiry, as in Laravel."""
        ends, (key, args) = exchange.flow.ends, (call.keys[0] if call.keys else b"", call.args)
        if call.script == ADDING and ends and len(args) == 2 and (length_ns := expiry_ns("EX", args[1])):
            of = self._timed if key.endswith(_TIMER) else self._ending
            of[ends.server, ends.server_port, key.removesuffix(_TIMER)[:64]] = length_ns

    def take(self, exchange: RedisExchange) -> Iterator[tuple[RedisExchange, RedisLimiter | None, int]]:
        """Decisions that are complete with this reply: (their exchange, their declaration, window in ns or 0)."""
        command, words = exchange.command.decode("latin-1"), exchange.words
        if len(words) < 2 or command not in _COUNTS or exchange.flow.ends is None or not isinstance(words[1], bytes):
            return
        key, ends = words[1], exchange.flow.ends
        where = ends.server, ends.server_port, _head(key)
        if command in COUNTING and type(exchange.reply) is int:
            yield from self._counted(exchange, key, where)
        elif command == MAKING and len(words) > 5 and exchange.reply == b"OK" and (made := counter_made(words)):
            count, window_ns = made
            self._ending[*where[:2], key[:64]] = window_ns
            exchange.flow.made.pop(key, None)
            if count:  # the first request of its window, as if it had been counted
                by = self._made.get(where, b"INCRBY")
                first = exchange._replace(command=by, words=[by, key, words[2]], reply=count)
                if where in self._made or self._declared(first):
                    yield first, self._declared(first), window_ns
                else:  # an EXPIRE may also be of a lock: only a count decides
                    exchange.flow.made[key] = first
                    if len(exchange.flow.made) > _PENDING:
                        exchange.flow.made.pop(next(iter(exchange.flow.made)))
        elif command in ENDING and len(words) > 2 and (length_ns := expiry_ns(command, words[2])) is not None:
            before = exchange.flow.kept.pop(key, None)
            if before is not None and (stamp := stamped(before.command, key)):
                yield before, self._declared(before), self._unit_ns(where, stamp, length_ns)
                return
            if before is not None or where in self._known:
                self._known[where] = length_ns or self._known.get(where, 0)
            if before is not None:
                yield before, self._declared(before), length_ns
        elif command in ASKING and type(exchange.reply) is int and exchange.reply > 0:
            if (before := exchange.flow.kept.pop(key, None)) is not None:
                self._known[where] = self._known.get(where, 0)
                yield before, self._declared(before), self._known[where]
        elif command == "ZREMRANGEBYSCORE":
            self._known[*where[:2], b"zset " + where[2]] = 0
        elif command in _COUNTED and type(exchange.reply) is int:
            declared = self._declared(exchange)
            if declared or (*where[:2], b"zset " + where[2]) in self._known:
                yield exchange, declared, 0

    def _counted(
        self, exchange: RedisExchange, key: bytes, where: _Where
    ) -> Iterator[tuple[RedisExchange, RedisLimiter | None, int]]:
        flow, declared = exchange.flow, self._declared(exchange)
        timed_ns = self._timed.get((*where[:2], key[:64]))
        if timed_ns is not None and declared is None:
            yield exchange, COUNTED, timed_ns
            return
        length_ns = self._ending.get((*where[:2], key[:64]))
        if length_ns is not None:  # this very key was created with its expiry
            self._made[where] = exchange.command
            self._known[where] = length_ns
            if (first := flow.made.pop(key, None)) is not None:
                first = first._replace(command=exchange.command, words=[exchange.command, *first.words[1:]])
                yield first, self._declared(first), length_ns
        elif declared and stamped(exchange.command, key):
            if (before := flow.kept.pop(key, None)) is not None:
                yield before, self._declared(before), 0
            self._wait(exchange, key)
            return
        elif where not in self._known and declared:
            self._known[where] = 0
        if where in self._known:
            yield exchange, declared, self._known[where]
        else:
            self._wait(exchange, key)

    def _wait(self, exchange: RedisExchange, key: bytes) -> None:
        """Keeps a count until the key gets an expiry."""
        kept = exchange.flow.kept
        kept[key] = exchange
        if len(kept) > _PENDING:
            kept.pop(next(iter(kept)))

    def _unit_ns(self, where: _Where, stamp: re.Match[bytes], end_ns: int) -> int:
        """The longest unit that fits the key, its expiry, and all its keys before."""
        of = (*where[:2], stamp[1][:64])
        most = min(end_ns // 10**9, self._units.get(of, _UNITS_S[0]))
        unit = next((unit for unit in _UNITS_S if unit <= most and not int(stamp[2]) % unit), 0)
        if unit:
            self._units[of] = unit
        return unit * 10**9

    def _declared(self, exchange: RedisExchange) -> RedisLimiter | None:
        call = RedisCall(exchange.command.decode(), "", exchange.words[1:2], exchange.words[2:], exchange.reply)
        one = next((one for one in self._limiters if one.matching(call, None)), None)
        more = exchange.command == b"INCRBY" and exchange.words[2:3] != [b"1"]
        return None if more and one and "INCR" in one.commands else one
