"""Known limiter libraries: the files in ``libraries/``."""

from __future__ import annotations

from collections.abc import Mapping

from agent.common.declared import all_declared
from agent.limiters import libraries
from agent.limiters.library import LimiterLibrary, Seen, Step


def _found() -> tuple[LimiterLibrary, ...]:
    """The libraries: those whose decisions are observed first, then by name."""
    found = all_declared(libraries, "LIBRARY", LimiterLibrary)
    return tuple(sorted(found, key=lambda one: (one.seen is None, one.library)))


CATALOGUE = _found()
_declared: dict[str, Seen] = {}


def declare(functions: Mapping[str, Seen]) -> None:
    """Adds functions that the settings declare (agent/limiters/functions/) to ``seen``, after the libraries."""
    _declared.clear()
    _declared.update(functions)


def seen() -> dict[str, Seen]:
    """How decisions of each observed library are read, by name. A library's index is its number in the kernel's
    records.
    """
    return {one.library: one.seen for one in CATALOGUE if one.seen is not None} | _declared


def declared(library: str) -> bool:
    """Whether it is a function that the settings declare."""
    return library in _declared


def look_up(library: str, version: str = "") -> Step | None:
    """The effect of a step on a library's version (the last declared version if unknown); None for an
    unknown library.
    """
    return next((one.step(version) for one in CATALOGUE if one.library == library), None)
