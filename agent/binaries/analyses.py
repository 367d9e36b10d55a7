"""What the examiner can find out about files: descriptors in, plain facts out. Raises ElfError, OSError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent.binaries import gocallers, gofacts, nearest, openssl, ownfunction
from agent.binaries.elf import Elf


def functions(fds: list[int], names: list[str]) -> dict[str, Any]:
    """File offsets of the functions of these names that a library defines."""
    elf = Elf(fds[0])
    symbols = elf.symbols([name.encode() for name in names])
    return {"offsets": {name.decode(): elf.file_offset(symbol.value) for name, symbol in symbols.items()}}


KINDS: dict[str, Callable[..., Any]] = {
    "functions": functions,
    "openssl": openssl.facts,
    "go": gofacts.facts,
    "own": ownfunction.facts,
    "callers": gocallers.callers,
    "functions at": nearest.in_file,
    "kernel functions at": nearest.in_kernel,
}
