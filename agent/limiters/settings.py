"""The settings of limiters: their names, how keys are stored, algorithms of unknown libraries, and functions of the
user's own.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.common.settings import Place, ValueType, by_name, naming_file, one_of, part, setting, text
from agent.errors import USAGE, AgentError
from agent.limiters.model_settings import Declared

if TYPE_CHECKING:
    from agent.limiters.functions.settings import FunctionSettings

MOST, _MOST_NAME, _MOST_PATH = 256, 64, 4095
#: Minimal bytes of a salt: a shorter one could be guessed.
LEAST_SALT, MOST_SALT = 16, 4096
_REMEDY = "make one: head -c 32 /dev/urandom | base64 > FILE; chmod 600 FILE; and copy it to every node"
#: Above this many probe hits per second, a program is sampled (agent/instruments/limiters/limiter_sampling.py). A
#: decision is two hits, which cost a thread about 5 % of its time (20 us per decision).
HITS_PER_S = 8_000


def _functions(given: object, place: Place) -> tuple[FunctionSettings, ...]:
    from agent.limiters.functions.settings import entries

    return entries(given, place)


def _functions_schema() -> dict[str, Any]:
    from agent.limiters.functions.settings import entries_schema

    return entries_schema()


def _restored(data: list[dict[str, Any]]) -> tuple[FunctionSettings, ...]:
    if not data:  # without declarations, their parser is not loaded
        return ()
    from agent.limiters.functions.settings import FunctionSettings

    return tuple(FunctionSettings(**one) for one in data)


def _name(given: str) -> str:
    if not 0 < len(given.encode("utf-8", "replace")) <= _MOST_NAME or not given.isprintable():
        raise ValueError(f"must be a name of 1 to {_MOST_NAME} bytes without control characters")
    return given


def _salt(path: str) -> str:
    if path and not (path.startswith("/") and len(os.fsencode(path)) <= _MOST_PATH and "\0" not in path):
        raise ValueError("must be the absolute path of a file that has the salt, never the salt itself")
    return path


def read_salt(path: str) -> bytes:
    """The content of the file, without white space around it; empty without a path. Raises AgentError (exit code 2) if
    other users may read it, too.
    """
    if not path:
        return b""
    what = f"cannot read key_salt from {path}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            data = os.read(fd, MOST_SALT + 1) if stat.S_ISREG(found.st_mode) else b""
        finally:
            os.close(fd)
    except OSError as error:
        raise AgentError(what, why=str(error.strerror), remedy=_REMEDY, exit_code=USAGE) from error
    if found.st_mode & 0o077 or found.st_uid:
        problem = (
            f"its owner is {found.st_uid} and its mode {stat.S_IMODE(found.st_mode):04o}; whoever has the salt can"
            " guess hashed keys"
        )
        raise AgentError(what, why=problem, remedy=f"chown root {path}; chmod 600 {path}", exit_code=USAGE)
    salt = data.strip()
    if not LEAST_SALT <= len(salt) <= MOST_SALT:
        raise AgentError(
            what, why=f"a salt must have {LEAST_SALT} to {MOST_SALT} bytes", remedy=_REMEDY, exit_code=USAGE
        )
    return salt


@dataclass(frozen=True)
class LimiterSettings:
    """hits_per_s is no setting; tests change it."""

    intake_keys: str = setting("hashed", one_of("hashed", "clear"), "how keys of reported decisions are stored")
    limiter_models: Mapping[str, Declared] = setting(
        {},
        by_name(part(Declared), MOST, f"at most {MOST} sections by a limiter's id"),
        "algorithms of limiters, by id, if the library does not reveal them: {'checkout*': {model: sliding window of"
        " slots, clock: wall, window: 1s, slots: 10, limit: 100}}, also per_s, burst, shared; for `limiters"
        " replay`; see docs/limiters-replay.md",
    )
    limiter_functions: tuple[FunctionSettings, ...] = setting(
        (),
        ValueType(_functions, "a list of declarations", _restored, schema=_functions_schema),
        "limiters of your own programs in Go, C, C++ and Rust: [{name: checkout, program: /srv/shop, language: go,"
        " symbol: ...}]; see docs/limiters-declare.md",
    )
    limiter_names: Mapping[str, str] = setting(
        {},
        by_name(text("a name", _name), MOST, f"at most {MOST} names by a limiter's id"),
        "names of limiters, by id or by the full name of the calling function: {'shop:*@shop/api.*Pay': pay}",
    )
    key_salt: str = setting(
        "",
        naming_file(text("the path of a file", _salt), read_salt, by_root=True),
        "absolute path of a file with a salt for the hashes of keys; owner root, mode 0600. Nodes with the same salt"
        " have the same hashes; see docs/limiters-names.md",
    )
    hits_per_s: int = HITS_PER_S
