"""Which of a Go program's functions are those that a limiter library declares, copies under other import paths
included. Pure but for reading code.
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
    """A library in a program. functions: each with what it may be, several where layouts differ; those that decide
    first. inlined: those of decisions that have no code of their own. packages: import paths; copies: those of them
    that are not the library's own.
    """

    functions: list[tuple[GoFunction, tuple[Function, ...]]] = field(default_factory=list)
    inlined: list[str] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)


def match(seen: Seen, names: Iterable[str], found: list[GoFunction]) -> Matched | None:
    """A library among the functions that are ``found`` of the ``names`` that a program has; None where nothing of it
    decides.
    """
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
    """The one of several layouts by the mutex that its code takes first; where the code does not say, the version's,
    but for a copy. locks: by package, of the type whose decisions have been looked at, which others of its methods need
    not take. Raises ElfError where it is none of them.
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
    """Without a vendor folder in front."""
    return name.rpartition("/vendor/")[2]


def _package(function: GoFunction, declared: Function) -> str:
    return _own(function.name).removesuffix(f".{declared.symbol}").replace("%2e", ".")


def _copied(seen: Seen, function: GoFunction) -> tuple[Function, ...]:
    """What it is under another import path."""
    return tuple(
        one
        for one in (seen.functions if seen.copies else ())
        if function.name.endswith(f".{one.symbol}") and function.record.args == one.argument_bytes
    )
