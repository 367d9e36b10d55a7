"""One decision that a program reports: a JSON object, checked and converted to columns of
``limiter_decision``. Pure.
"""

from __future__ import annotations

import json
import re
from _blake2 import blake2b  # hashlib would load OpenSSL
from collections.abc import Callable
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
IDS = {"trace_id": re.compile(r"[0-9a-f]{32}"), "span_id": re.compile(r"[0-9a-f]{16}")}
#: Columns about the deciding library, with their sizes in bytes.
NAMES = {"library": 48, "library_version": 24}
#: More than a program can have dropped between two messages.
_MOST_DROPPED = 1 << 31
_salt = b""
_RESULTS = {name: code for code, name in enumerate(TABLE.by_name["result"].names)}


class Malformed(ValueError):
    """A message that is not a valid decision."""


class Decoder:
    """keys: ``hashed`` stores 8 bytes of BLAKE2b as hex, ``clear`` the key itself, as in its column. called: a
    limiter's id, as in its column.
    """

    def __init__(self, keys: str, called: Callable[[str], bytes] | None = None) -> None:
        self.store_keys(keys)
        self._called = called or _named
        self._decode = json.JSONDecoder(parse_constant=_no_constant).decode

    def store_keys(self, keys: str) -> None:
        """Sets how keys are stored from now on."""
        self._key = KEYS[keys]

    def parse(self, data: bytes | bytearray) -> tuple[dict[str, Any], int]:
        """(columns, number of decisions that the sender dropped before this one). Raises ValueError (Malformed, JSON or
        UTF-8 errors) or RecursionError.
        """
        if data[:1] == b"<":  # nginx can write to a socket by syslog only: RFC 3164's header, then the text
            data = data[data.find(b"{") :]
        message = self._decode(data.decode())
        if not isinstance(message, dict):
            raise Malformed("not an object")
        limiter, result = message.get("limiter"), message.get("result")
        if not (isinstance(limiter, str) and limiter and isinstance(result, str) and result in _RESULTS):
            raise Malformed("limiter or result")
        values: dict[str, Any] = {"limiter_id": self._called(limiter), "result": _RESULTS[result]}
        dropped = 0
        unlimited = message.get("unlimited") is True or message.get("limit_per_s") == _UNLIMITED_PER_S
        if unlimited:
            values["unlimited"] = True
        for name, value in message.items():
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
                dropped = int(_number(value, most=_MOST_DROPPED))
        return values, dropped


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
    return hashed(key.encode("utf-8", "surrogatepass"))


def use_salt(salt: bytes) -> None:
    """Salts the keys that this process hashes from now on: equal keys have equal hashes, which cannot be guessed
    without the salt. Empty: no salt.
    """
    global _salt
    _salt = blake2b(salt, digest_size=32).digest() if salt else b""


def salt_digest() -> bytes:
    """The salt's digest, for another process of the agent that hashes keys."""
    return _salt


def use_salt_digest(digest: bytes) -> None:
    """As ``use_salt``, with the result of ``salt_digest``."""
    global _salt
    _salt = digest


def hashed(key: bytes) -> bytes:
    """8 bytes of BLAKE2b as hex, the stored form of a hashed key."""
    return blake2b(key, digest_size=8, key=_salt).hexdigest().encode()


KEYS: dict[str, Callable[[str], bytes]] = {"hashed": _hashed, "clear": _text}


def _no_constant(name: str) -> float:
    raise Malformed(name)
