"""Settings. Each part of the agent declares its own as a frozen dataclass, a *section*; ``setting`` makes its fields.
The keys of the file, the variables of the environment, the options of ``run``, the messages of mistakes and the
reference in docs/settings.md follow from these declarations.

A section that is made directly, as tests do, is not checked; ``read`` checks.
"""

from __future__ import annotations

import dataclasses
import math
import os
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agent.common.duration import parse_ns, span
from agent.errors import USAGE, AgentError

T = TypeVar("T")
Lines = Mapping[tuple[object, ...], int]


class SettingError(AgentError):
    """A setting that cannot be used. keys: those that lead to it."""

    def __init__(self, keys: tuple[object, ...], what: str, why: str = "", remedy: str = "") -> None:
        super().__init__(what, why=why, remedy=remedy, exit_code=USAGE)
        self.keys = keys


@dataclass(frozen=True)
class Place:
    """The place of a value: the keys that lead to it, and the file with the line of each key, if it is from a file."""

    keys: tuple[object, ...] = ()
    file: str = ""
    lines: Lines = field(default_factory=dict)

    @property
    def name(self) -> str:
        return ".".join(map(str, self.keys))

    @property
    def where(self) -> str:
        """``FILE:LINE`` of the innermost key that has a line; empty if none has."""
        known = (self.keys[:end] for end in range(len(self.keys), -1, -1))
        return next((f"{self.file}:{self.lines[keys]}" for keys in known if keys in self.lines), "")

    def below(self, *keys: object) -> Place:
        return dataclasses.replace(self, keys=(*self.keys, *keys))

    def error(self, what: str, why: str = "", remedy: str = "") -> SettingError:
        where = f"{self.where}: " if self.where else ""
        return SettingError(self.keys, f"{where}{what}", why, remedy)

    def wrong(self, value: object, why: str) -> SettingError:
        shown = f"{value:g}" if isinstance(value, float) else reprlib.repr(value)
        return self.error(f"{self.name} cannot be {shown}" if self.keys else f"there is {shown}", why)


TOP = Place()


def _frozen(data: Any) -> Any:
    return tuple(map(_frozen, data)) if isinstance(data, list) else data


@dataclass(frozen=True)
class ValueType:
    """A type of values.

    read: converts a given value; raises AgentError (exit code 2) that names the setting. form: the allowed values, for
    the reference. restore: the inverse of ``dataclasses.asdict`` and JSON. choices: the allowed words. metavar: in the
    help of an option. section: the dataclass of a part with keys of its own. keys: the keys of its section that a value
    spreads over, if it does; it is read from a mapping of these. environment: (given value, environment) -> both, for a
    value that more than one variable sets. shown: a value as the file has it.
    """

    read: Callable[[Any, Place], Any]
    form: str
    restore: Callable[[Any], Any] = _frozen
    choices: tuple[str, ...] = ()
    metavar: str = "TEXT"
    section: type | None = None
    keys: Callable[[], Iterable[str]] | None = None
    environment: Callable[[Mapping[str, Any], Mapping[str, str]], dict[str, Any]] | None = None
    shown: Callable[[Any], Any] = lambda value: value


def setting(
    default: Any, kind: ValueType, doc: str = "", *, key: str = "", variable: str = "", flag: bool = False
) -> Any:
    """A field of a section. doc: its description, one or two sentences. key: in the file, if the field has another
    name. variable: of the environment. flag: whether ``run`` has an option for it.
    """
    about = {"kind": kind, "doc": doc, "key": key, "variable": variable, "flag": flag}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=about)
    return field(default=default, metadata=about)


@dataclass(frozen=True)
class Setting:
    """A declared setting."""

    key: str
    name: str
    default: Any
    kind: ValueType
    doc: str
    variable: str
    flag: bool


def declared(section: type) -> Iterator[Setting]:
    """The settings of a section, in the order of its fields. A setting that spreads over several keys has no key."""
    for f in dataclasses.fields(section):
        if f.metadata:
            about = dict(f.metadata)
            key = "" if about["kind"].keys else about.pop("key") or f.name
            about.pop("key", None)
            default = f.default if f.default is not dataclasses.MISSING else {}
            yield Setting(key, f.name, default, **about)


def every(section: type) -> Iterator[Setting]:
    """The settings of a section and of the sections whose keys stand beside its own."""
    for one in declared(section):
        if one.key:
            yield one
        elif one.kind.section is not None:
            yield from every(one.kind.section)


def keys(section: type) -> Iterator[str]:
    for one in declared(section):
        yield from one.kind.keys() if one.kind.keys is not None else (one.key,)


def check_known(given: Iterable[object], known: Iterable[str], place: Place = TOP) -> None:
    """Raises AgentError for a key that is not among ``known``, and suggests the nearest one."""
    names = list(dict.fromkeys(known))
    for key in given:
        if key not in names:
            import difflib

            near = difflib.get_close_matches(str(key), names, 1)
            here = place.below(str(key))
            raise here.error(
                f"there is no setting {here.name if place.keys else reprlib.repr(key)}",
                f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}",
            )


def read(section: type[T], given: object, place: Place = TOP) -> T:
    """A section from a mapping. A key without a value has its default. Raises AgentError (exit code 2) with the
    setting, its value and the allowed values.

    A section's method ``check``, if it has one, checks several settings together: it raises AgentError or ValueError. A
    SettingError's keys begin at this section.
    """
    if not isinstance(given, Mapping):
        raise place.wrong(given, "must be a section of `key: value` lines")
    check_known(given, keys(section), place)
    values = {}
    for one in declared(section):
        if one.kind.keys is not None:
            known = set(one.kind.keys())
            own = {key: it for key, it in given.items() if key in known and it is not None}
            if own:
                values[one.name] = one.kind.read(own, place)
        elif given.get(one.key) is not None:
            values[one.name] = one.kind.read(given[one.key], place.below(one.key))
    made = section(**values)
    if (check := getattr(made, "check", None)) is not None:
        value(lambda _: check(), "").read(given, place)
    return made


def with_environment(section: type, given: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """The given values of a section, with those of the environment in their place."""
    out = dict(given)
    for one in declared(section):
        if one.kind.environment is not None and one.key:
            found = one.kind.environment(out.get(one.key) or {}, env)
            if found or one.key in out:
                out[one.key] = found
        elif one.kind.environment is not None:
            out = one.kind.environment(out, env)
        elif env.get(one.variable):
            out[one.key] = env[one.variable]
    return out


def restored(section: type[T], data: Mapping[str, Any]) -> T:
    """A section from the JSON of ``dataclasses.asdict``; not checked again."""
    kinds = {one.name: one.kind for one in declared(section)}
    return section(**{name: (kinds[name].restore if name in kinds else _frozen)(data[name]) for name in data})


def value(check: Callable[[Any], Any], form: str, **more: Any) -> ValueType:
    """A type by a function. check: converts a given value; raises ValueError (the allowed values) or AgentError."""

    def read(given: Any, place: Place) -> Any:
        try:
            return check(given)
        except ValueError as error:
            raise place.wrong(given, str(error)) from None
        except AgentError as error:
            keys = error.keys if isinstance(error, SettingError) else ()
            raise place.below(*keys).error(error.what, error.why, error.remedy) from error

    return ValueType(read, form, **more)


def number(least: float, most: float = math.inf) -> ValueType:
    """A finite number, also as text."""
    what = f"between {least:g} and {most:g}" if most < math.inf else f"a number of at least {least:g}"

    def check(given: Any) -> float:
        try:
            found = math.nan if isinstance(given, bool) else float(given)
        except (TypeError, ValueError, OverflowError):
            found = math.nan
        if not least <= found <= most or found == math.inf:
            raise ValueError(f"must be {what}")
        return found

    return value(check, f"{least:g} to {most:g}" if most < math.inf else f"at least {least:g}")


def whole(least: int, most: int) -> ValueType:
    """A whole number."""
    of = number(least, most)

    def read(given: Any, place: Place) -> int:
        found = of.read(given, place)
        if not found.is_integer():
            raise place.wrong(given, "must be a whole number")
        return int(found)

    return ValueType(read, f"{least} to {most}")


def parse_seconds(given: Any, least_s: float, most_s: float) -> float:
    """A duration; a number alone is seconds. Raises ValueError."""
    try:
        seconds = math.nan if isinstance(given, bool) else parse_ns(str(given), bare="s") / 1e9
    except ValueError:
        seconds = math.nan
    if not least_s <= seconds <= most_s:
        shortest, longest = (span(s * 1e9, "") for s in (least_s, most_s))
        raise ValueError(f"must be a time from {shortest} to {longest}, such as 64s or 5m")
    return seconds


def seconds(least_s: float, most_s: float) -> ValueType:
    return value(
        lambda given: parse_seconds(given, least_s, most_s), "a time such as 64s or 5m", shown=lambda s: f"{s:g}s"
    )


def one_of(*allowed: str, late: Callable[[], Iterable[str]] = tuple) -> ValueType:
    """One of some words. late: further words, computed when a value is read. YAML reads a bare on or off as a bool."""

    def check(given: Any) -> str:
        words = (*allowed, *late())
        given = {True: "on", False: "off"}[given] if isinstance(given, bool) else given
        found = given if given in words else str(given).lower()
        if found not in words or not isinstance(given, str):
            raise ValueError(f"must be one of {', '.join(words)}")
        return found

    return value(check, " | ".join(allowed), choices=allowed)


def flag() -> ValueType:
    def check(given: Any) -> bool:
        if given is not True and given is not False:
            raise ValueError("must be true or false")
        return given

    return value(check, "true | false")


def parse_text(given: Any, what: str) -> str:
    """A text without lone surrogates. Raises ValueError (must be ``what``)."""
    if not isinstance(given, str) or any("\ud800" <= letter <= "\udfff" for letter in given):
        raise ValueError(f"must be {what}")
    return given


def text(what: str, check: Callable[[str], Any] = lambda found: found) -> ValueType:
    """A text. what: its description, for example ``a URL``. check: text -> value; raises as in ``value``."""
    return value(lambda given: check(parse_text(given, what)), what)


def private(what: str, check: Callable[[Any], Any]) -> ValueType:
    """A value of which no message has anything: there may be a password in it. check: as in ``value``."""

    def read(given: Any, place: Place) -> Any:
        try:
            return check(given)
        except ValueError as error:
            raise place.error(f"{place.name} cannot be used", str(error)) from None
        except AgentError as error:
            raise place.error(error.what, error.why, error.remedy) from error

    return ValueType(read, what)


def private_text(what: str, check: Callable[[str], Any] = lambda found: found) -> ValueType:
    """As ``text``, but a message does not have the value."""
    return private(what, lambda given: check(parse_text(given, what)))


def parse_texts(given: Any, what: str, most: int = 256) -> tuple[str, ...]:
    items = [given] if isinstance(given, str) else given
    if not isinstance(items, (list, tuple)) or len(items) > most:
        raise ValueError(f"must be {what}")
    if not all(isinstance(item, str) and item for item in items):
        raise ValueError(f"must be {what}")
    return tuple(items)


def texts(what: str, most: int = 256) -> ValueType:
    """A text, or a list of texts."""
    return value(lambda given: parse_texts(given, what, most), what)


def directory(most_bytes: int) -> ValueType:
    """The path of a directory."""
    what = f"the path of a directory, at most {most_bytes} bytes long"

    def check(given: str) -> str:
        if not 0 < len(os.fsencode(given)) <= most_bytes or "\0" in given:
            raise ValueError(f"must be {what}")
        return given

    return dataclasses.replace(text(what, check), metavar="DIRECTORY")


def part(section: type) -> ValueType:
    """A section with keys of its own."""
    return ValueType(
        lambda given, place: read(section, given, place),
        "a section",
        lambda data: restored(section, data),
        section=section,
        environment=lambda given, env: with_environment(section, given, env),
    )


def beside(section: type) -> ValueType:
    """A section whose keys stand among those of the section that it is in."""
    return dataclasses.replace(part(section), keys=lambda: keys(section))


def by_name(kind: ValueType, most: int, form: str) -> ValueType:
    """A mapping of names that the user chooses to values of one kind."""

    def read_all(given: Any, place: Place) -> dict[str, Any]:
        if not isinstance(given, Mapping):
            raise place.wrong(given, "must be a section of `key: value` lines")
        if len(given) > most:
            raise place.error(f"{place.name} has {len(given)} entries", f"at most {most} are allowed")
        return {str(name): kind.read(one, place.below(str(name))) for name, one in given.items()}

    return ValueType(read_all, form, lambda data: {name: kind.restore(one) for name, one in data.items()})
