"""All errors in the settings that ``run`` would use, and warnings: ``tickscope config check``. Reads only."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from agent.common.settings import TOP, Examination, Place, SettingError, ValueType, described, read
from agent.config import Config, Given, value_at
from agent.errors import AgentError
from agent.posix import privilege

ERROR, WARNING = "error", "warning"
_OTHERS_READ = 0o004


class SettingProblem(NamedTuple):
    """severity: error or warning. where: ``FILE:LINE``, or a variable of the environment. setting: empty if it is not
    about one.
    """

    severity: str
    where: str
    setting: str
    what: str
    why: str = ""
    remedy: str = ""


def check(path: Path, required: bool, env: Mapping[str, str]) -> list[SettingProblem]:
    """The problems of a file and of the environment, by line. required: the file must exist. Raises AgentError (exit
    code 2) if the file cannot be read.
    """
    examination = Examination()
    try:
        given = Given.read(path, required, examination)
        read(Config, given.values, given.place)
    except SettingError as error:  # what is not YAML has no values
        examination.errors.append(error)
        given = Given({}, TOP)
    wrong = [_problem(error, str(path)) for error in examination.errors]
    given = dataclasses.replace(given, env=env, values={} if wrong else given.values)
    found = [*wrong, *_of_environment(given, examination)]
    for place, kind, value in examination.named:
        where = place.where or given.source(place.keys)
        found += (
            SettingProblem(severity, where, place.name, *why) for severity, *why in _of_file(place.name, kind, value)
        )
    if not wrong:
        found += _of_mode(path, given)
    return sorted(dict.fromkeys(found), key=_line)


def _problem(error: SettingError, where: str) -> SettingProblem:
    """where: if the error has no line."""
    name = ".".join(map(str, error.keys))
    return SettingProblem(ERROR, error.where or where, name, error.problem, error.why, error.remedy)


def _line(one: SettingProblem) -> int:
    """What has no line comes last."""
    line = one.where.rpartition(":")[2]
    return int(line) if line.isdigit() else 1 << 30


def _of_environment(given: Given, examination: Examination) -> Iterator[SettingProblem]:
    """given: with the file's values, if all of these are right."""
    merged = given.merged
    if merged == given.values:
        return
    if given.values:
        examination.named.clear()  # read again, with those of the environment
    own = Examination(named=examination.named)
    read(Config, merged, Place(examination=own))
    for error in own.errors:
        yield _problem(error, given.source(error.keys))


def _of_file(name: str, kind: ValueType, value: Any) -> Iterator[tuple[str, str, str, str]]:
    """(severity, what, why, remedy) of a file that a setting names."""
    path = value if isinstance(value, str) else value[0]
    user = privilege.USER if os.geteuid() == 0 and not kind.by_root else ""
    as_user = privilege.acting_as(*privilege.known_user()) if user else nullcontext()
    assert kind.opened is not None
    try:
        with as_user:
            kind.opened(value)
    except AgentError as error:
        if isinstance(error.__cause__, PermissionError) and os.geteuid() != 0:
            yield WARNING, f"{name} was not checked: {path}", str(error.__cause__.strerror), "run this command as root"
        else:
            yield ERROR, error.what, error.why, error.remedy
    except PermissionError as error:
        if user:
            remedy = f"chgrp {user} {path}; chmod g+r {path}; and let the group enter its directories"
            yield ERROR, f"{name} cannot be used: {path}", f"user {user}: {error.strerror}", remedy
        else:
            yield WARNING, f"{name} was not checked: {path}", str(error.strerror), "run this command as root"
    except OSError as error:
        yield ERROR, f"{name} cannot be used: {path}", str(error.strerror), ""
    else:
        if kind.secret and _others_read(path):
            yield WARNING, f"{name}: all users can read {path}", "", f"chgrp {privilege.USER} {path}; chmod 640 {path}"


def _others_read(path: str | Path) -> bool:
    try:
        return bool(os.stat(path).st_mode & _OTHERS_READ)
    except OSError:
        return False


def _of_mode(path: Path, given: Given) -> Iterator[SettingProblem]:
    leaves = ((keys, one.kind) for keys, one in described(Config) if one.kind.section is None)
    secret = [keys for keys, kind in leaves if _has_secret(kind, given, keys)]
    if secret and _others_read(path):
        names = ", ".join(".".join(keys) for keys in secret)
        yield SettingProblem(
            WARNING,
            str(path),
            "",
            f"all users can read {path}",
            f"it has passwords or tokens: {names}",
            f"chgrp {privilege.USER} {path}; chmod 640 {path}",
        )


def _has_secret(kind: ValueType, given: Given, keys: tuple[str, ...]) -> bool:
    value = value_at(keys, given.values)
    return bool(value) and bool(kind.masked(value) != value)
