"""One decision that a program reports: a JSON object, checked and converted to columns of
``limiter_decision``. Pure.
"""

from __future__ import annotations

import json
import re
from _blake2 import blake2b  # hashlib would load OpenSSL
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any

from agent.columns import fitted
from agent.tables import TABLES

TABLE = TABLES["limiter_decision"]
FLOATS = ("cost", "limit_per_s", "burst", "remaining")
#: The value for "no limit" of some libraries (golang.org/x/time/rate.Inf).
_UNLIMITED_PER_S = 1.7976931348623157e308
INTEGERS = ("window_ns", "wait_ns", "duration_ns", "program_wall_ns", "tid")
_WHOLE = frozenset(("t_ns", *INTEGERS))
#: Minimum of each number: a limiter in debt may have a negative remainder, all others count from 0.
_FRACTIONS = {name: -(2.0**63) if name == "remaining" else 0 for name in FLOATS}
_NUMBERS = dict.fromkeys(_WHOLE, (0, int)) | {name: (least, int, float) for name, least in _FRACTIONS.items()}
IDS = {"trace_id": re.compile(r"[0-9a-f]{32}"), "span_id": re.compile(r"[0-9a-f]{16}")}
#: Columns about the deciding library, with their sizes in bytes.
NAMES = {"library": 48, "library_version": 24}
_READ = frozenset(("key", "dropped", *_WHOLE, *_FRACTIONS, *IDS, *NAMES))
#: Commas and opening brackets in a message, and digits of an integer. 8 KB of these take 0.2 to 0.5 ms to parse.
MAX_VALUES, MAX_DIGITS = 128, 64
_COMMAS = bytes(byte in b",[{" for byte in range(256))
#: Shorter messages take less time to parse than to check.
_SHORT_BYTES = 256
#: More than a program can have dropped between two messages.
MOST_DROPPED = 1 << 31
#: Keys whose hash is kept, and their length.
_KEPT, _KEPT_LENGTH = 4096, 64
_salt = b""
_RESULTS = {name: code for code, name in enumerate(TABLE.by_name["result"].names)}


#: By name; one value a decision.
Columns = dict[str, Sequence[Any]]


class Malformed(ValueError):
    """A message that is not a valid decision."""


class Decoder:
    """keys: ``hashed`` stores 8 bytes of BLAKE2b as hex, ``clear`` the key itself, as in its column. called: a
    limiter's id, as in its column.
    """

    def __init__(self, keys: str, called: Callable[[str], bytes] | None = None) -> None:
        self.store_keys(keys)
        self._called = called or _named
        decoder = json.JSONDecoder(parse_constant=_no_constant, parse_int=_whole)
        self._decode, self._raw_decode = decoder.decode, decoder.raw_decode

    def store_keys(self, keys: str) -> None:
        """Sets how keys are stored from now on."""
        self._key = KEYS[keys]

    def parse(self, data: bytes | bytearray) -> tuple[dict[str, Any], int]:
        """(columns, number of decisions that the sender dropped before this one). Raises ValueError (Malformed, JSON or
        UTF-8 errors) or RecursionError.
        """
        return self.check(self.read(data))

    def read(self, data: bytes | bytearray) -> dict[str, Any]:
        """A message's members, not checked yet. Raises as ``parse``."""
        if data[:1] == b"<":  # nginx can write to a socket by syslog only: RFC 3164's header, then the text
            data = data[data.find(b"{") :]
        if len(data) > _SHORT_BYTES and data.translate(_COMMAS).count(1) > MAX_VALUES:
            raise Malformed("too many values")
        message = self._object(data.decode())
        if not isinstance(message, dict):
            raise Malformed("not an object")
        return message

    def _object(self, text: str) -> Any:
        """As JSONDecoder.decode, which also searches for white space before and after."""
        if text[:1] == "{":
            message, end = self._raw_decode(text)
            if end == len(text):
                return message
        return self._decode(text)

    def columns(self, messages: list[dict[str, Any]]) -> tuple[Columns, int] | None:
        """The results of ``check`` as columns, and the sum of dropped decisions. None if a message is wrong or has a
        rare member: use ``check`` then. messages: all with the same members in the same order.
        """
        members = dict(zip(messages[0], zip(*(message.values() for message in messages), strict=True), strict=True))
        limiter, result = members.pop("limiter", ()), members.pop("result", ())
        if not (_all(limiter, str) and all(limiter) and _all(result, str) and _RESULTS.keys() >= set(result)):
            return None
        columns: Columns = {
            "limiter_id": [self._called(name) for name in limiter],
            "result": [_RESULTS[name] for name in result],
        }
        dropped = 0
        for name, values in members.items():
            least, *types = _NUMBERS.get(name, (0,))
            if types and _all(values, *types) and _within(values, least):
                columns[name] = values
            elif name == "key" and _all(values, str, int):
                columns[name] = [self._key(str(value)) for value in values]
            elif name == "dropped" and _all(values, int) and _within(values, 0, MOST_DROPPED):
                dropped = sum(values)
            elif name in _READ or name == "unlimited":
                return None
        return columns, dropped

    def check(self, message: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """As ``parse``, for a message's members."""
        limiter, result = message.get("limiter"), message.get("result")
        if not (isinstance(limiter, str) and limiter and isinstance(result, str) and result in _RESULTS):
            raise Malformed("limiter or result")
        values: dict[str, Any] = {"limiter_id": self._called(limiter), "result": _RESULTS[result]}
        dropped = 0
        unlimited = message.get("unlimited") is True or message.get("limit_per_s") == _UNLIMITED_PER_S
        if unlimited:
            values["unlimited"] = True
        for name in _READ.intersection(message):
            value = message[name]
            if value is None:
                continue
            if name in _WHOLE:
                values[name] = int(_number(value))
            elif name in _FRACTIONS:
                if not (unlimited and name == "limit_per_s"):
                    values[name] = _number(value, least=_FRACTIONS[name])
            elif name == "key":
                if type(value) not in (str, int):
                    raise Malformed("key")
                values["key"] = self._key(str(value))
            elif name in IDS:
                if not (isinstance(value, str) and IDS[name].fullmatch(value)):
                    raise Malformed(name)
                values[name] = value.encode()
            elif name in NAMES:
                if not isinstance(value, str):
                    raise Malformed(name)
                values[name] = _text(value, NAMES[name])
            elif name == "dropped":
                dropped = int(_number(value, most=MOST_DROPPED))
        return values, dropped


def _all(values: Sequence[Any], *types: type) -> bool:
    return bool(values) and set(map(type, values)) <= {*types}


def _within(values: Sequence[float], least: float, most: float = 2**63) -> bool:
    return all(map(isfinite, values)) and least <= min(values) and max(values) < most


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise Malformed("number")
    return int(text)


def _number(value: Any, least: float = 0, most: float = 2**63) -> float | int:
    """A finite number that fits 64 bits. Raises Malformed."""
    if (type(value) is int or (type(value) is float and isfinite(value))) and least <= value < most:
        return value
    raise Malformed("number")


def _text(value: str, most: int = 48) -> bytes:
    """UTF-8, as in any text column of the table."""
    return fitted(value.encode("utf-8", "replace"), most)


def _named(limiter: str) -> bytes:
    return _text(limiter, TABLE.by_name["limiter_id"].width)


def _hashed(key: str) -> bytes:
    """Keys come again and again; long ones are not kept."""
    return _hashed_before(key) if len(key) <= _KEPT_LENGTH else hashed(key.encode("utf-8", "surrogatepass"))


@lru_cache(_KEPT)
def _hashed_before(key: str) -> bytes:
    return hashed(key.encode("utf-8", "surrogatepass"))


def use_salt(salt: bytes) -> None:
    """Salts the keys that this process hashes from now on: equal keys have equal hashes, which cannot be guessed
    without the salt. Empty: no salt.
    """
    use_salt_digest(blake2b(salt, digest_size=32).digest() if salt else b"")


def salt_digest() -> bytes:
    """The salt's digest, for another process of the agent that hashes keys."""
    return _salt


def use_salt_digest(digest: bytes) -> None:
    """As ``use_salt``, with the result of ``salt_digest``."""
    global _salt
    _salt = digest
    _hashed_before.cache_clear()


def hashed(key: bytes) -> bytes:
    """8 bytes of BLAKE2b as hex, the stored form of a hashed key."""
    return blake2b(key, digest_size=8, key=_salt).hexdigest().encode()


KEYS: dict[str, Callable[[str], bytes]] = {"hashed": _hashed, "clear": _text}


def _no_constant(name: str) -> float:
    raise Malformed(name)
