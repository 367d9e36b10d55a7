"""Settings. Each part of the agent declares its own as a frozen dataclass, a *section*; ``setting`` makes its fields.
The keys of the file, the variables of the environment, the options of ``run``, the messages of mistakes, the commands
``config``, the JSON schema and the reference in docs/settings.md follow from these declarations.

A section that is made directly, as tests do, is not checked; ``read`` checks.
"""

from __future__ import annotations

import dataclasses
import math
import os
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agent.common.duration import WRITTEN, parse_ns, span
from agent.common.masked import masked
from agent.errors import USAGE, AgentError

T = TypeVar("T")
Lines = Mapping[tuple[object, ...], int]


class SettingError(AgentError):
    """A setting that cannot be used. keys: those that lead to it. where: what sets it, ``FILE:LINE``, a variable or a
    flag; empty if unknown. problem: the message without it.
    """

    def __init__(
        self, keys: tuple[object, ...], what: str, why: str = "", remedy: str = "", *, where: str = ""
    ) -> None:
        super().__init__(f"{where}: {what}" if where else what, why=why, remedy=remedy, exit_code=USAGE)
        self.keys, self.where, self.problem = keys, where, what


@dataclass
class Examination:
    """What ``read`` finds if it does not end at the first error. named: the values that name a file, with their places
    and types.
    """

    errors: list[SettingError] = field(default_factory=list)
    named: list[tuple[Place, ValueType, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """The place of a value: the keys that lead to it, and the file with the line of each key, if it is from a file.
    examination: takes the errors, so that the other values are read, too; None: the first error is raised.
    """

    keys: tuple[object, ...] = ()
    file: str = ""
    lines: Lines = field(default_factory=dict)
    examination: Examination | None = None

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
        return SettingError(self.keys, what, why, remedy, where=self.where)

    @contextmanager
    def continuing(self) -> Iterator[None]:
        """Hands a SettingError of the block to the examination, if there is one."""
        try:
            yield
        except SettingError as error:
            if self.examination is None:
                raise
            self.examination.errors.append(error)

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
    value that more than one variable sets. shown: a value as the file has it. masked: the same without secrets.
    settings: those that stand for its keys, if these have a type each. schema: JSON Schema of what the file may have,
    where that can be said; ``read`` may refuse more.

    opened: opens the file that a value names; raises OSError or AgentError if the agent could not use it. by_root: the
    agent does so while it is root, else as its own user. secret: others must not read the file.
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
    masked: Callable[[Any], Any] = masked
    settings: Callable[[], Iterable[Setting]] | None = None
    schema: Callable[[], dict[str, Any]] = dict
    opened: Callable[[Any], object] | None = None
    by_root: bool = False
    secret: bool = False


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
    variable: str = ""
    flag: bool = False

    @property
    def shown(self) -> Any:
        """The default as the file has it; empty for none."""
        shown = self.kind.shown(self.default)
        return list(shown) if isinstance(shown, tuple) else "" if shown is None else shown


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


def described(section: type, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Setting]]:
    """Each setting of a section and of the sections in it that has a description, with the keys that lead to it. A
    section with keys of its own comes before its settings.
    """
    for one in declared(section):
        here = (*before, one.key) if one.key else before
        if one.kind.settings is not None:
            yield from (((*here, each.key), each) for each in one.kind.settings())
        else:
            if one.key and one.doc:
                yield here, one
            if one.kind.section is not None:
                yield from described(one.kind.section, here)


def check_known(given: Iterable[object], known: Iterable[str], place: Place = TOP) -> None:
    """Raises AgentError for a key that is not among ``known``, and suggests the nearest one."""
    names = list(dict.fromkeys(known))
    for key in given:
        if key not in names:
            import difflib

            near = difflib.get_close_matches(str(key), names, 1)
            here = place.below(str(key))
            with place.continuing():
                raise here.error(
                    f"there is no setting {here.name if place.keys else reprlib.repr(key)}",
                    f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}",
                )


def read(section: type[T], given: object, place: Place = TOP) -> T:
    """A section from a mapping. A key without a value has its default. Raises AgentError (exit code 2) with the
    setting, its value and the allowed values.

    A section's method ``check``, if it has one, checks several settings together: it raises AgentError or ValueError. A
    SettingError's keys begin at this section. With an examination, a setting with an error has its default, and such a
    section is not checked.
    """
    if not isinstance(given, Mapping):
        raise place.wrong(given, "must be a section of `key: value` lines")
    examination = place.examination or Examination()
    before = len(examination.errors)
    check_known(given, keys(section), place)
    values = {}
    for one in declared(section):
        with place.continuing():
            if one.kind.keys is not None:
                known = set(one.kind.keys())
                own = {key: it for key, it in given.items() if key in known and it is not None}
                if own:
                    values[one.name] = one.kind.read(own, place)
            elif given.get(one.key) is not None:
                here = place.below(one.key)
                values[one.name] = one.kind.read(given[one.key], here)
                if one.kind.opened is not None and values[one.name]:
                    examination.named.append((here, one.kind, values[one.name]))
    made = section(**values)
    if len(examination.errors) == before and (check := getattr(made, "check", None)) is not None:
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


def json_schema(section: type) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a section."""
    properties = dict[str, Any]()
    for one in declared(section):
        if one.kind.settings is not None:
            properties |= {each.key: _property(each) for each in one.kind.settings()}
        elif one.kind.keys is not None and one.kind.section is not None:
            properties |= json_schema(one.kind.section)["properties"]
        elif one.kind.keys is not None:
            properties |= dict[str, Any].fromkeys(one.kind.keys(), True)
        else:
            properties[one.key] = _property(one)
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _property(one: Setting) -> dict[str, Any]:
    """A key without a value is valid: it has its default."""
    schema = one.kind.schema()
    if "type" in schema:
        types = schema["type"]
        schema["type"] = [*([types] if isinstance(types, str) else types), "null"]
    for words in ("enum", "anyOf"):
        if words in schema:
            schema[words] = [*schema[words], None if words == "enum" else {"type": "null"}]
    about = {"description": one.doc} if one.doc else {}
    return {**about, **schema} if one.kind.section is not None else {**about, "default": one.shown, **schema}


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
    bounded = most < math.inf
    what = f"between {least:.15g} and {most:.15g}" if bounded else f"a number of at least {least:.15g}"
    form = f"{least:.15g} to {most:.15g}" if bounded else f"at least {least:.15g}"

    def check(given: Any) -> float:
        try:
            found = math.nan if isinstance(given, bool) else float(given)
        except (TypeError, ValueError, OverflowError):
            found = math.nan
        if not least <= found <= most or found == math.inf:
            raise ValueError(f"must be {what}")
        return found

    schema = {"type": "number", "minimum": least, **({"maximum": most} if bounded else {})}
    return value(check, form, schema=lambda: dict(schema))


def whole(least: int, most: int) -> ValueType:
    """A whole number."""
    of = number(least, most)

    def read(given: Any, place: Place) -> int:
        found = of.read(given, place)
        if not found.is_integer():
            raise place.wrong(given, "must be a whole number")
        return int(found)

    return ValueType(read, f"{least} to {most}", schema=lambda: {"type": "integer", "minimum": least, "maximum": most})


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
        lambda given: parse_seconds(given, least_s, most_s),
        "a time such as 64s or 5m",
        shown=lambda s: f"{s:g}s",
        schema=lambda: any_of(
            {"type": "number", "minimum": least_s, "maximum": most_s}, {"type": "string", "pattern": f"^({WRITTEN})$"}
        ),
    )


def any_of(*schemas: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": list(schemas)}


def one_of(*allowed: str, late: Callable[[], Iterable[str]] = tuple) -> ValueType:
    """One of some words. late: further words, computed when a value is read. YAML reads a bare on or off as a bool."""

    def check(given: Any) -> str:
        words = (*allowed, *late())
        given = {True: "on", False: "off"}[given] if isinstance(given, bool) else given
        found = given if given in words else str(given).lower()
        if found not in words or not isinstance(given, str):
            raise ValueError(f"must be one of {', '.join(words)}")
        return found

    def schema() -> dict[str, Any]:
        words = (*allowed, *late())
        return {"enum": [*words, *(bare for word, bare in (("on", True), ("off", False)) if word in words)]}

    return value(check, " | ".join(allowed), choices=allowed, schema=schema)


def flag() -> ValueType:
    def check(given: Any) -> bool:
        if given is not True and given is not False:
            raise ValueError("must be true or false")
        return given

    return value(check, "true | false", schema=lambda: {"type": "boolean"})


def parse_text(given: Any, what: str) -> str:
    """A text without lone surrogates. Raises ValueError (must be ``what``)."""
    if not isinstance(given, str) or any("\ud800" <= letter <= "\udfff" for letter in given):
        raise ValueError(f"must be {what}")
    return given


def text(what: str, check: Callable[[str], Any] = lambda found: found) -> ValueType:
    """A text. what: its description, for example ``a URL``. check: text -> value; raises as in ``value``."""
    return value(lambda given: check(parse_text(given, what)), what, schema=lambda: {"type": "string"})


def private(
    what: str, check: Callable[[Any], Any], schema: Callable[[], dict[str, Any]] = lambda: {"type": "string"}
) -> ValueType:
    """A value of which no message has anything: there may be a password in it. check: as in ``value``."""

    def read(given: Any, place: Place) -> Any:
        try:
            return check(given)
        except ValueError as error:
            raise place.error(f"{place.name} cannot be used", str(error)) from None
        except AgentError as error:
            raise place.error(error.what, error.why, error.remedy) from error

    return ValueType(read, what, schema=schema)


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
    return value(
        lambda given: parse_texts(given, what, most), what, schema=lambda: one_or_list({"type": "string"}, most)
    )


def one_or_list(item: dict[str, Any], most: int | None = None) -> dict[str, Any]:
    """JSON Schema of one such value or a list of them."""
    return any_of(item, {"type": "array", "items": item, **({"maxItems": most} if most else {})})


def naming_file(
    kind: ValueType, opened: Callable[[Any], object] | None = None, *, by_root: bool = False, secret: bool = False
) -> ValueType:
    """The same type; a value is the path of a file that the agent reads. opened, by_root, secret: of ``ValueType``."""
    return dataclasses.replace(kind, opened=opened or _open, by_root=by_root, secret=secret)


def _open(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))


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
        schema=lambda: json_schema(section),
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
        found = {}
        for name, one in given.items():
            here = place.below(str(name))
            with here.continuing():
                found[str(name)] = kind.read(one, here)
        return found

    return ValueType(
        read_all,
        form,
        lambda data: {name: kind.restore(one) for name, one in data.items()},
        schema=lambda: {"type": "object", "additionalProperties": kind.schema(), "maxProperties": most},
    )
