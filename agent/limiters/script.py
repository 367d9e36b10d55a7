"""The declaration of a limiter in Redis: its requests, and the meaning of their replies. Data.

A value is one place, or two with an operator between them: ``reply.1``, ``reply.0 > 0``, ``match.1 - reply``. Places:

reply, reply.N    the reply, its Nth element (from 0), as a number; nothing (nil, false) is 0, true is 1
arg.N, key.N      an argument after the keys, a key, as a number
match.N           the match of the Nth group of ``key``, as a number or a unit of time (minute)
a number
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

#: Commands that the kernel's programs look for; those of declarations are added.
SCRIPT_COMMANDS = ("EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO")
#: Commands of limiters that use plain commands (agent/redis_wire/windows.py).
COUNTING, ENDING = ("INCR", "INCRBY"), ("EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT")
#: Shows a counter that was given an expiry before, as in Ruby's rack-attack.
ASKING = ("TTL", "PTTL")
SORTED, MAKING = ("ZADD", "ZREMRANGEBYSCORE", "ZCARD", "ZCOUNT"), "SET"
#: Words of a SET that creates an expiring counter if there is none: SET KEY 1 EX 60 NX. Shorter SETs, the majority, are
#: dropped in the kernel.
MAKING_WORDS = 6
#: Also read, but no decisions by themselves.
PLAIN_COMMANDS = (*COUNTING, *ENDING, *ASKING, *SORTED, MAKING, "MULTI", "EXEC", "SCRIPT", "FUNCTION")
#: What a declaration gives for a decision, beside ``allowed``; times in the unit of their name.
VALUES = ("remaining", "limit", "burst", "cost", "window_s", "window_ms", "wait_s", "wait_ms")
UNITS = {b"second": 1.0, b"minute": 60.0, b"hour": 3600.0, b"day": 86400.0, b"month": 2592000.0, b"year": 31104000.0}
_OPERATORS: dict[str, Callable[[float, float], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "-": operator.sub,
    "+": operator.add,
    "*": operator.mul,
    "/": operator.truediv,
}
_COMPARING = ("==", "!=", ">=", "<=", ">", "<")
_PLACE = re.compile(r"(reply)(?:\.(\d{1,2}))?|(arg|key|match)\.(\d{1,2})|(-?\d{1,15}(?:\.\d{1,9})?)")
_WHOLE = re.compile(r"\s*(\S+)(?:\s+(==|!=|>=|<=|>|<|-|\+|\*|/)\s+(\S+))?\s*")


@dataclass(frozen=True)
class RedisCall:
    """A request and its reply. command: in capitals. script: SHA1 or function, or empty. match: of the declaration's
    ``key``.
    """

    command: str
    script: str
    keys: list[bytes]
    args: list[bytes]
    reply: Any
    match: re.Match[bytes] | None = None


Term = Callable[[RedisCall], "float | None"]


def number(value: Any) -> float | None:
    """The number in a reply or a request; None if it is no number."""
    if value is None:
        return 0.0
    if isinstance(value, (bool, int, float)):
        return float(value) if isfinite(value) else None
    if isinstance(value, bytes) and len(value) <= 40:
        try:
            made = float(value)
        except ValueError:
            return UNITS.get(value)
        return made if isfinite(made) else None
    return None


def _nth(values: Any, at: int) -> float | None:
    return number(values[at]) if isinstance(values, (list, tuple)) and at < len(values) else None


def _term(text: str) -> Term:
    found = _PLACE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no place: reply, reply.N, arg.N, key.N, match.N, or a number")
    of_reply, nth_reply, place, nth, plain = found.groups()
    if plain is not None:
        value = float(plain)
        return lambda _: value
    if of_reply:
        return (lambda call: number(call.reply)) if nth_reply is None else lambda call: _nth(call.reply, int(nth_reply))
    at = int(nth)
    if place == "match":
        return lambda call: _nth(call.match.groups(), at - 1) if call.match and at else None
    return (lambda call: _nth(call.args, at)) if place == "arg" else (lambda call: _nth(call.keys, at))


def expression(text: str, comparing: bool = False) -> Term:
    """Parses a value. comparing: it must be a comparison. Raises ValueError."""
    found = _WHOLE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r}: a place, or two with an operator between them, as in reply.0 > 0")
    first, sign, second = found.groups()
    if comparing and sign not in _COMPARING:
        raise ValueError(f"{text!r} does not compare: as in reply.0 > 0, with one of {' '.join(_COMPARING)}")
    left = _term(first)
    if sign is None:
        return left
    right, does = _term(second), _OPERATORS[sign]

    def both(call: RedisCall) -> float | None:
        a, b = left(call), right(call)
        if a is None or b is None or (sign == "/" and not b):
            return None
        return float(does(a, b))

    return both


@dataclass(frozen=True)
class RedisLimiter:
    """A limiter in Redis.

    library: its name in ``limiter_decision.library``. commands: in capitals. key: a regular expression that the first
    key must match from its start. A script is identified by its name (scripts: SHA1s, or names of functions); else by
    its text (text, a regular expression), if it was seen; else, if ``key`` is given and no hash, by its shape (keys,
    args: how many; -1: any). allowed: a comparison (module's text). values: of ``VALUES``, each a value. prefix: bytes
    at a key's start that do not belong to the limited object. own_keys: only this library uses such keys: another
    script on them is the library's, too, and makes no decision. second: a regular expression that the second key must
    match. decides: False for a library's scripts that make no decision. step_immune: whether its clock ignores steps;
    None if unknown. Raises ValueError for an invalid value.
    """

    library: str
    commands: tuple[str, ...] = ("EVAL", "EVALSHA")
    scripts: tuple[str, ...] = ()
    key: str = ""
    text: str = ""
    keys: int = -1
    args: int = -1
    allowed: str = ""
    values: dict[str, str] = field(default_factory=dict)
    prefix: bytes = b""
    own_keys: bool = False
    second: str = ""
    decides: bool = True
    step_immune: bool | None = None

    def __post_init__(self) -> None:
        terms = {}
        for name, text in self.values.items():
            if name not in VALUES:
                raise ValueError(f"nothing is called {name!r}: one of {', '.join(VALUES)}")
            terms[name] = expression(text)
        object.__setattr__(self, "terms", terms)
        object.__setattr__(self, "is_allowed", expression(self.allowed, comparing=True) if self.allowed else None)
        object.__setattr__(self, "key_form", re.compile(self.key.encode()) if self.key else None)
        object.__setattr__(self, "second_form", re.compile(self.second.encode()) if self.second else None)
        object.__setattr__(self, "text_form", re.compile(self.text.encode()) if self.text else None)

    terms: dict[str, Term] = field(init=False, repr=False, compare=False)
    is_allowed: Term | None = field(init=False, repr=False, compare=False)
    key_form: re.Pattern[bytes] | None = field(init=False, repr=False, compare=False)
    second_form: re.Pattern[bytes] | None = field(init=False, repr=False, compare=False)
    text_form: re.Pattern[bytes] | None = field(init=False, repr=False, compare=False)

    def matching(self, call: RedisCall, text: bytes | None) -> RedisCall | None:
        """The call, with the match of its key, if it is this limiter's. text: of its script, if known."""
        if call.command not in self.commands:
            return None
        named = not call.script or call.script in self.scripts
        if not named and (self.keys not in (-1, len(call.keys)) or self.args not in (-1, len(call.args))):
            return None
        if not self.has_keys(call):
            return None
        if not named:
            by_text = text is not None and self.text_form is not None
            if not by_text and (self.scripts or not (self.key or self.second)):
                return None
            if not self._answers(call.reply) or (by_text and not self.text_form.search(text)):  # type: ignore[union-attr,arg-type]
                return None
        if self.key_form is None:
            return call
        match = self.key_form.match(call.keys[0][:256])
        return RedisCall(call.command, call.script, call.keys, call.args, call.reply, match)

    def has_keys(self, call: RedisCall) -> bool:
        """Whether the keys match the declaration."""
        forms = (self.key_form, self.second_form)
        return all(
            form is None or (at < len(call.keys) and form.match(call.keys[at][:256])) for at, form in enumerate(forms)
        )

    def _answers(self, reply: Any) -> bool:
        """Whether a reply has the kind that is compared: a list, or none. Another kind is from another script with as
        many arguments.
        """
        if not self.allowed.startswith("reply") or isinstance(reply, bytes):  # bytes: an error, too
            return True
        return isinstance(reply, (list, tuple)) == self.allowed.startswith("reply.")
