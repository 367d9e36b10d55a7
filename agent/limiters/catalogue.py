"""Known limiter libraries: what stands in ``libraries/``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from agent.limiters import libraries
from agent.limiters.library import LimiterLibrary, Seen, Step


def _found() -> tuple[LimiterLibrary, ...]:
    """Those that are seen first, else by name."""
    found: list[LimiterLibrary] = [
        import_module(f"{libraries.__name__}.{info.name}").LIBRARY for info in iter_modules(libraries.__path__)
    ]
    return tuple(sorted(found, key=lambda one: (one.seen is None, one.library)))


CATALOGUE = _found()
_declared: dict[str, Seen] = {}


def declare(functions: Mapping[str, Seen]) -> None:
    """From now on, what ``seen`` has behind the libraries: functions that the settings declare
    (agent/limiters/functions/).
    """
    _declared.clear()
    _declared.update(functions)


def seen() -> dict[str, Seen]:
    """By name, how decisions of a library are seen, of those that are; the place of one is its number in the kernel's
    records.
    """
    return {one.library: one.seen for one in CATALOGUE if one.seen is not None} | _declared


def declared(library: str) -> bool:
    """Whether it is a function that the settings declare, and name."""
    return library in _declared


def look_up(library: str, version: str = "") -> Step | None:
    """What a step does to a library's version (the last that is declared, where the version is not known); None for a
    library that is not known.
    """
    return next((one.step(version) for one in CATALOGUE if one.library == library), None)
