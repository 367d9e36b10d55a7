"""The requests that the analyzer process answers about files: descriptors in, plain data out. Raises
ElfError, OSError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from agent.binaries import gocallers, nearest
from agent.binaries.contract import Analysis, Attachment
from agent.binaries.elf import Elf
from agent.common.declared import all_declared

#: The package of the kinds of binaries: each module's ``KIND`` (agent/instruments/kind.py).
_KINDS = "agent.instruments"


def functions(
    fds: list[int], names: list[str], programs: Mapping[str, list[str]] | None = None, returned: str = ""
) -> list[Analysis]:
    """Where a library defines functions of these names. programs: entry programs, each with its function names (aliases
    of one address are probed once). returned: the program at the return of all.
    """
    symbols = (elf := Elf(fds[0])).symbols([name.encode() for name in names])
    offsets = {name.decode(): elf.file_offset(symbol.value) for name, symbol in symbols.items()}
    entries = [
        Attachment(program, sorted({offsets[name] for name in wanted if name in offsets}))
        for program, wanted in (programs or {}).items()
    ]
    every = sorted(set[int]().union(*(one.offsets for one in entries)))
    return [Analysis([Attachment(returned, every, at_return=True), *entries], facts={"offsets": offsets})]


#: By name. Those of kinds of binaries return a list of ``Analysis``, the others plain data.
KINDS: dict[str, Callable[..., Any]] = {
    "functions": functions,
    "callers": gocallers.callers,
    "functions at": nearest.in_file,
    "kernel functions at": nearest.in_kernel,
}


def discover() -> dict[str, Any]:
    """Every kind of binary, by name (``agent.instruments.kind.BinaryKind``). Registers their analyzers. Raises
    AgentError for a wrong declaration.
    """
    declaration: type[Any] = import_module(f"{_KINDS}.kind").BinaryKind
    found = {one.name: one for one in all_declared(import_module(_KINDS), "KIND", declaration, optional=True)}
    KINDS.update((name, kind.analyze) for name, kind in found.items())
    return found
