"""Parses a function that the settings declare (``limiter_functions``). Pure. docs/limiters-reference.md describes each
key.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from agent.arch.registers import GO, SYSTEM_V, SYSTEM_V_RESULTS
from agent.common.settings import read
from agent.errors import USAGE, AgentError
from agent.limiters.functions import meanings
from agent.limiters.functions.meanings import Meanings
from agent.limiters.functions.words import Word, WordError
from agent.limiters.functions.words import parse as parse_word
from agent.limiters.library import LANGUAGES
from agent.limiters.model_settings import Declared

#: What may be read at the first instruction and at the return -> the member of ``struct limiter_decision`` for it
#: (agent/limiters/library.py).
ARGUMENTS = {
    "limiter": "limiter",
    "key": "key",
    "key_size": "key_size",
    "cost": "n",
    "now": "now_ext",
    "limit": "limit",
    "per_s": "limit",
    "burst": "burst",
    "window": "period",
}
RESULTS = {
    "result": "granted",
    "wait": "wait",
    "remaining": "tokens",
    "limit": "limit",
    "per_s": "limit",
    "burst": "burst",
    "window": "period",
    "error": "error",
}
#: A key that is a number is not a pointer, so it uses another member.
NUMBER = "now_wall"
TIMED = ("wait", "window", "now")
REPLAY = ("algorithm", "clock", "window", "limit", "per_s", "burst", "slots", "shared")
KEYS = (
    "name",
    "program",
    "build_id",
    "language",
    "symbol",
    "address",
    "offset",
    "arguments",
    "results",
    *meanings.CODES,
    *REPLAY,
)
#: A limiter's id has 48 bytes, including its address.
_NAME = re.compile(r"[\w.:/-]{1,28}", re.A)
_WHERE = ("symbol", "address", "offset")
_MOST_SYMBOL, _MOST_PROGRAM = 1024, 512


class MisdeclaredError(AgentError):
    """at: the keys from the declaration down to the error."""

    def __init__(self, at: tuple[str, ...], why: str, remedy: str = "") -> None:
        super().__init__(f"{'.'.join(at)}: {why}" if at else why, remedy=remedy, exit_code=USAGE)
        self.at = at


@dataclass(frozen=True)
class OwnFunction:
    """A declared function.

    program: a glob of its file's path, or of its name if it has no slash; build_id: an alternative to it. symbol,
    address (as nm prints it) or offset (in the file): one of them. arguments, results: words by meaning (``ARGUMENTS``,
    ``RESULTS``). replay: of ``REPLAY``, the model for replays; a number replaces a word that is not read.
    """

    name: str
    program: str
    build_id: str
    language: str
    symbol: str
    address: int | None
    offset: int | None
    arguments: Mapping[str, Word]
    results: Mapping[str, Word]
    answers: Meanings | None
    replay: Mapping[str, object]


def parse(given: object) -> OwnFunction:
    """Parses a declaration. Raises MisdeclaredError."""
    if not isinstance(given, Mapping):
        raise MisdeclaredError(
            (), f"{given!r} is no declaration", "write `key: value` lines: name, program, language, symbol, results"
        )
    _known((), given, KEYS)
    name = _text(given, "name", "what the limiter is to be called", _NAME, "1 to 28 letters, digits and _ . : / -")
    language = _text(given, "language", f"one of {', '.join(LANGUAGES)}")
    if language not in LANGUAGES:
        raise MisdeclaredError(("language",), f"{language!r} is not known", f"one of {', '.join(LANGUAGES)}")
    program, build_id = _program(given)
    found = [key for key in _WHERE if key in given]
    if len(found) != 1:
        raise MisdeclaredError(
            (found[1],) if found else (),
            f"{' and '.join(found)} exclude one another" if found else "nothing says which function it is",
            "name one of symbol (as nm prints it), address and offset",
        )
    symbol = _text(given, "symbol", "a function's name, as nm prints it") if found == ["symbol"] else ""
    if len(symbol) > _MOST_SYMBOL or "\0" in symbol:
        raise MisdeclaredError(
            ("symbol",), "it is longer than any function's name", f"at most {_MOST_SYMBOL} characters"
        )
    go = language == "go"
    arguments = _words(
        given, "arguments", ARGUMENTS, GO if go else SYSTEM_V, limiter="limiter" in _section(given, "arguments")
    )
    results = _words(given, "results", RESULTS, GO if go else SYSTEM_V_RESULTS, limiter="limiter" in arguments)
    if "key_size" in arguments and "key" not in arguments:
        raise MisdeclaredError(("arguments", "key_size"), "there is no key", "say where the key's bytes are: key: si")
    if go and "key" in arguments and "key_size" not in arguments and not arguments["key"].type:
        raise MisdeclaredError(
            ("arguments", "key"),
            "a Go string has a length",
            "say where that is: key_size, the register behind the key's; or give the number's type, as in u64 bx",
        )
    _limited(given, arguments, results)
    return OwnFunction(
        name,
        program,
        build_id,
        language,
        symbol,
        _number(given, "address"),
        _number(given, "offset"),
        arguments,
        results,
        _answers(given, results),
        _replay(given),
    )


def _limited(given: Mapping[str, object], *sections: Mapping[str, Word]) -> None:
    """Checks that a limit has a window."""
    places: list[tuple[str, ...]] = [
        (name, "limit") for name, words in zip(("arguments", "results"), sections, strict=True) if "limit" in words
    ]
    if "limit" in given:
        places.append(("limit",))
    if places and "window" not in given and not any("window" in words for words in sections):
        raise MisdeclaredError(places[0], "in which time?", "window: 1s, or where that lies; or call it per_s or burst")


def _program(given: Mapping[str, object]) -> tuple[str, str]:
    program = _text(given, "program", "the program's file, with * and ?") if "program" in given else ""
    build_id = (
        _text(given, "build_id", "as file or readelf -n prints it", re.compile("[0-9a-f]{8,128}"), "hexadecimal digits")
        if "build_id" in given
        else ""
    )
    if bool(program) == bool(build_id) or len(program) > _MOST_PROGRAM:
        raise MisdeclaredError(
            ("program",) if program else (),
            "nothing says which program it is in" if not program else "either program or build_id",
            f"program: its file, with * and ?, at most {_MOST_PROGRAM} characters; or build_id",
        )
    return program, build_id


def _known(at: tuple[str, ...], keys: Mapping[str, object], names: tuple[str, ...]) -> None:
    for key in keys:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, 1)
            raise MisdeclaredError(
                (*at, str(key)),
                "there is no such key",
                f"did you mean {near[0]}?" if near else f"known: {', '.join(dict.fromkeys(names))}",
            )


def _text(
    given: Mapping[str, object], key: str, what: str, pattern: re.Pattern[str] | None = None, allowed: str = ""
) -> str:
    value = given.get(key)
    if value is None:
        raise MisdeclaredError((), f"{key} is missing", f"{key}: {what}")
    if not isinstance(value, str) or not value or (pattern and not pattern.fullmatch(value)):
        raise MisdeclaredError(
            (key,),
            f"it cannot be {value!r}",
            f"it is {allowed or what}" + ("" if isinstance(value, str) else ", in quotes"),
        )
    return value


def _number(given: Mapping[str, object], key: str) -> int | None:
    value = given.get(key)
    if value is None:
        return None
    try:
        number = (
            int(value, 0)
            if isinstance(value, str)
            else -1
            if isinstance(value, bool) or not isinstance(value, int)
            else value
        )
    except ValueError:
        number = -1
    if not 0 <= number < 1 << 63:
        raise MisdeclaredError((key,), f"it cannot be {value!r}", "a number, as in 0x1a2b0")
    return number


def _section(given: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = given.get(key, {})
    if not isinstance(value, Mapping):
        raise MisdeclaredError((key,), f"it cannot be {value!r}", "it is a section of `what: place` lines")
    return value


def _words(
    given: Mapping[str, object], section: str, names: Mapping[str, str], registers: tuple[str, ...], limiter: bool
) -> dict[str, Word]:
    found, taken = dict[str, Word](), dict[str, str]()
    texts = _section(given, section)
    _known((section,), texts, tuple(names))
    for key, text in texts.items():
        try:
            word = parse_word(text, registers, limiter and key != "limiter", key in TIMED)
            if word.type[:1] == "f" and key in ("key", "key_size", "limiter", "result", "error"):
                raise WordError(f"{text!r} is a float", "name the type of a whole number")
        except WordError as error:
            raise MisdeclaredError((section, key), str(error), error.remedy) from None
        other = taken.setdefault(names[key], key)
        if other != key:
            raise MisdeclaredError((section, key), f"{other} is there, too", "a limit per window, or a rate per_s")
        found[key] = word
    return found


def _answers(given: Mapping[str, object], results: Mapping[str, Word]) -> Meanings | None:
    given_codes = {key: given[key] for key in meanings.CODES if key in given}
    word = results.get("result")
    if word is None:
        if given_codes:
            raise MisdeclaredError(
                (next(iter(given_codes)),),
                "there is no result that could have that value",
                "say where it is: results: {result: bool ax}",
            )
        if "wait" not in results and "error" not in results:
            raise MisdeclaredError(
                ("results",) if "results" in given else (),
                "nothing says what was decided",
                "results: {result: bool ax}; or wait, for a limiter that never refuses",
            )
        return None
    if not given_codes:
        if word.type == "bool":
            return meanings.BOOLEAN
        raise MisdeclaredError(
            ("results", "result"),
            "which of its values allow, and which refuse?",
            "allowed: 1 and refused: 0, or its type: bool ax",
        )
    try:
        return meanings.parse(given_codes)
    except ValueError as error:
        raise MisdeclaredError(
            (next(iter(given_codes)),), str(error), "allowed: 1, refused: [0, 2], error: ..-1"
        ) from None


def _replay(given: Mapping[str, object]) -> dict[str, object]:
    """The checked model, with the keys of ``limiter_models``."""
    from agent.limiters.replay.ruled import BY_ALGORITHM

    given_codes = {key: given[key] for key in REPLAY if key in given}
    if "algorithm" in given_codes:
        algorithm = given_codes.pop("algorithm")
        given_codes["model"] = (
            BY_ALGORITHM.get(algorithm.lower(), algorithm) if isinstance(algorithm, str) else algorithm
        )
    for key, value in given_codes.items():
        try:
            read(Declared, {key: value})
        except AgentError as error:
            shown = "algorithm" if key == "model" else key
            raise MisdeclaredError((shown,), f"it cannot be {value!r}", error.why) from None
    return given_codes
