"""Finds the functions in a Go program that a limiter library declares, also copies under other import paths. Pure
except for reading code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from agent.binaries.elf import ElfError
from agent.binaries.gobuild import BuildInfo
from agent.binaries.gosym import GoBinary, GoFunction
from agent.limiters.library import ROLES, Function, Seen

_HOSTED = 3


@dataclass
class Matched:
    """A library in a program. functions: each with its candidate declarations, several if layouts differ; deciding ones
    first. inlined: deciding functions without code of their own. packages: import paths. copies: those that are not the
    library's own.
    """

    functions: list[tuple[GoFunction, tuple[Function, ...]]] = field(default_factory=list)
    inlined: list[str] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)


def match(seen: Seen, names: Iterable[str], found: list[GoFunction]) -> Matched | None:
    """A library among the ``found`` functions of the program's ``names``; None if it has no deciding function."""
    out, symbols, every = Matched(), seen.symbols(), set(names)
    there = {_own(name) for name in every}
    for function in found:
        own = _own(function.name)
        candidates = tuple(
            one
            for one in symbols.get(own.encode()) or _copied(seen, function)
            if not any(f"{function.name.removesuffix(one.symbol)}{other}" in every for other in one.unless)
        )
        if candidates:
            out.functions.append((function, candidates))
            package = _package(function, candidates[0])
            if candidates[0].role == "decision" and package not in out.packages:
                out.packages.append(package)
                if own.encode() not in symbols:
                    out.copies.append(package)
    have = {_own(function.name) for function in found}
    for symbol, declared in symbols.items():
        name = symbol.decode()
        if declared[0].role == "decision" and name in there and name not in have:
            out.inlined.append(declared[0].symbol)
            out.packages.append(name.removesuffix(f".{declared[0].symbol}").replace("%2e", "."))
    out.functions = [
        (function, candidates)
        for function, candidates in out.functions
        if candidates[0].package or _package(function, candidates[0]) in out.packages
    ]
    out.functions.sort(key=lambda one: ROLES.index(one[1][0].role))
    return out if out.packages else None


def chosen(
    binary: GoBinary,
    function: GoFunction,
    candidates: tuple[Function, ...],
    copies: Iterable[str],
    locks: dict[str, int | None],
    version: str,
) -> Function:
    """Selects one of several layouts by the mutex that the code locks first; if the code does not show it, by the
    version, except for a copy. locks: by package, of the type whose deciding functions were examined; its other methods
    may not lock. Raises ElfError if none fits.
    """
    if candidates[0].lock is None:
        return candidates[0]
    package = _package(function, candidates[0])
    at = binary.lock(function) if candidates[0].role == "decision" else locks.get(package)
    for one in candidates:
        if at == one.lock or (at is None and package not in copies and re.match(one.versions, version)):
            locks.setdefault(package, one.lock)
            return one
    why = "is not certain, as without optimisation" if at is None else "is another one"
    raise ElfError(f"the layout of {_own(function.name)} {why}")


def root(package: str, build: BuildInfo) -> str:
    """The module of a package; without modules, its first three elements."""
    modules = [path for path in build.modules if package == path or package.startswith(path + "/")]
    return max(modules, key=len, default="/".join(package.split("/")[:_HOSTED]))


def _own(name: str) -> str:
    """A name without a leading vendor folder."""
    return name.rpartition("/vendor/")[2]


def _package(function: GoFunction, declared: Function) -> str:
    return _own(function.name).removesuffix(f".{declared.symbol}").replace("%2e", ".")


def _copied(seen: Seen, function: GoFunction) -> tuple[Function, ...]:
    """Its declarations under another import path."""
    return tuple(
        one
        for one in (seen.functions if seen.copies else ())
        if function.name.endswith(f".{one.symbol}") and function.record.args == one.argument_bytes
    )
