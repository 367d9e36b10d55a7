"""Parses a function that the settings declare (``limiter_functions``). Pure. docs/limiters-reference.md describes each
key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agent.arch.registers import GO, SYSTEM_V, SYSTEM_V_RESULTS
from agent.common.settings import (
    Place,
    SettingError,
    ValueType,
    any_of,
    beside,
    check_known,
    json_schema,
    one_of,
    read,
    setting,
    text,
    value,
)
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
_WHERE = ("symbol", "address", "offset")


@dataclass(frozen=True)
class OwnFunction:
    """A declared function.

    program: a glob of its file's path, or of its name if it has no slash; build_id: an alternative to it. symbol,
    address (as nm prints it) or offset (in the file): one of them. arguments, results: words by meaning (``ARGUMENTS``,
    ``RESULTS``). replay: the model for replays; a number replaces a word that is not read.
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
    replay: Declared


def _matching(pattern: str, what: str) -> ValueType:
    def check(found: str) -> str:
        if not re.fullmatch(pattern, found, re.ASCII | re.DOTALL):
            raise ValueError(f"must be {what}")
        return found

    return text(what, check)


def _number(given: object) -> int:
    try:
        number = int(given, 0) if isinstance(given, str) else given
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 63:
        raise ValueError("must be a number, such as 0x1a2b0")
    return number


_NUMBER = value(_number, "a number", schema=lambda: any_of({"type": "integer", "minimum": 0}, {"type": "string"}))


def _places(names: Iterable[str]) -> ValueType:
    """A section that says where each of these is, in texts that ``_words`` reads once the language is known."""

    def read_all(given: Any, place: Place) -> Mapping[str, object]:
        if not isinstance(given, Mapping):
            raise place.wrong(given, "must be a section of `what: place` lines")
        check_known(given, names, place)
        return given

    return ValueType(
        read_all,
        "a section",
        schema=lambda: {
            "type": "object",
            "properties": {name: {"type": "string"} for name in names},
            "additionalProperties": False,
        },
    )


def _model(given: object) -> str:
    from agent.limiters.models.catalogue import MODELS
    from agent.limiters.replay.ruled import BY_ALGORITHM

    name = BY_ALGORITHM.get(given.lower(), given) if isinstance(given, str) else ""
    if name not in MODELS:
        raise ValueError(f"must be one of {', '.join(BY_ALGORITHM)}")
    return name


def _algorithms() -> dict[str, Any]:
    from agent.limiters.models.catalogue import MODELS
    from agent.limiters.replay.ruled import BY_ALGORITHM

    return {"enum": list(dict.fromkeys((*BY_ALGORITHM, *MODELS)))}


@dataclass(frozen=True)
class _Replay(Declared):
    model: str = setting("", value(_model, "an algorithm", schema=_algorithms), key="algorithm")


@dataclass(frozen=True)
class _Declaration:
    """As it is written."""

    name: str = setting("", _matching(r"[\w.:/-]{1,28}", "1 to 28 letters, digits and _ . : / -"))  # an id has 48 bytes
    program: str = setting("", _matching(".{1,512}", "the program's file, with * and ?, at most 512 characters"))
    build_id: str = setting("", _matching("[0-9a-f]{8,128}", "hexadecimal digits, as file or readelf -n prints them"))
    language: str = setting("", one_of(*LANGUAGES))
    symbol: str = setting("", _matching(r"[^\0]{1,1024}", "a function's name, as nm prints it"))
    address: int | None = setting(None, _NUMBER)
    offset: int | None = setting(None, _NUMBER)
    arguments: Mapping[str, object] = setting({}, _places(ARGUMENTS))
    results: Mapping[str, object] = setting({}, _places(RESULTS))
    codes: Mapping[str, object] = setting({}, ValueType(lambda given, _: given, "values", keys=lambda: meanings.CODES))
    replay: _Replay = setting(_Replay(), beside(_Replay))

    def check(self) -> None:
        for key, what in (("name", "name of the limiter"), ("language", f"one of {', '.join(LANGUAGES)}")):
            if not getattr(self, key):
                raise _wrong((), f"{key} is missing", f"{key}: {what}")
        if bool(self.program) == bool(self.build_id):
            raise _wrong(
                ("program",) if self.program else (),
                "either program or build_id" if self.program else "the program is not named",
                "program: its file, with * and ?; or build_id",
            )
        found = [key for key in _WHERE if getattr(self, key) not in ("", None)]
        if len(found) != 1:
            raise _wrong(
                (found[1],) if found else (),
                f"{' and '.join(found)} cannot be used together" if found else "the function is not named",
                "name one of symbol (as nm prints it), address and offset",
            )

    def own_function(self) -> OwnFunction:
        """Raises SettingError."""
        go = self.language == "go"
        arguments = _words("arguments", self.arguments, ARGUMENTS, GO if go else SYSTEM_V, "limiter" in self.arguments)
        results = _words("results", self.results, RESULTS, GO if go else SYSTEM_V_RESULTS, "limiter" in arguments)
        if "key_size" in arguments and "key" not in arguments:
            raise _wrong(("arguments", "key_size"), "there is no key", "say where the key's bytes are: key: si")
        if go and "key" in arguments and "key_size" not in arguments and not arguments["key"].type:
            raise _wrong(
                ("arguments", "key"),
                "a Go string has a length",
                "say where that is: key_size, the register behind the key's; or give the number's type, as in u64 bx",
            )
        self._check_limit(arguments, results)
        return OwnFunction(
            self.name,
            self.program,
            self.build_id,
            self.language,
            self.symbol,
            self.address,
            self.offset,
            arguments,
            results,
            _answers(self.codes, results),
            self.replay,
        )

    def _check_limit(self, arguments: Mapping[str, Word], results: Mapping[str, Word]) -> None:
        """A limit is one of a window."""
        if self.replay.window_ns or "window" in arguments or "window" in results:
            return
        sections = [name for name, words in (("arguments", arguments), ("results", results)) if "limit" in words]
        if sections or self.replay.count:
            keys = (*sections[:1], "limit")
            raise _wrong(
                keys, "the window is missing", "add window: 1s, or its place; or name the limit per_s or burst"
            )


def declaration_schema() -> dict[str, Any]:
    """JSON Schema of a declaration."""
    return {**json_schema(_Declaration), "required": ["name", "language"]}


def parse(given: object) -> OwnFunction:
    """Raises SettingError."""
    return read(_Declaration, given).own_function()


def _wrong(keys: tuple[str, ...], why: str, remedy: str) -> SettingError:
    return SettingError(keys, f"{'.'.join(keys)}: {why}" if keys else why, remedy=remedy)


def _words(
    section: str, texts: Mapping[str, object], names: Mapping[str, str], registers: tuple[str, ...], limiter: bool
) -> dict[str, Word]:
    found, taken = dict[str, Word](), dict[str, str]()
    for key, place in texts.items():
        try:
            word = parse_word(place, registers, limiter and key != "limiter", key in TIMED)
            if word.type[:1] == "f" and key in ("key", "key_size", "limiter", "result", "error"):
                raise WordError(f"{place!r} is a float", "name the type of a whole number")
        except WordError as error:
            raise _wrong((section, key), str(error), error.remedy) from None
        other = taken.setdefault(names[key], key)
        if other != key:
            raise _wrong((section, key), f"{other} is set, too", "a limit per window, or a rate per_s")
        found[key] = word
    return found


def _answers(given_codes: Mapping[str, object], results: Mapping[str, Word]) -> Meanings | None:
    word = results.get("result")
    if word is None:
        if given_codes:
            raise _wrong(
                (next(iter(given_codes)),),
                "it is a value of a result that is not declared",
                "say where it is: results: {result: bool ax}",
            )
        if "wait" not in results and "error" not in results:
            raise _wrong(
                ("results",),
                "the result is not declared",
                "results: {result: bool ax}; or wait, for a limiter that never refuses",
            )
        return None
    if not given_codes:
        if word.type == "bool":
            return meanings.BOOLEAN
        raise _wrong(
            ("results", "result"),
            "which of its values allow, and which refuse?",
            "allowed: 1 and refused: 0, or its type: bool ax",
        )
    try:
        return meanings.parse(given_codes)
    except ValueError as error:
        raise _wrong((next(iter(given_codes)),), str(error), "allowed: 1, refused: [0, 2], error: ..-1") from None
