"""Where the functions that the settings declare can be probed in a file. For the ELF analyzer: plain data in and out.
Raises ElfError and OSError for a file that cannot be read.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from agent.arch.machine import DECODED
from agent.arch.x86_code import Body
from agent.binaries.elf import Elf, ElfError
from agent.binaries.gofacts import MOST_RETURNS, REGISTER_ABI_MINOR, Probed
from agent.binaries.owngo import OwnGo
from agent.binaries.symbolnames import CHANGED, COLD, pattern
from agent.binaries.symbols import NamedFunction, SymbolFile
from agent.binaries.unwind import function_at

_MOST_CODE = 1 << 18
_LOADED, _EXECUTABLE = 1, 1


class Unfit(ElfError):
    """The function cannot be probed. key: the key of the declaration that is wrong. near: names similar to a missing
    one.
    """

    def __init__(self, key: str, why: str, remedy: str = "", near: tuple[str, ...] = ()) -> None:
        super().__init__(why)
        self.key, self.remedy, self.near = key, remedy, near


def analyze(fd: int, declared: list[dict[str, Any]], near: bool = False) -> list[tuple[Probed, dict[str, Any] | None]]:
    """declared: for each, ``library``, ``entry``, ``left`` and ``returned`` (programs), ``language``, ``symbol``,
    ``address``, ``offset``, ``build_id`` and ``mapped`` (it is a shared library). near: whether to return names similar
    to a missing one. Each result has the ``key`` of the declaration that is wrong and what is ``near``. Declarations
    with another build id are left out.
    """
    found = list[tuple[Probed, dict[str, Any] | None]]()
    build_id = SymbolFile(fd).build_id if any(one["build_id"] for one in declared) else ""
    for one in declared:
        if one["build_id"] and one["build_id"] != build_id:
            continue
        probed, problem = Probed(one["library"], unversioned="declared", mapped=one["mapped"]), None
        try:
            (_go if one["language"] == "go" else _native)(fd, one, probed, near)
        except Unfit as error:
            probed.state, probed.reason, probed.remedy = "unavailable", f"{_shown(one)}: {error}", error.remedy
            problem = {"key": error.key, "near": error.near}
        except ElfError as error:
            probed.state, probed.reason = "unavailable", f"{_shown(one)}: {error}"
        found.append((probed, problem))
    return found


def _shown(one: dict[str, Any]) -> str:
    return one["symbol"] or next(f"{key} {one[key]:#x}" for key in ("address", "offset") if one[key] is not None)


def _go(fd: int, one: dict[str, Any], found: Probed, near: bool) -> None:
    binary = OwnGo(fd)
    if binary.build is None:
        raise Unfit("language", "it is no Go program", "say what it is: c, c++ or rust")
    found.go_version, minor = binary.build.go_version, binary.build.minor
    if not binary.machine.decodes:
        raise Unfit("program", f"limiter probes are made for {DECODED} only")
    if minor is None or minor < REGISTER_ABI_MINOR or "noregabi" in found.go_version:
        raise Unfit(
            "program",
            f"built by {found.go_version}: calls pass arguments in registers only since go1.{REGISTER_ABI_MINOR}",
            "rebuild it with a current Go",
        )
    if one["symbol"]:
        function = binary.one(one["symbol"])
        if isinstance(function, str):
            raise Unfit("symbol", function, *binary.remedy(one["symbol"], near))
        begin, end, at = function.entry, function.end, function.entry
    else:
        at = _address(binary, one)
        function = binary.containing(at)
        begin, end = function.entry, function.end
    returns = binary.returns(function)
    if at not in (body := Body([(begin, binary.read(begin, end - begin))])).starts:
        raise _inside(one, begin, at)
    _straight(body, begin, at, one)
    found.sites = [(one["entry"], [binary.file_offset(at)]), (one["left"], _offsets(binary, returns))]


def _native(fd: int, one: dict[str, Any], found: Probed, near: bool) -> None:
    binary = SymbolFile(fd)
    if not binary.machine.decodes:
        raise Unfit("program", f"limiter probes are made for {DECODED} only")
    if binary.section_header(".go.buildinfo") is not None and not one["symbol"].startswith("_"):
        raise Unfit("language", "it is a Go program", "language: go")
    at, size, name, problems = _find(binary, one, near)
    begin, size = _bounds(binary, at, size, one)
    body = Body([(begin, binary.read(begin, size)), *_cold(binary, name)])
    if at not in body.starts:
        raise _inside(one, begin, at)
    _straight(body, begin, at, one)
    found.sites = [(one["entry"], [binary.file_offset(at)])]
    if not body.leaves and body.returns:
        found.sites.append((one["left"], _offsets(binary, body.returns)))
    elif one["language"] == "c" and not _unwinds(binary):
        found.sites.append((one["returned"], [binary.file_offset(begin)]))
    elif body.returns:
        found.sites.append((one["left"], _offsets(binary, body.returns)))
        problems.append(
            f"calls that it ends by a jump to another function (at {body.leaves[0]:#x}) are not seen: declare that one"
        )
    else:
        raise Unfit(
            "symbol",
            (
                f"it ends by a jump to another function (at {body.leaves[0]:#x}), and exceptions may pass through it,"
                " which a return probe would make fatal"
                if body.leaves
                else "it never returns"
            ),
            "declare the function that it goes on to",
        )
    if problems:
        found.state, found.reason = "degraded", f"{_shown(one)}: {'; '.join(problems)}"


def _unwinds(binary: SymbolFile) -> bool:
    """Whether exceptions may pass through its functions. A return probe replaces the return address, which unwinding
    needs, so the program would be terminated.
    """
    return binary.section_header(".gcc_except_table") is not None or any(
        "c++" in one or one.startswith("libgcc_s") for one in binary.needed
    )


def _address(binary: Elf, one: dict[str, Any]) -> int:
    """Virtual address of the declared place."""
    if one["address"] is not None:
        if not any(0 <= one["address"] - int(segment["vaddr"]) < int(segment["filesz"]) for segment in _code(binary)):
            raise Unfit(
                "address",
                f"{one['address']:#x} is not in the program's code",
                "an address as nm and objdump -d print it; a place in the file is an offset",
            )
        return int(one["address"])
    for segment in _code(binary):
        inside = int(one["offset"]) - int(segment["offset"])
        if 0 <= inside < int(segment["filesz"]):
            return int(segment["vaddr"]) + inside
    raise Unfit(
        "offset",
        f"{one['offset']:#x} is not in the file's code",
        "an offset is a place in the file; what nm and objdump -d print is an address",
    )


def _code(binary: Elf) -> np.ndarray:
    segments = binary.segments(_LOADED)
    found: np.ndarray = segments[segments["flags"] & _EXECUTABLE != 0]
    return found


def _inside(one: dict[str, Any], begin: int, at: int) -> Unfit:
    key = "address" if one["address"] is not None else "offset"
    return Unfit(
        key,
        f"{one[key]:#x} is not where an instruction begins: a probe there would corrupt the program",
        f"the function begins at {begin if key == 'address' else one[key] - (at - begin):#x}",
    )


def _straight(body: Body, begin: int, at: int, one: dict[str, Any]) -> None:
    """Checks that no call and no jump target lies between the first instruction and the place: only then are arguments
    where they were at the beginning.
    """
    if at != begin and body.called_before(begin, at):
        raise Unfit(
            "address" if one["address"] is not None else "offset",
            "the function calls another or branches before that, so its arguments may lie elsewhere",
            f"name its first instruction, {begin:#x} as nm prints it",
        )


def _find(binary: SymbolFile, one: dict[str, Any], near: bool) -> tuple[int, int, str, list[str]]:
    """(address, bytes or 0, symbol or empty, what is not observed)."""
    if not one["symbol"]:
        at = _address(binary, one)
        around = binary.around(at)
        return at, 0, around.name if around else "", []
    found = binary.named(pattern(one["symbol"], one["language"]))
    whole = [
        f
        for f in found
        if f.value and not f.indirect and not COLD.search(f.name.encode()) and not CHANGED.search(f.name.encode())
    ]
    changed = [f.name for f in found if f.value and CHANGED.search(f.name.encode())]
    exact = [f for f in whole if f.name == one["symbol"]] or whole
    addresses = {f.value: f for f in exact}
    if len(addresses) > 1:
        raise Unfit(
            "symbol",
            f"{len(addresses)} functions may be meant",
            "name one as nm prints it, without -C; or its address",
            tuple(f"{f.name} at {f.value:#x}" for f in list(addresses.values())[:5]),
        )
    if not addresses:
        raise _absent(binary, one, found, changed, near)
    function = next(iter(addresses.values()))
    return (
        function.value,
        function.size,
        function.name,
        [f"calls of {name}, which the compiler made of it, are not seen" for name in changed[:2]],
    )


def _absent(
    binary: SymbolFile, one: dict[str, Any], found: list[NamedFunction], changed: list[str], near: bool
) -> Unfit:
    if changed:
        return Unfit(
            "symbol",
            f"the compiler has changed its arguments: there is only {changed[0]}",
            "build it with __attribute__((noipa)) or -fno-ipa-sra -fno-ipa-cp",
        )
    if any(f.indirect for f in found):
        return Unfit(
            "symbol",
            "it is chosen when the program starts (an indirect function)",
            "name the one that is chosen, or its address",
        )
    if found:
        return Unfit("symbol", "it is in a shared library", "name that as the program")
    like = tuple(binary.near(one["symbol"])) if near else ()
    if binary.stripped:
        return Unfit(
            "symbol",
            "the file is stripped and does not export it",
            "name its address, which nm prints of the file before it was stripped (the same build id)",
            like,
        )
    return Unfit(
        "symbol",
        "there is no such function: it may be inlined wherever it is called",
        "nm -C prints those that there are; keep one by __attribute__((noinline)) or #[inline(never)]",
        like,
    )


def _bounds(binary: SymbolFile, at: int, size: int, one: dict[str, Any]) -> tuple[int, int]:
    """(address, bytes) of the function at or around an address."""
    begin = at
    if not size:
        around = binary.around(at)
        bounds = (around.value, around.size) if around else function_at(binary, at)
        if bounds is None:
            raise Unfit(
                "symbol" if one["symbol"] else "address",
                "nothing in the file says where this function begins and ends",
                "keep its symbols or its .eh_frame",
            )
        begin, size = bounds
    if not 0 < size <= _MOST_CODE:
        raise ElfError(f"a function of {size} bytes gets no probes: {_MOST_CODE} are allowed")
    return begin, size


def _cold(binary: SymbolFile, name: str) -> list[tuple[int, bytes]]:
    """Cold parts that the compiler has placed elsewhere."""
    if not name:
        return []
    parts = binary.named(re.compile(re.escape(name.encode()) + rb"\.cold(?:\.\d+)?\0"))
    return [(f.value, binary.read(f.value, f.size)) for f in parts if f.value and 0 < f.size <= _MOST_CODE]


def _offsets(binary: Elf, addresses: list[int]) -> list[int]:
    if len(addresses) > MOST_RETURNS:
        raise ElfError(f"a function of {len(addresses)} returns gets no probes: {MOST_RETURNS} are allowed")
    return [binary.file_offset(at) for at in addresses]
