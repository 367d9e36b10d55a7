"""The functions of a Go program at a return address, including inlined ones. For the ELF analyzer: hostile input.

Layouts: runtime/symtabinl.go and runtime/symtab.go of Go 1.18 to 1.26. Go 1.17 has another layout of functions' data:
only the function itself is returned, without inlined ones.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from agent.binaries.elf import ElfError
from agent.binaries.gobuild import BuildInfo
from agent.binaries.golibraries import root
from agent.binaries.gosym import GoBinary, GoFunction

#: Addresses per request; depth of inlining; bytes of a name, and the part that is returned; elements of a file's path
#: that are returned.
MOST, _MOST_INLINED, _MAX_NAME, _LONGEST_SHOWN, _ELEMENTS = 24, 8, 512, 200, 2
_INLINE_INDEX, _INLINE_TREE = 2, 3
_NO_DATA = 0xFFFFFFFF
#: Words of moduledata from ``text`` to ``gofunc``, before Go 1.20 (which added two for coverage) and from then on.
_GOFUNC_BEFORE, _GOFUNC = 16, 18
_EXECUTABLE = 1
#: First elements of the standard library's import paths.
_STANDARD = frozenset(
    [
        "archive",
        "bufio",
        "bytes",
        "cmp",
        "compress",
        "container",
        "context",
        "crypto",
        "database",
        "debug",
        "embed",
        "encoding",
        "errors",
        "expvar",
        "flag",
        "fmt",
        "go",
        "hash",
        "html",
        "image",
        "index",
        "internal",
        "io",
        "iter",
        "log",
        "maps",
        "math",
        "mime",
        "net",
        "os",
        "path",
        "plugin",
        "reflect",
        "regexp",
        "runtime",
        "slices",
        "sort",
        "strconv",
        "strings",
        "structs",
        "sync",
        "syscall",
        "testing",
        "text",
        "time",
        "unicode",
        "unique",
        "unsafe",
        "vendor",
        "weak",
    ]
)


class Caller(NamedTuple):
    """A calling function. package: its import path. module: its module (``std`` for the standard library). own: whether
    that is the program's own. line: 0 if unknown.
    """

    name: str
    package: str
    module: str
    own: bool
    file: str
    line: int


def callers(fds: list[int], offsets: list[int]) -> list[list[list[Any]]]:
    """For each return address, as an offset from the load address of the code: its callers, the innermost first; none
    if it is in no function.
    """
    binary = GoCallers(fds[0])
    return [[list(one) for one in binary.at(offset)] for offset in offsets[:MOST]]


def _plain(name: str) -> str:
    """A name without type arguments, as the runtime prints it."""
    begin, end = name.find("["), name.rfind("]")
    return f"{name[:begin]}[...]{name[end + 1 :]}" if 0 <= begin < end else name


def package_of(name: str) -> str:
    """The import path in a function's full name."""
    base = re.split(r"[(\[{]", name, maxsplit=1)[0]
    slash = base.rfind("/")
    return base[: base.find(".", slash + 1)].replace("%2e", ".") if "." in base[slash + 1 :] else ""


def module_of(package: str, build: BuildInfo) -> tuple[str, bool]:
    """(the module of a package, whether it is the program's own)."""
    if package == "main" or (build.main and (package == build.main or package.startswith(build.main + "/"))):
        return build.main, True
    known = any(package == path or package.startswith(path + "/") for path in build.modules)
    if not known and package.split("/", 1)[0] in _STANDARD:
        return "std", False
    return root(package, build), False


class GoCallers(GoBinary):
    """Every method raises ElfError with the reason if the file is malformed or hostile, and OSError for a
    failing read.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._read_tables: dict[tuple[int, int], dict[range, int]] = {}

    def at(self, offset: int) -> list[Caller]:
        code = self._loads[self._loads["flags"] & _EXECUTABLE != 0]["vaddr"].tolist()
        try:
            pc = min(code) + offset - 1  # of the call, not of the instruction after it
            function = self._around(pc)
            return [] if function is None else list(self._named_callers(function, pc - function.entry))
        except (ElfError, ValueError):
            return []  # in another file, or in code generated at run time

    def _around(self, pc: int) -> GoFunction | None:
        """The function that contains an address."""
        _, header = self._pclntab
        entries = self._functab[:-1, 0]
        at = pc - self._module[0] if header.relative else pc
        if at < 0:
            return None
        index = int(np.searchsorted(entries, at, "right")) - 1 if header.relative or entries.any() else -1
        if not 0 <= index < len(entries):
            return None
        entry, end = self._bounds(index)
        record = self._record(index)
        return GoFunction(self._name(record.name), entry, end, record) if entry <= pc < end else None

    def _name(self, offset: int) -> str:
        base, header = self._pclntab
        return self._text_at(base + header.names + offset)

    def _text_at(self, at: int) -> str:
        raw = self.read(at, min(_MAX_NAME, self.rest(at))).split(b"\0", 1)[0]
        return raw.decode("utf-8", "replace")

    def _named_callers(self, function: GoFunction, at: int) -> Iterator[Caller]:
        """at: offset of the call in the function."""
        for name, place in [*self._inlined(function, at), (function.name, None)][:_MOST_INLINED]:
            file, line = self._line(function, at)
            whole = _plain(name.rpartition("/vendor/")[2])
            package = package_of(whole)
            yield Caller(
                whole[:_LONGEST_SHOWN],
                package[:_LONGEST_SHOWN],
                *module_of(package, self._built),
                file[-_LONGEST_SHOWN:],
                line,
            )
            at = place if place is not None else at

    @property
    def _built(self) -> BuildInfo:
        return self.build or BuildInfo("")

    def _inlined(self, function: GoFunction, at: int) -> list[tuple[str, int]]:
        """(name, offset of its call in the function) of each function that is inlined there, the innermost first."""
        found: list[tuple[str, int]] = []
        try:
            for number, parent in self._tree(function, at):
                found.append((self._name(number), parent))
        except ElfError:
            pass  # unknown layout: returns the function itself
        return found

    def _tree(self, function: GoFunction, at: int) -> Iterator[tuple[int, int]]:
        _, header = self._pclntab
        record = function.record
        if not header.relative or record.pcdata <= _INLINE_INDEX or record.funcdata <= _INLINE_TREE:
            return
        start = self._record_at(function) + record.tables
        (table,) = struct.unpack("<I", self.read(start + 4 * _INLINE_INDEX, 4))
        (tree,) = struct.unpack("<I", self.read(start + 4 * (record.pcdata + _INLINE_TREE), 4))
        if not table or tree == _NO_DATA:
            return
        tree += self._module[_GOFUNC if header.first_lines else _GOFUNC_BEFORE]
        numbers = self._values(function, table)
        for _ in range(_MOST_INLINED):
            number = next((value for where, value in numbers.items() if at in where), -1)
            if number < 0:
                return
            if header.first_lines:
                _, name, parent, _ = struct.unpack("<4i", self.read(tree + 16 * number, 16))
            else:
                _, _, _, name, parent = struct.unpack("<5i", self.read(tree + 20 * number, 20))
            if not (0 <= name < header.names_end - header.names and 0 <= parent < function.end - function.entry):
                raise ElfError("a Go inline tree of an unknown layout")
            yield name, parent
            at = parent

    def _values(self, function: GoFunction, offset: int) -> dict[range, int]:
        """As ``pc_table``, read once."""
        place = function.entry, offset
        if place not in self._read_tables:
            self._read_tables[place] = self.pc_table(function, offset)
        return self._read_tables[place]

    def _record_at(self, function: GoFunction) -> int:
        base, header = self._pclntab
        index = int(np.searchsorted(self._functab[:-1, 0], function.entry - self._module[0], "right")) - 1
        return base + header.functab + int(self._functab[index, 1])

    def _line(self, function: GoFunction, at: int) -> tuple[str, int]:
        """(the end of the file's path, line) of an instruction of a function; empty and 0 if unknown."""
        base, header = self._pclntab
        record = function.record
        if not header.relative:  # it may be that of an inlined function
            return "", 0
        try:
            line = next((value for where, value in self._values(function, record.pcln).items() if at in where), 0)
            file = next((value for where, value in self._values(function, record.pcfile).items() if at in where), -1)
            if file < 0 or not header.files:
                return "", line
            (name,) = struct.unpack("<I", self.read(base + header.units + 4 * (record.unit + file), 4))
            whole = "" if name == _NO_DATA else self._text_at(base + header.files + name)
        except ElfError:
            return "", 0
        return "/".join(whole.split("/")[-_ELEMENTS:]), line
